"""The tma path: a kernel moves host blocks by tensor descriptors, so that one or two programs saturate the link."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from math import gcd
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from kvmove.errors import Refused
from kvmove.move.hostpool import HostPool
from kvmove.move.indices import Pairs
from kvmove.move.layout import CacheLayout, Group

# Tensor descriptors are a feature of Hopper and later.
LEAST_CAPABILITY = (9, 0)


class TmaPath:
    """As the direct path, with the fewest programs: for engines that want every SM, and caches in multiples of 16 B.

    Named, never chosen: with the programs of a lane the direct path is as fast, and takes any cache.
    """

    name = "tma"

    def __init__(self, layout: CacheLayout, pool: HostPool) -> None:
        if layout.device.type == "cuda":
            found = torch.cuda.get_device_capability(layout.device)
            if found < LEAST_CAPABILITY:
                raise Refused(
                    f"the tma path needs compute capability 9.0 or later and {layout.device} has "
                    f"{found[0]}.{found[1]}; take the direct path"
                )
        self._kernels = [TileKernels(g, pool, layout.device) for g in layout.groups]
        for kernels in self._kernels:
            kernels.compile()

    def load(self, pairs: Sequence[Pairs], programs: int, stream: torch.cuda.Stream | None) -> None:
        for p in pairs:
            self._kernels[p.group].gather(p.positions_address, p.slots_address, len(p.slots), programs, stream)

    def store(self, pairs: Sequence[Pairs], programs: int, stream: torch.cuda.Stream | None) -> None:
        for p in pairs:
            self._kernels[p.group].scatter(p.positions_address, p.slots_address, len(p.slots), programs, stream)


class TileKernels:
    """The kernels of `kvmove.kernels.tiles` between one group's slots and the pool.

    Raises:
        Refused: Triton cannot run kernels on the device in this process, or not on this group.
    """

    def __init__(self, group: Group, pool: HostPool, device: torch.device) -> None:
        from kvmove.kernels import pages, tiles

        pages.refuse_device(device.type)
        if group.align_bytes < 16:
            raise Refused(
                f"group {group.index} has pages that are aligned to {group.align_bytes} bytes, and the tma path moves "
                "16 at once; take the direct path"
            )
        grain = reduce(gcd, (n for p in group.pages for n in (p.num_bytes, p.host_offset_bytes)), tiles.TILE_BYTES)
        grid = tiles.TileGrid.of(grain & -grain, group.sub_bytes, group.unit_bytes)
        if not grid.box_bytes:
            raise Refused(
                f"group {group.index} has blocks of {group.sub_bytes} bytes every {group.unit_bytes} bytes of the "
                f"pool; the tma path needs multiples of {tiles.LEAST_BOX_BYTES}. Take the direct path"
            )
        self._gather: Any = tiles.gather_tiles
        self._scatter: Any = tiles.scatter_tiles
        self._table = torch.from_numpy(_row_table(group, grid.grain_bytes, grid.tiles * grid.rows)).to(device)
        base: Any = tiles.PoolMemory(pool.device_address, torch.int64)
        if pages.INTERPRETED:
            base = pool.blocks.view(-1).view(torch.int64)  # the interpreter wants a tensor
        self._copy = tiles.TileCopy(
            host=base,
            num_positions=pool.num_blocks * pool.block_bytes // group.unit_bytes,
            unit_bytes=group.unit_bytes,
            block_bytes=group.sub_bytes,
            table_address=self._table.data_ptr(),
            grid=grid,
        )

    def gather(
        self, blocks_address: int, slots_address: int, count: int, programs: int, stream: torch.cuda.Stream | None
    ) -> None:
        """Blocks to slots; as `PageKernels.gather`."""
        handle = 0 if stream is None else stream.cuda_stream
        self._copy(self._gather, blocks_address, slots_address, count, programs=programs, stream=handle)

    def scatter(
        self, blocks_address: int, slots_address: int, count: int, programs: int, stream: torch.cuda.Stream | None
    ) -> None:
        """Slots to blocks."""
        handle = 0 if stream is None else stream.cuda_stream
        self._copy(self._scatter, blocks_address, slots_address, count, programs=programs, stream=handle)

    def compile(self) -> None:
        """As `PageKernels.compile`."""
        anywhere = self._table.data_ptr()
        self.gather(anywhere, anywhere, 0, 1, None)
        self.scatter(anywhere, anywhere, 0, 1, None)


def _row_table(group: Group, grain_bytes: int, rows: int) -> NDArray[np.int64]:
    """The table of `kvmove.kernels.tiles`: int64 (2, rows), 0 past the block's end."""
    table = np.zeros((2, rows), dtype=np.int64)
    for page in group.pages:
        first, count = page.host_offset_bytes // grain_bytes, page.num_bytes // grain_bytes
        table[0, first : first + count] = page.address + np.arange(count, dtype=np.int64) * grain_bytes
        table[1, first : first + count] = page.slot_stride_bytes
    return table
