"""The tma path: a kernel moves host blocks by tensor descriptors, so that one or two programs saturate the link."""

from __future__ import annotations

from functools import reduce
from math import gcd
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from kvmove.errors import Refused
from kvmove.move.hostpool import HostPool
from kvmove.move.layout import CacheLayout, Group
from kvmove.move.paths.direct import GroupKernels, KernelPath

# Tensor descriptors are a feature of Hopper and later.
LEAST_CAPABILITY = (9, 0)


class TmaPath(KernelPath):
    """As the direct path, with the fewest programs: for engines that want every SM, and caches in multiples of 16 B.

    Named, never chosen: with as many programs as a lane has, it was not measured beside the direct path.
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
        super().__init__([TileKernels(g, pool, layout.device) for g in layout.groups])


class TileKernels(GroupKernels):
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
        table = torch.from_numpy(_row_table(group, grid.grain_bytes, grid.tiles * grid.rows)).to(device)
        base: Any = tiles.PoolMemory(pool.device_address, torch.int64)
        if pages.INTERPRETED:
            base = pool.blocks.view(-1).view(torch.int64)  # the interpreter wants a tensor
        copy = tiles.TileCopy(
            host=base,
            num_positions=pool.num_blocks * pool.block_bytes // group.unit_bytes,
            unit_bytes=group.unit_bytes,
            block_bytes=group.sub_bytes,
            table_address=table.data_ptr(),
            grid=grid,
        )
        super().__init__(tiles.gather_tiles, tiles.scatter_tiles, copy, table)


def _row_table(group: Group, grain_bytes: int, rows: int) -> NDArray[np.int64]:
    """The table of `kvmove.kernels.tiles`: int64 (2, rows), 0 past the block's end."""
    table = np.zeros((2, rows), dtype=np.int64)
    for page in group.pages:
        first, count = page.host_offset_bytes // grain_bytes, page.num_bytes // grain_bytes
        table[0, first : first + count] = page.address + np.arange(count, dtype=np.int64) * grain_bytes
        table[1, first : first + count] = page.slot_stride_bytes
    return table
