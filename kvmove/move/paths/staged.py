"""The staged path: the copy engine moves whole host blocks through a ring in GPU memory, a kernel distributes.

    load    host blocks --copy engine--> ring chunk --gather kernel--> slots
    store   slots --scatter kernel--> ring chunk --copy engine--> host blocks

The copy engine runs at the link's full rate whatever the page size, because a host block is one run of memory, and
the kernel only works inside the GPU, for microseconds. While chunk i is distributed, chunk i + 1 crosses the link.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from kvmove.move.hostpool import HostPool
from kvmove.move.indices import Span
from kvmove.move.layout import CacheLayout
from kvmove.move.paths.direct import PageKernels
from kvmove.move.runs import copy_runs, merge_runs

# A chunk is one call of the copy engine. On an H200, loads of 768 MiB in blocks of 1.5 MiB reach 0.90 of contiguous
# DMA with chunks of 8 MiB, 0.94 with 16 and 0.96 with 32: what is lost is lost between calls. What follows the last
# chunk has nothing to overlap with, so that one is a quarter.
CHUNK_BYTES = 32 << 20
# The ring has to cover the longest kernel that can hold every SM, since priority does not preempt running programs:
# 96 MiB are 1.8 ms of PCIe Gen5 x16, and 8192^3 GEMMs in bf16 take 1.4 ms on an H200. One chunk more is being filled.
RING_BYTES = 128 << 20
# Distributing inside the GPU is short; more programs make it shorter, and it holds their SMs for microseconds.
DISTRIBUTE_PROGRAMS = 64


@dataclass(slots=True)
class _Chunk:
    """A place in the ring, and the events of its last use."""

    first_block: int  # of the ring
    stream: torch.cuda.Stream | None  # of the copy engine; None on a machine without CUDA
    filled: torch.cuda.Event | None
    freed: torch.cuda.Event | None


class _Ring:
    """Chunks of GPU memory that are used in turn.

    Neighbouring chunks use two streams of the copy engine in turn: while one call ends, the next is queued already.
    """

    def __init__(self, layout: CacheLayout, ring_bytes: int, chunk_bytes: int) -> None:
        block_bytes = layout.host_block_bytes
        self.chunk_blocks = max(1, chunk_bytes // block_bytes)
        num_chunks = max(2, ring_bytes // (self.chunk_blocks * block_bytes) // 2 * 2)  # even: streams take turns
        num_blocks = num_chunks * self.chunk_blocks
        on_cuda = layout.device.type == "cuda"
        self._memory = torch.empty(num_blocks * block_bytes, dtype=torch.uint8, device=layout.device)
        self.base, self.block_bytes = self._memory.data_ptr(), block_bytes
        self._numbers = torch.arange(num_blocks, dtype=torch.int64, device=layout.device)
        self.streams = [torch.cuda.Stream(layout.device) for _ in range(2)] if on_cuda else [None]
        event = torch.cuda.Event if on_cuda else (lambda: None)
        self._chunks = [
            _Chunk(i * self.chunk_blocks, self.streams[i % len(self.streams)], event(), event())
            for i in range(num_chunks)
        ]
        self._next = 0
        self._lock = threading.Lock()
        self.kernels = PageKernels(layout, self.base)
        self.kernels.compile()

    @contextmanager
    def chunk(self) -> Iterator[_Chunk]:
        """The next chunk, for one thread: its events say when it is free, not whose turn it is."""
        with self._lock:
            chunk = self._chunks[self._next]
            self._next = (self._next + 1) % len(self._chunks)
            yield chunk

    def numbers_address(self, chunk: _Chunk) -> int:
        """Where kernels read the numbers of the chunk's blocks."""
        return self._numbers.data_ptr() + 8 * chunk.first_block

    def pieces(self, count: int) -> Iterator[tuple[int, int]]:
        """Cut `count` blocks into ranges that fit a chunk."""
        tail = self.chunk_blocks // 4
        begin = 0
        while begin < count:
            size = min(self.chunk_blocks, count - begin)
            if begin + size == count and size > 2 * tail > 0:
                size -= tail
            yield begin, begin + size
            begin += size

    def wait_for(self, stream: torch.cuda.Stream | None) -> None:
        """Let the copy engine's streams come after what `stream` holds now."""
        for own in self.streams:
            if own is not None and stream is not None:
                own.wait_stream(stream)

    def let_wait(self, stream: torch.cuda.Stream | None) -> None:
        """Let `stream` come after what the copy engine's streams hold now."""
        for own in self.streams:
            if own is not None and stream is not None:
                stream.wait_stream(own)


class StagedPath:
    """Best for bulk. Loads and stores have a ring each, since the link carries both directions at once."""

    name = "staged"
    in_pieces = True

    def __init__(
        self, layout: CacheLayout, pool: HostPool, *, ring_bytes: int = RING_BYTES, chunk_bytes: int = CHUNK_BYTES
    ) -> None:
        self._pool, self._payload_bytes = pool, layout.block_bytes
        self._loads = _Ring(layout, ring_bytes, chunk_bytes)
        self._stores = _Ring(layout, ring_bytes, chunk_bytes)

    def load(self, span: Span, count: int, programs: int, stream: torch.cuda.Stream | None) -> Iterator[Any]:
        ring = self._loads
        runs = _HostRuns(self._pool, span.array[:count], self._payload_bytes)
        slots = span.address + 8 * count
        ring.wait_for(stream)  # the load's dependencies were put on its own stream
        for begin, end in ring.pieces(count):
            with ring.chunk() as chunk:
                host, places, sizes = runs.merged(begin, end, ring.base + chunk.first_block * ring.block_bytes)
                _wait(chunk.stream, chunk.freed)
                copy_runs(places, host, sizes, chunk.stream)
                _record(chunk.filled, chunk.stream)
                _wait(stream, chunk.filled)
                numbers = ring.numbers_address(chunk)
                ring.kernels.gather(numbers, slots + 8 * begin, end - begin, DISTRIBUTE_PROGRAMS, stream)
                _record(chunk.freed, stream)
            yield chunk.filled

    def store(self, span: Span, count: int, programs: int, stream: torch.cuda.Stream | None) -> Iterator[Any]:
        ring = self._stores
        runs = _HostRuns(self._pool, span.array[:count], self._payload_bytes)
        slots = span.address + 8 * count
        for begin, end in ring.pieces(count):
            with ring.chunk() as chunk:
                _wait(stream, chunk.freed)
                numbers = ring.numbers_address(chunk)
                ring.kernels.scatter(numbers, slots + 8 * begin, end - begin, DISTRIBUTE_PROGRAMS, stream)
                _record(chunk.filled, stream)
                host, places, sizes = runs.merged(begin, end, ring.base + chunk.first_block * ring.block_bytes)
                _wait(chunk.stream, chunk.filled)
                copy_runs(host, places, sizes, chunk.stream)
                _record(chunk.freed, chunk.stream)
            yield chunk.freed
        ring.let_wait(stream)  # the store ends on its own stream


class _HostRuns:
    """Host blocks as runs of memory, computed for a whole job at once."""

    def __init__(self, pool: HostPool, blocks: NDArray[np.int64], payload_bytes: int) -> None:
        self._host = pool.address + blocks * pool.block_bytes
        self._offsets = np.arange(len(blocks), dtype=np.int64) * pool.block_bytes
        self._sizes = np.full(len(blocks), payload_bytes, dtype=np.int64)
        self._borders = pool.piece_ends

    def merged(
        self, begin: int, end: int, place: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Host addresses, addresses from `place` on, and sizes of blocks [begin, end).

        Neighbouring host blocks become one run, where no padding lies between them.
        """
        ring = self._offsets[: end - begin] + place
        return merge_runs(self._host[begin:end], ring, self._sizes[begin:end], self._borders)


def _record(event: torch.cuda.Event | None, stream: torch.cuda.Stream | None) -> None:
    if event is not None and stream is not None:
        event.record(stream)


def _wait(stream: torch.cuda.Stream | None, event: torch.cuda.Event | None) -> None:
    """Waiting for an event that was never recorded is over at once, so a chunk's first use needs no exception."""
    if event is not None and stream is not None:
        stream.wait_event(event)
