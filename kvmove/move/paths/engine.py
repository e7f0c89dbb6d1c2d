"""The engine path: the copy engine moves pages straight between host blocks and slots, one descriptor a run."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from kvmove.move.hostpool import HostPool
from kvmove.move.indices import Pairs
from kvmove.move.layout import CacheLayout, Group
from kvmove.move.runs import copy_runs, merge_runs


class EnginePath:
    """Best where pages are large, or where a block is one page (cross-layer caches): a descriptor costs about 4 us."""

    name = "engine"

    def __init__(self, layout: CacheLayout, pool: HostPool) -> None:
        self._pool = pool
        self._tables = [_PageTable(group) for group in layout.groups]

    def load(self, pairs: Sequence[Pairs], programs: int, stream: torch.cuda.Stream | None) -> None:
        for p in pairs:
            host, slots, sizes = self._runs(p)
            copy_runs(slots, host, sizes, stream, source_rests=p.host_rests)

    def store(self, pairs: Sequence[Pairs], programs: int, stream: torch.cuda.Stream | None) -> None:
        for p in pairs:
            host, slots, sizes = self._runs(p)
            copy_runs(host, slots, sizes, stream)

    def _runs(self, pairs: Pairs) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Host addresses, slot addresses and sizes of the fewest runs that make up the copy."""
        table = self._tables[pairs.group]
        positions, slots = pairs.positions[:, None], pairs.slots[:, None]
        host = (self._pool.address + positions * table.unit_bytes + table.offset).reshape(-1)
        cache = (table.slot_base + slots * table.slot_stride).reshape(-1)
        sizes = np.broadcast_to(table.num_bytes, (len(positions), len(table.num_bytes))).reshape(-1)
        return merge_runs(host, cache, sizes, self._pool.piece_ends)


class _PageTable:
    """The pages of a group as arrays, int64 (pages,)."""

    def __init__(self, group: Group) -> None:
        self.unit_bytes = group.unit_bytes
        self.slot_base = np.array([p.address for p in group.pages], dtype=np.int64)
        self.slot_stride = np.array([p.slot_stride_bytes for p in group.pages], dtype=np.int64)
        self.offset = np.array([p.host_offset_bytes for p in group.pages], dtype=np.int64)
        self.num_bytes = np.array([p.num_bytes for p in group.pages], dtype=np.int64)
