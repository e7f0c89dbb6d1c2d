"""Layer by layer: a load in a few pieces, so that the first layers' attention starts while later layers still cross.

Each piece is a launch with an event of its own. Pieces grow, 1, 2, 4, 8, 16 layers and the rest: the first is there
soon, and however many layers there are, no more than six launches pay for it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from kvmove.errors import Refused
from kvmove.move.indices import Pairs
from kvmove.move.layout import CacheLayout, Group

if TYPE_CHECKING:
    from kvmove.move.hostpool import HostPool
    from kvmove.move.paths import Path

MOST_PIECES = 6

# Paths that move a layer without the others. A staged load brings whole host blocks, so layer 0 is there with the last.
LAYERED_PATHS = ("direct", "engine", "reference")


def pieces(num_layers: int) -> list[range]:
    """The layers of each piece; together all of them, in order."""
    made: list[range] = []
    begin = 0
    while begin < num_layers:
        count = 1 << len(made)
        end = num_layers if len(made) == MOST_PIECES - 1 else min(begin + count, num_layers)
        made.append(range(begin, end))
        begin = end
    return made


class LayerPieces:
    """A path that loads the layers of a cache piece by piece. A layer is a tensor of the layout.

    Attributes:
        name: the path's.
        stops: for each piece, the number of layers that are there when it is.
    """

    def __init__(self, name: str, make: Callable[[CacheLayout, HostPool], Path], layout: CacheLayout, pool: HostPool):
        if name not in LAYERED_PATHS:
            raise Refused(
                f"the {name} path cannot load layer by layer; name one that can ({', '.join(LAYERED_PATHS)}), or leave "
                "the path out"
            )
        self.name = name
        self.stops: list[int] = []
        self._pieces: list[tuple[Path, dict[int, int]]] = []
        for layers in pieces(len(layout.tensors)):
            part, numbers = _part_of(layout, layers)
            self._pieces.append((make(part, pool), numbers))
            self.stops.append(layers.stop)

    def load(self, piece: int, pairs: Sequence[Pairs], programs: int, stream: torch.cuda.Stream | None) -> None:
        """Queue one piece, by at most `programs` kernel programs."""
        path, numbers = self._pieces[piece]
        own = [replace(p, group=numbers[p.group]) for p in pairs if p.group in numbers]
        if own:
            path.load(own, programs, stream)

    def piece_of(self, layer: int) -> int:
        """The piece that brings a layer."""
        return bisect_right(self.stops, layer)


def _part_of(layout: CacheLayout, layers: range) -> tuple[CacheLayout, dict[int, int]]:
    """The layout with only the pages of some tensors, and the number there of each group that has such pages."""
    groups: list[Group] = []
    numbers: dict[int, int] = {}
    for group in layout.groups:
        own = tuple(page for page in group.pages if page.tensor in layers)
        if own:
            numbers[group.index] = len(groups)
            groups.append(replace(group, pages=own))
    return replace(layout, groups=tuple(groups)), numbers
