"""How bytes cross: the reference path in plain torch, and the direct path in Triton.

A path gets indices that were checked: `span.array[:count]` are host blocks, `span.array[count:]` the slots
they go to or come from. It launches on the given stream (None on a machine without CUDA) and returns.
"""

from __future__ import annotations

import logging
from typing import Protocol

import numpy as np
import torch

from kvmove.errors import Refused
from kvmove.move.hostpool import HostPool
from kvmove.move.indices import Span
from kvmove.move.layout import CacheLayout

_log = logging.getLogger(__name__)


class Path(Protocol):
    """One way to move blocks between a host pool and a cache."""

    @property
    def name(self) -> str: ...

    def load(self, span: Span, count: int, programs: int, stream: torch.cuda.Stream | None) -> None:
        """Host blocks to slots, by at most `programs` kernel programs."""

    def store(self, span: Span, count: int, programs: int, stream: torch.cuda.Stream | None) -> None:
        """Slots to host blocks, by at most `programs` kernel programs."""


class ReferencePath:
    """Plain torch indexing, on any device. Written for reading: it defines what a copy is.

    On a CUDA device it blocks the host until its copies are done.
    """

    name = "reference"

    def __init__(self, layout: CacheLayout, pool: HostPool) -> None:
        self._device = layout.device
        self._pages = [
            (view, pool.blocks[:, page.host_offset_bytes : page.host_offset_bytes + page.num_bytes])
            for view, page in zip(layout.page_views(), layout.pages, strict=True)
        ]

    def load(self, span: Span, count: int, programs: int, stream: torch.cuda.Stream | None) -> None:
        blocks, slots = _as_tensors(span, count)
        with torch.cuda.stream(stream):
            for page, host in self._pages:
                page[slots.to(self._device)] = host[blocks].to(self._device)

    def store(self, span: Span, count: int, programs: int, stream: torch.cuda.Stream | None) -> None:
        blocks, slots = _as_tensors(span, count)
        with torch.cuda.stream(stream):
            for page, host in self._pages:
                host[blocks] = page[slots.to(self._device)].cpu()


class DirectPath:
    """A Triton kernel reads or writes pinned host memory in place, all pages of all blocks in one launch."""

    name = "direct"

    def __init__(self, layout: CacheLayout, pool: HostPool) -> None:
        from kvmove.kernels import pages as kernel

        if layout.device.type == "cpu" and not kernel.INTERPRETED:
            raise Refused("the direct path needs a CUDA device, or TRITON_INTERPRET=1 set before kvmove is imported")
        if layout.device.type == "cuda" and kernel.INTERPRETED:
            raise Refused("TRITON_INTERPRET=1 is set: interpreted kernels cannot reach CUDA memory; unset it")
        self._gather, self._scatter = kernel.gather_pages, kernel.scatter_pages
        tile = kernel.TileShape.for_pages(layout.align_bytes, max(p.num_bytes for p in layout.pages))
        table = _segment_table(layout, tile.row_bytes, tile.word_bytes)
        self._table = torch.from_numpy(table).to(layout.device)
        self._copy = kernel.PageCopy(
            host_address=pool.device_address,
            host_block_bytes=pool.block_bytes,
            table_address=self._table.data_ptr(),
            num_segments=table.shape[1],
            tile=tile,
            full=bool((table[3] == tile.columns).all()),
        )

    def load(self, span: Span, count: int, programs: int, stream: torch.cuda.Stream | None) -> None:
        self._launch(self._gather, span, count, programs, stream)

    def store(self, span: Span, count: int, programs: int, stream: torch.cuda.Stream | None) -> None:
        self._launch(self._scatter, span, count, programs, stream)

    def _launch(self, kernel: object, span: Span, count: int, programs: int, stream: torch.cuda.Stream | None) -> None:
        handle = 0 if stream is None else stream.cuda_stream
        self._copy(kernel, span.address, span.address + 8 * count, count, programs=programs, stream=handle)

    def compile(self) -> None:
        """Build both kernels now, so that the first load of a step does not wait for a compiler."""
        nothing = Span(np.empty(0, dtype=np.int64), self._table.data_ptr())
        self.load(nothing, 0, 1, None)
        self.store(nothing, 0, 1, None)


def choose_path(layout: CacheLayout, pool: HostPool, name: str | None) -> Path:
    """The path called `name`, or the best one that works on this machine when none is named.

    Raises:
        Refused: there is no such path, or the named one does not work here; naming one never falls back.
    """
    if name == "reference":
        return ReferencePath(layout, pool)
    if name == "direct":
        path = DirectPath(layout, pool)
        path.compile()
        return path
    if name is not None:
        raise Refused(f"there is no path called {name!r}; choose from: direct, reference")
    try:
        path = DirectPath(layout, pool)
        path.compile()
    except Refused:
        return ReferencePath(layout, pool)
    except Exception as error:
        # Triton needs a C compiler and Python's headers, and a GPU that it knows. Without them, be slow and right.
        first_line = (str(error).strip().splitlines() or [type(error).__name__])[0]
        _log.warning("Triton cannot run here (%s); kvmove moves blocks with plain torch, which is slow", first_line)
        return ReferencePath(layout, pool)
    return path


def _segment_table(layout: CacheLayout, row_bytes: int, word_bytes: int) -> np.ndarray:
    """The table of `kvmove.kernels.pages`: int64 (4, segments), every page cut into rows of at most `row_bytes`."""
    columns = [
        (
            page.address + start,
            page.slot_stride_bytes,
            page.host_offset_bytes + start,
            min(row_bytes, page.num_bytes - start) // word_bytes,
        )
        for page in layout.pages
        for start in range(0, page.num_bytes, row_bytes)
    ]
    return np.ascontiguousarray(np.array(columns, dtype=np.int64).T)


def _as_tensors(span: Span, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    indices = torch.from_numpy(span.array)
    return indices[:count], indices[count:]
