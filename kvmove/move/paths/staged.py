"""The staged path: the copy engine moves whole host blocks through a ring in GPU memory, a kernel distributes.

    load    host blocks --copy engine--> ring chunk --gather kernel--> slots
    store   slots --scatter kernel--> ring chunk --copy engine--> host blocks

The copy engine runs at the link's full rate whatever the page size, because a host block is one run of memory, and
the kernel only works inside the GPU, for microseconds. While chunk i is distributed, chunk i + 1 crosses the link.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from kvmove.move.hostpool import HostPool
from kvmove.move.indices import Span
from kvmove.move.layout import CacheLayout
from kvmove.move.paths.direct import PageKernels
from kvmove.move.runs import copy_runs, merge_runs

CHUNK_BYTES = 8 << 20
# The ring covers the longest kernel that can hold every SM, since priority does not preempt running programs:
# 96 MiB are 1.8 ms of PCIe Gen5 x16, and 8192^3 GEMMs in bf16 take 1.4 ms on an H200.
RING_BYTES = 96 << 20
# Distributing inside the GPU is short; more programs make it shorter, and it holds their SMs for microseconds.
DISTRIBUTE_PROGRAMS = 64


@dataclass(slots=True)
class _Chunk:
    """A place in the ring, and the events of its last use."""

    first_block: int  # of the ring
    filled: torch.cuda.Event | None  # None on a machine without CUDA
    freed: torch.cuda.Event | None


class _Ring:
    """Chunks of GPU memory that are used in turn, with the stream that fills (loads) or empties (stores) them."""

    def __init__(self, layout: CacheLayout, ring_bytes: int, chunk_bytes: int) -> None:
        block_bytes = layout.host_block_bytes
        self.chunk_blocks = max(1, chunk_bytes // block_bytes)
        num_chunks = max(2, ring_bytes // (self.chunk_blocks * block_bytes))
        num_blocks = num_chunks * self.chunk_blocks
        on_cuda = layout.device.type == "cuda"
        self._memory = torch.empty(num_blocks * block_bytes, dtype=torch.uint8, device=layout.device)
        self.base, self.block_bytes = self._memory.data_ptr(), block_bytes
        self._numbers = torch.arange(num_blocks, dtype=torch.int64, device=layout.device)
        self.stream = torch.cuda.Stream(layout.device) if on_cuda else None
        event = torch.cuda.Event if on_cuda else (lambda: None)
        self._chunks = [_Chunk(i * self.chunk_blocks, event(), event()) for i in range(num_chunks)]
        self._next = 0
        self.kernels = PageKernels(layout, self.base)
        self.kernels.compile()

    def take(self) -> _Chunk:
        chunk = self._chunks[self._next]
        self._next = (self._next + 1) % len(self._chunks)
        return chunk

    def numbers_address(self, chunk: _Chunk) -> int:
        """Where kernels read the numbers of the chunk's blocks."""
        return self._numbers.data_ptr() + 8 * chunk.first_block

    def addresses(self, chunk: _Chunk, count: int) -> NDArray[np.int64]:
        return self.base + (chunk.first_block + np.arange(count, dtype=np.int64)) * self.block_bytes


class StagedPath:
    """Best for bulk. Loads and stores have a ring each, since the link carries both directions at once."""

    name = "staged"

    def __init__(
        self, layout: CacheLayout, pool: HostPool, *, ring_bytes: int = RING_BYTES, chunk_bytes: int = CHUNK_BYTES
    ) -> None:
        self._pool, self._payload_bytes = pool, layout.block_bytes
        self._loads = _Ring(layout, ring_bytes, chunk_bytes)
        self._stores = _Ring(layout, ring_bytes, chunk_bytes)

    def load(self, span: Span, count: int, programs: int, stream: torch.cuda.Stream | None) -> None:
        ring = self._loads
        if stream is not None and ring.stream is not None:
            ring.stream.wait_stream(stream)  # the load's dependencies were put on its own stream
        for at in range(0, count, ring.chunk_blocks):
            chunk, size = ring.take(), min(ring.chunk_blocks, count - at)
            _wait(ring.stream, chunk.freed)
            host, places, sizes = self._host_runs(ring, chunk, span.array[at : at + size])
            copy_runs(places, host, sizes, ring.stream)
            _record(chunk.filled, ring.stream)
            _wait(stream, chunk.filled)
            slots = span.address + 8 * (count + at)
            ring.kernels.gather(ring.numbers_address(chunk), slots, size, DISTRIBUTE_PROGRAMS, stream)
            _record(chunk.freed, stream)

    def store(self, span: Span, count: int, programs: int, stream: torch.cuda.Stream | None) -> None:
        ring = self._stores
        for at in range(0, count, ring.chunk_blocks):
            chunk, size = ring.take(), min(ring.chunk_blocks, count - at)
            _wait(stream, chunk.freed)
            slots = span.address + 8 * (count + at)
            ring.kernels.scatter(ring.numbers_address(chunk), slots, size, DISTRIBUTE_PROGRAMS, stream)
            _record(chunk.filled, stream)
            _wait(ring.stream, chunk.filled)
            host, places, sizes = self._host_runs(ring, chunk, span.array[at : at + size])
            copy_runs(host, places, sizes, ring.stream)
            _record(chunk.freed, ring.stream)
        if stream is not None and ring.stream is not None:
            stream.wait_stream(ring.stream)  # the store ends on its own stream

    def _host_runs(
        self, ring: _Ring, chunk: _Chunk, blocks: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Host addresses, ring addresses and sizes; neighbouring host blocks become one run where none is padded."""
        host = self._pool.address + blocks * self._pool.block_bytes
        sizes = np.full(len(blocks), self._payload_bytes, dtype=np.int64)
        return merge_runs(host, ring.addresses(chunk, len(blocks)), sizes, self._pool.piece_ends)


def _record(event: torch.cuda.Event | None, stream: torch.cuda.Stream | None) -> None:
    if event is not None and stream is not None:
        event.record(stream)


def _wait(stream: torch.cuda.Stream | None, event: torch.cuda.Event | None) -> None:
    """Waiting for an event that was never recorded is over at once, so a chunk's first use needs no exception."""
    if event is not None and stream is not None:
        stream.wait_event(event)
