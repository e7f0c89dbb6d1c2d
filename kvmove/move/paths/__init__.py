"""How bytes cross: one file a path, and the choice between them.

A path gets `Pairs` that were checked, one for each group: where blocks are in the host pool, and the slots they go to
or come from. It queues its work on the given stream (None on a machine without CUDA: it runs at once) and returns;
what the work has to wait for is on that stream already, and its end is where the stream is afterwards.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol

import torch

from kvmove.costs import CostModel, Work
from kvmove.errors import Refused
from kvmove.move.hostpool import HostPool
from kvmove.move.indices import Pairs
from kvmove.move.layers import LayerPieces
from kvmove.move.layout import CacheLayout, Group
from kvmove.move.paths.direct import DirectPath
from kvmove.move.paths.engine import EnginePath
from kvmove.move.paths.reference import ReferencePath
from kvmove.move.paths.staged import StagedPath
from kvmove.move.paths.tma import TmaPath
from kvmove.records import JobKind, Lane, Part

_log = logging.getLogger(__name__)


class Path(Protocol):
    """One way to move blocks between a host pool and a cache."""

    @property
    def name(self) -> str: ...

    def load(self, pairs: Sequence[Pairs], programs: int, stream: torch.cuda.Stream | None) -> None:
        """Host blocks to slots, by at most `programs` kernel programs."""

    def store(self, pairs: Sequence[Pairs], programs: int, stream: torch.cuda.Stream | None) -> None:
        """Slots to host blocks, by at most `programs` kernel programs."""


_MAKERS: dict[str, Callable[[CacheLayout, HostPool], Path]] = {
    "direct": DirectPath,
    "tma": TmaPath,
    "staged": StagedPath,
    "engine": EnginePath,
    "reference": ReferencePath,
}

# From where on the copy engine's higher rate outweighs the staged path's extra hop and calls, measured on an H200: with
# fewer bytes the pipeline is mostly start and end, with smaller host blocks a descriptor of the copy engine costs too
# much.
STAGED_FROM_BYTES = 96 << 20
STAGED_BLOCK_BYTES = 384 << 10
# A page from which on a descriptor of the copy engine costs less than its bytes take.
ENGINE_PAGE_BYTES = 1 << 20


def work_of(parts: Sequence[Part], groups: Sequence[Group]) -> Work:
    """What parts move, in the terms of the cost model."""
    num_bytes = blocks = pages = 0
    for part in parts:
        group, count = groups[part.group], len(part.slots)
        num_bytes += count * group.block_bytes
        blocks += count
        pages += count * len(group.pages)
    return Work(num_bytes, blocks, pages)


class Paths:
    """The paths of one mover. Those that the default choice can take are made at once, others when first named."""

    def __init__(self, layout: CacheLayout, pool: HostPool, always: str | None, costs: CostModel | None = None) -> None:
        """Keep to the path called `always`; where it is None choose for each job, by `costs` where they are given.

        Raises:
            Refused: there is no such path, or it does not work on this machine; naming one never falls back.
        """
        self._layout, self._pool, self._costs = layout, pool, costs
        self._of_large_pages = {
            g.index for g in layout.groups if len(g.pages) == 1 and g.block_bytes >= ENGINE_PAGE_BYTES
        }
        self._made: dict[str, Path] = {}
        self._by_layer: dict[str, LayerPieces] = {}
        self._always = self.named(always) if always is not None else self._only_choice()
        if self._always is None:
            for name in ("direct", "staged", "engine"):
                self.named(name)
            with suppress(Refused):  # not every cache is for it
                if costs is not None:
                    self.named("tma")

    @property
    def always(self) -> str:
        """The name of the path of every job, or `auto`."""
        return "auto" if self._always is None else self._always.name

    def _only_choice(self) -> Path | None:
        """The path for every job where there is no choice: without Triton, and without CUDA."""
        try:
            direct = self.named("direct")
        except Refused:
            return self.named("reference")
        except Exception as error:
            # Triton needs a C compiler and Python's headers, and a GPU that it knows. Without them, be slow and right.
            first_line = (str(error).strip().splitlines() or [type(error).__name__])[0]
            _log.warning("Triton cannot run here (%s); kvmove moves blocks with plain torch, which is slow", first_line)
            return self.named("reference")
        return None if self._layout.device.type == "cuda" else direct

    def named(self, name: str) -> Path:
        """The path called `name`.

        Raises:
            Refused: there is no such path, or it does not work on this machine.
        """
        if name not in _MAKERS:
            raise Refused(f"there is no path called {name!r}; choose from: {', '.join(_MAKERS)}")
        if name not in self._made:
            self._made[name] = _MAKERS[name](self._layout, self._pool)
        return self._made[name]

    def by_layer(self, name: str | None) -> LayerPieces:
        """The path called `name`, or the direct path or what stands in for it, in pieces of layers.

        Raises:
            Refused: as `named`, or the path cannot load layer by layer.
        """
        if name is None:
            name = "direct" if self._always is None else self._always.name
        path = self.named(name)
        if name not in self._by_layer:
            self._by_layer[name] = LayerPieces(path.name, _MAKERS[name], self._layout, self._pool)
        return self._by_layer[name]

    def choose(self, kind: JobKind, lane: Lane, parts: Sequence[Part]) -> Path:
        """The path for a job of these parts in a lane."""
        if self._always is not None:
            return self._always
        if self._costs is not None:
            quickest = self._costs.quickest(kind, self._made, lane, work_of(parts, self._layout.groups))
            if quickest is not None:
                return self._made[quickest]
        if self._of_large_pages and all(p.group in self._of_large_pages for p in parts):
            return self._made["engine"]
        if lane is Lane.BULK:
            total = sum(len(p.slots) * self._layout.groups[p.group].block_bytes for p in parts)
            # Consecutive places of a host block are one run for the copy engine, so it is runs that count.
            if total >= STAGED_FROM_BYTES and total >= STAGED_BLOCK_BYTES * sum(len(p.blocks) for p in parts):
                return self._made["staged"]
        return self._made["direct"]
