"""Index arrays that kernels read in place: one ring, allocated once, recycled when a job's end was seen."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvmove.errors import MoverBusy, Refused
from kvmove.move.hostpool import HostMemory


@dataclass(frozen=True, slots=True)
class Span:
    """A copy of `length` indices that stays as it is until the span is recycled."""

    array: NDArray[np.int64]  # (length,)
    address: int  # of the same numbers, as kernels see them


@dataclass(slots=True)
class Pairs:
    """What one launch copies: the block at `positions[i]` of the pool and the one in slot `slots[i]`, of one group."""

    group: int
    positions: NDArray[np.int64]  # (blocks,), in units of the group's `unit_bytes`
    slots: NDArray[np.int64]  # (blocks,)
    positions_address: int  # of the same numbers, as kernels see them
    slots_address: int
    host_rests: bool = False  # nothing in flight writes these blocks of the pool


class IndexRing:
    """Hands out spans of one buffer in order, and takes them back in the same order."""

    def __init__(self, capacity: int, *, pinned: bool) -> None:
        self.capacity = capacity
        self._memory = HostMemory(capacity * 8, pinned=pinned)
        self._buffer = self._memory.array.view(np.int64)
        self._taken: deque[tuple[int, int, int]] = deque()  # (job number, begin, end), oldest first
        self._ended: set[int] = set()  # job numbers that ended before an older one did

    @property
    def in_flight(self) -> int:
        return sum(end - begin for _, begin, end in self._taken)

    def take(self, number: int, values: list[NDArray[np.int64]]) -> Span:
        """Copy `values`, one after the other, into a span that job `number` keeps.

        Raises:
            Refused: they can never fit.
            MoverBusy: they do not fit while other jobs are in flight.
        """
        length = sum(len(v) for v in values)
        begin = self._find(length)
        span = self._buffer[begin : begin + length]
        np.concatenate(values, out=span)
        self._taken.append((number, begin, begin + length))
        return Span(span, self._memory.device_address + 8 * begin)

    def _find(self, length: int) -> int:
        if length > self.capacity:
            raise Refused(
                f"{length} indices in one job, and the mover's index ring holds {self.capacity}; "
                "split the call, or make the mover with a larger index_capacity"
            )
        if not self._taken:
            return 0
        head, tail = self._taken[-1][2], self._taken[0][1]
        # Free is [head, capacity) and [0, tail), or [head, tail) once the ring has wrapped.
        if head <= tail and length > tail - head:
            begin = None
        elif head <= tail or length <= self.capacity - head:
            begin = head
        else:
            begin = 0 if length <= tail else None
        if begin is None:
            raise MoverBusy(
                f"{length} indices do not fit: {self.in_flight} of {self.capacity} are in use by jobs in flight; "
                "call mover.finished() and try again, or make the mover with a larger index_capacity"
            )
        return begin

    def give_back(self, number: int) -> None:
        """Job `number` has ended: its span can be used again, once those of all older jobs can."""
        self._ended.add(number)
        while self._taken and self._taken[0][0] in self._ended:
            self._ended.discard(self._taken.popleft()[0])

    def close(self) -> None:
        """Unpin the buffer."""
        self._memory.close()
