"""Copies that follow each other while something else is measured."""

from __future__ import annotations

from typing import Protocol

from kvmove.bench.ceiling import Ceiling
from kvmove.bench.device import Stretch
from kvmove.bench.workbench import Workbench, device_ns
from kvmove.records import Lane


class Traffic(Protocol):
    """A source of equal copies to the device, each queued behind the one before.

    Attributes:
        copy_bytes: bytes of one copy.
    """

    copy_bytes: int

    def start(self) -> None:
        """Queue one more copy."""

    def ended_ns(self) -> list[float]:
        """Device time of each copy that has ended, oldest first, as far as is known now. Does not block."""

    def in_flight(self) -> bool:
        """Whether the last copy is still under way."""

    def drain_ns(self) -> list[float]:
        """Block until all have ended; device time of each, oldest first. The next copy is the first again."""


class DmaTraffic:
    """Contiguous DMA."""

    def __init__(self, ceiling: Ceiling, copy_bytes: int) -> None:
        self.copy_bytes = copy_bytes
        self._ceiling = ceiling
        self._started: list[Stretch] = []

    def start(self) -> None:
        self._started.append(self._ceiling.device.start("copy", self._ceiling.load(self.copy_bytes)))

    def ended_ns(self) -> list[float]:
        return [s.wait() for s in self._started if s.done()]

    def in_flight(self) -> bool:
        return bool(self._started) and not self._started[-1].done()

    def drain_ns(self) -> list[float]:
        times = [s.wait() for s in self._started]
        self._started.clear()
        return times


class BulkTraffic:
    """Bulk loads of random blocks of [begin, end), by one path or (None) by the mover's choice."""

    def __init__(self, bench: Workbench, count: int, path: str | None, end: int, begin: int = 0) -> None:
        self.copy_bytes = count * bench.shape.block_bytes
        self._bench, self._count, self._path, self._between = bench, count, path, (begin, end)
        self._jobs: list[int] = []

    def start(self) -> None:
        load = self._bench.next_load(self._count, Lane.BULK, *self._between)
        self._bench.submit(load, self._path)
        self._jobs.append(load.job)

    def ended_ns(self) -> list[float]:
        results = [self._bench.ended(job) for job in self._jobs]
        return [device_ns(r) for r in results if r is not None and r.error is None]

    def in_flight(self) -> bool:
        return bool(self._jobs) and self._bench.ended(self._jobs[-1]) is None

    def drain_ns(self) -> list[float]:
        times = [device_ns(self._bench.await_end(job)) for job in self._jobs]
        self._jobs.clear()
        return times
