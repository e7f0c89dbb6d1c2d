"""The staged path: the copy engine moves whole host blocks through a ring in GPU memory, a kernel distributes.

    load    host blocks --copy engine--> ring section --gather kernel--> slots
    store   slots --scatter kernel--> ring section --copy engine--> host blocks

The copy engine runs at the link's full rate whatever the page size, because a host block is one run of memory, and
the kernel only works inside the GPU, for microseconds. While section i is distributed, section i + 1 crosses the link.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from kvmove.move.hostpool import HostPool
from kvmove.move.indices import Pairs
from kvmove.move.layout import CacheLayout, Group
from kvmove.move.pages import HOST_ALIGN_BYTES
from kvmove.move.paths.direct import PageKernels
from kvmove.move.runs import copy_runs, merge_runs

# A section is one call of the copy engine. On an H200, loads of 768 MiB in blocks of 1.5 MiB reach 0.90 of contiguous
# DMA with sections of 8 MiB, 0.94 with 16 and 0.96 with 32: what is lost is lost between calls. What follows the last
# section has nothing to overlap with, so that one is a quarter.
SECTION_BYTES = 32 << 20
# The ring has to cover the longest kernel that can hold every SM, since priority does not preempt running programs:
# 96 MiB are 1.8 ms of PCIe Gen5 x16, and 8192^3 GEMMs in bf16 take 1.4 ms on an H200. One section more is being filled.
RING_BYTES = 128 << 20
# Distributing inside the GPU is short; more programs make it shorter, and it holds their SMs for microseconds.
DISTRIBUTE_PROGRAMS = 64


@dataclass(slots=True)
class _Section:
    """A place in the ring, and the events of its last use."""

    number: int
    stream: torch.cuda.Stream | None  # of the copy engine; None on a machine without CUDA
    filled: torch.cuda.Event | None
    freed: torch.cuda.Event | None


class _Ring:
    """Sections of GPU memory that are used in turn, by blocks of any group.

    Neighbouring sections use two streams of the copy engine in turn: while one call ends, the next is queued already.
    """

    def __init__(self, layout: CacheLayout, ring_bytes: int, section_bytes: int) -> None:
        self._section_blocks = [max(1, section_bytes // g.sub_bytes) for g in layout.groups]
        # Whole blocks of each group, where one is larger than a section is to be.
        used = [n * g.sub_bytes for n, g in zip(self._section_blocks, layout.groups, strict=True)]
        self._section_bytes = max(used)
        num_sections = max(2, ring_bytes // self._section_bytes // 2 * 2)  # even: streams take turns
        on_cuda = layout.device.type == "cuda"
        self._memory = torch.empty(num_sections * self._section_bytes, dtype=torch.uint8, device=layout.device)
        self._base = self._memory.data_ptr()
        self.streams = [torch.cuda.Stream(layout.device) for _ in range(2)] if on_cuda else [None]
        event = torch.cuda.Event if on_cuda else (lambda: None)
        self._sections = [
            _Section(i, self.streams[i % len(self.streams)], event(), event()) for i in range(num_sections)
        ]
        self._next = 0
        # Where kernels find the blocks of each section: the places are the same for every job.
        self._positions = [
            torch.from_numpy(
                np.add.outer(
                    np.arange(num_sections, dtype=np.int64) * (self._section_bytes // HOST_ALIGN_BYTES),
                    np.arange(count, dtype=np.int64) * (group.sub_bytes // HOST_ALIGN_BYTES),
                )
            ).to(layout.device)
            for count, group in zip(self._section_blocks, layout.groups, strict=True)
        ]
        self.kernels = [PageKernels(g, self._base, HOST_ALIGN_BYTES, layout.device) for g in layout.groups]
        for kernels in self.kernels:
            kernels.compile()

    def section(self) -> _Section:
        """The next section in turn; its events say when it is free. For one thread at a time, as the mover sees to."""
        section = self._sections[self._next]
        self._next = (self._next + 1) % len(self._sections)
        return section

    def address(self, section: _Section) -> int:
        """Where the section begins."""
        return self._base + section.number * self._section_bytes

    def positions_address(self, group: int, section: _Section) -> int:
        """Where kernels read the positions of the section's blocks of a group."""
        return self._positions[group].data_ptr() + 8 * section.number * self._section_blocks[group]

    def pieces(self, group: int, count: int) -> Iterator[tuple[int, int]]:
        """Cut `count` blocks of a group into ranges that fit a section."""
        most = self._section_blocks[group]
        tail = most // 4
        begin = 0
        while begin < count:
            size = min(most, count - begin)
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

    def __init__(
        self, layout: CacheLayout, pool: HostPool, *, ring_bytes: int = RING_BYTES, section_bytes: int = SECTION_BYTES
    ) -> None:
        self._pool, self._groups = pool, layout.groups
        self._loads = _Ring(layout, ring_bytes, section_bytes)
        self._stores = _Ring(layout, ring_bytes, section_bytes)

    def load(self, pairs: Sequence[Pairs], programs: int, stream: torch.cuda.Stream | None) -> None:
        ring = self._loads
        ring.wait_for(stream)  # the load's dependencies were put on its own stream
        for p in pairs:
            group = self._groups[p.group]
            # Padding goes along, so that neighbours are one run; in the ring it disturbs nobody.
            runs = _HostRuns(self._pool, group, p.positions, group.sub_bytes)
            for begin, end in ring.pieces(p.group, len(p.slots)):
                section = ring.section()
                host, places, sizes = runs.merged(begin, end, ring.address(section))
                _wait(section.stream, section.freed)
                copy_runs(places, host, sizes, section.stream, source_rests=p.host_rests)
                _record(section.filled, section.stream)
                _wait(stream, section.filled)
                positions, slots = ring.positions_address(p.group, section), p.slots_address + 8 * begin
                ring.kernels[p.group].gather(positions, slots, end - begin, DISTRIBUTE_PROGRAMS, stream)
                _record(section.freed, stream)

    def store(self, pairs: Sequence[Pairs], programs: int, stream: torch.cuda.Stream | None) -> None:
        ring = self._stores
        for p in pairs:
            group = self._groups[p.group]
            runs = _HostRuns(self._pool, group, p.positions, group.block_bytes)
            for begin, end in ring.pieces(p.group, len(p.slots)):
                section = ring.section()
                _wait(stream, section.freed)
                positions, slots = ring.positions_address(p.group, section), p.slots_address + 8 * begin
                ring.kernels[p.group].scatter(positions, slots, end - begin, DISTRIBUTE_PROGRAMS, stream)
                _record(section.filled, stream)
                host, places, sizes = runs.merged(begin, end, ring.address(section))
                _wait(section.stream, section.filled)
                copy_runs(host, places, sizes, section.stream)
                _record(section.freed, section.stream)
        ring.let_wait(stream)  # the store ends on its own stream


class _HostRuns:
    """Blocks in the host pool as runs of memory, computed for all of a group at once."""

    def __init__(self, pool: HostPool, group: Group, positions: NDArray[np.int64], num_bytes: int) -> None:
        self._host = pool.address + positions * group.unit_bytes
        self._offsets = np.arange(len(positions), dtype=np.int64) * group.sub_bytes
        self._sizes = np.full(len(positions), num_bytes, dtype=np.int64)
        self._borders = pool.piece_ends

    def merged(
        self, begin: int, end: int, place: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Host addresses, addresses from `place` on, and sizes of blocks [begin, end).

        Neighbours in the pool become one run, where nothing lies between them that does not go along.
        """
        ring = self._offsets[: end - begin] + place
        return merge_runs(self._host[begin:end], ring, self._sizes[begin:end], self._borders)


def _record(event: torch.cuda.Event | None, stream: torch.cuda.Stream | None) -> None:
    if event is not None and stream is not None:
        event.record(stream)


def _wait(stream: torch.cuda.Stream | None, event: torch.cuda.Event | None) -> None:
    """Waiting for an event that was never recorded is over at once, so a section's first use needs no exception."""
    if event is not None and stream is not None:
        stream.wait_event(event)
