"""The direct path: a Triton kernel reads or writes pinned host memory in place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from kvmove.move.hostpool import HostPool
from kvmove.move.indices import Pairs
from kvmove.move.layout import CacheLayout, Group


class GroupKernels:
    """A gather and a scatter kernel between one group's slots and blocks in host or GPU memory.

    Args:
        copy: launches a kernel; `PageCopy` or `TileCopy`, which read `table`.
    """

    def __init__(self, gather: Any, scatter: Any, copy: Any, table: torch.Tensor) -> None:
        self._gather, self._scatter, self._copy, self._table = gather, scatter, copy, table

    def gather(
        self, blocks_address: int, slots_address: int, count: int, programs: int, stream: torch.cuda.Stream | None
    ) -> None:
        """Blocks to slots. Addresses are of int64 (count,) that kernels can read: positions of blocks, and slots."""
        self._launch(self._gather, blocks_address, slots_address, count, programs, stream)

    def scatter(
        self, blocks_address: int, slots_address: int, count: int, programs: int, stream: torch.cuda.Stream | None
    ) -> None:
        """Slots to blocks."""
        self._launch(self._scatter, blocks_address, slots_address, count, programs, stream)

    def _launch(
        self, kernel: Any, blocks_address: int, slots_address: int, count: int, programs: int,
        stream: torch.cuda.Stream | None,
    ) -> None:  # fmt: skip
        handle = 0 if stream is None else stream.cuda_stream
        self._copy(kernel, blocks_address, slots_address, count, programs=programs, stream=handle)

    def compile(self) -> None:
        """Build both kernels now, so that the first load of a step does not wait for a compiler."""
        anywhere = self._table.data_ptr()  # nothing is read: there are no blocks
        self.gather(anywhere, anywhere, 0, 1, None)
        self.scatter(anywhere, anywhere, 0, 1, None)


class KernelPath:
    """All pages of all blocks of a group in one launch; no copy of the bytes anywhere else."""

    def __init__(self, kernels: Sequence[GroupKernels]) -> None:
        """Compile the kernels of each group."""
        self._kernels = kernels
        for each in kernels:
            each.compile()

    def load(self, pairs: Sequence[Pairs], programs: int, stream: torch.cuda.Stream | None) -> None:
        for p in pairs:
            self._kernels[p.group].gather(p.positions_address, p.slots_address, len(p.slots), programs, stream)

    def store(self, pairs: Sequence[Pairs], programs: int, stream: torch.cuda.Stream | None) -> None:
        for p in pairs:
            self._kernels[p.group].scatter(p.positions_address, p.slots_address, len(p.slots), programs, stream)


class PageKernels(GroupKernels):
    """The kernels of `kvmove.kernels.pages`, for any cache.

    Args:
        blocks_base: address of position 0 as kernels see it; `unit_bytes`: how much further position 1 is.

    Raises:
        Refused: Triton cannot run kernels on the device in this process.
    """

    def __init__(self, group: Group, blocks_base: int, unit_bytes: int, device: torch.device) -> None:
        from kvmove.kernels import pages as kernel

        kernel.refuse_device(device.type)
        tile = kernel.TileShape.for_pages(group.align_bytes, max(p.num_bytes for p in group.pages))
        segments = _segment_table(group, tile.row_bytes, tile.word_bytes)
        table = torch.from_numpy(segments).to(device)
        copy = kernel.PageCopy(
            host_address=blocks_base,
            host_block_bytes=unit_bytes,
            table_address=table.data_ptr(),
            num_segments=segments.shape[1],
            tile=tile,
            full=bool((segments[3] == tile.columns).all()),
        )
        super().__init__(kernel.gather_pages, kernel.scatter_pages, copy, table)


class DirectPath(KernelPath):
    """Takes any cache; best for small loads, which wait for nothing but the link."""

    name = "direct"

    def __init__(self, layout: CacheLayout, pool: HostPool) -> None:
        super().__init__([PageKernels(g, pool.device_address, g.unit_bytes, layout.device) for g in layout.groups])


def _segment_table(group: Group, row_bytes: int, word_bytes: int) -> NDArray[np.int64]:
    """The table of `kvmove.kernels.pages`: int64 (4, segments), every page cut into rows of at most `row_bytes`."""
    columns = [
        (
            page.address + start,
            page.slot_stride_bytes,
            page.host_offset_bytes + start,
            min(row_bytes, page.num_bytes - start) // word_bytes,
        )
        for page in group.pages
        for start in range(0, page.num_bytes, row_bytes)
    ]
    return np.ascontiguousarray(np.array(columns, dtype=np.int64).T)
