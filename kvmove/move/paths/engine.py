"""The engine path: the copy engine moves pages straight between host blocks and slots, one descriptor a run."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from kvmove.move.hostpool import HostPool
from kvmove.move.indices import Span
from kvmove.move.layout import CacheLayout
from kvmove.move.runs import copy_runs, merge_runs


class EnginePath:
    """Best where pages are large, or where a block is one page (cross-layer caches): a descriptor costs about 4 us."""

    name = "engine"
    in_pieces = False

    def __init__(self, layout: CacheLayout, pool: HostPool) -> None:
        self._pool = pool
        self._slot_base = np.array([p.address for p in layout.pages], dtype=np.int64)
        self._slot_stride = np.array([p.slot_stride_bytes for p in layout.pages], dtype=np.int64)
        self._offset = np.array([p.host_offset_bytes for p in layout.pages], dtype=np.int64)
        self._bytes = np.array([p.num_bytes for p in layout.pages], dtype=np.int64)

    def load(self, span: Span, count: int, programs: int, stream: torch.cuda.Stream | None) -> None:
        host, slots, sizes = self._runs(span, count)
        copy_runs(slots, host, sizes, stream)

    def store(self, span: Span, count: int, programs: int, stream: torch.cuda.Stream | None) -> None:
        host, slots, sizes = self._runs(span, count)
        copy_runs(host, slots, sizes, stream)

    def _runs(self, span: Span, count: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Host addresses, slot addresses and sizes of the fewest runs that make up the copy."""
        blocks, slots = span.array[:count, None], span.array[count:, None]
        host = (self._pool.address + blocks * self._pool.block_bytes + self._offset).reshape(-1)
        cache = (self._slot_base + slots * self._slot_stride).reshape(-1)
        sizes = np.broadcast_to(self._bytes, (count, len(self._bytes))).reshape(-1)
        return merge_runs(host, cache, sizes, self._pool.piece_ends)
