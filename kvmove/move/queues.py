"""Where work runs and in which order: CUDA streams, or the calling thread on a machine without CUDA.

A mover submits work to one of three queues and gets a `Mark` of its end. Work in one queue runs in the order
of its submission; work in different queues is ordered only by the marks it is told to come after. Nothing
here blocks the host except `Mark.synchronize` and `Queues.drain`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from enum import IntEnum
from typing import Protocol

import torch


class Queue(IntEnum):
    """The mover's queues. Loads of the two lanes never queue behind each other; stores have their own."""

    EXPEDITED = 0
    BULK = 1
    STORE = 2


Work = Callable[["torch.cuda.Stream | None"], None]  # launches on the stream it is given; None: runs at once


class Mark(Protocol):
    """A point in a queue. Everything submitted to that queue before it is done when the mark is."""

    def done(self) -> bool:
        """Whether the point was reached. Raises RuntimeError when the device failed."""

    def synchronize(self) -> None:
        """Block the host until the point is reached. Raises RuntimeError when the device failed."""

    def elapsed_ns(self) -> int | None:
        """From the start of the marked work to its end, once done; None when it was not measured."""


class Queues(Protocol):
    """What a mover needs of a device."""

    def here(self) -> Mark:
        """The point that the caller's own stream has reached."""

    def at(self, event: torch.cuda.Event) -> Mark:
        """The point of a recorded event."""

    def submit(self, queue: Queue, after: Iterable[Mark], work: Work) -> Mark:
        """Run `work` in `queue` after the marks. Raises what it raises."""

    def wait(self, mark: Mark) -> None:
        """Let the caller's stream wait for the mark, without blocking the host."""

    def drain(self) -> None:
        """Block the host until everything submitted has ended. Raises RuntimeError when the device failed."""


class CudaMark:
    """The end of a piece of work on a stream, with its start for the elapsed time."""

    __slots__ = ("end", "start")

    def __init__(self, end: torch.cuda.Event, start: torch.cuda.Event | None = None) -> None:
        self.end, self.start = end, start

    def done(self) -> bool:
        return bool(self.end.query())

    def synchronize(self) -> None:
        self.end.synchronize()

    def elapsed_ns(self) -> int | None:
        return None if self.start is None else round(self.start.elapsed_time(self.end) * 1e6)


class CudaQueues:
    """One stream a queue; expedited loads have the highest priority that the device offers."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        with torch.cuda.device(device):
            priority = {
                Queue.EXPEDITED: -1,  # -1 is high; torch maps it to the device's range
                Queue.BULK: 0,
                Queue.STORE: 0,
            }
            self.streams = {queue: torch.cuda.Stream(device, priority=p) for queue, p in priority.items()}

    def here(self) -> CudaMark:
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self.device))
        return CudaMark(event)

    def at(self, event: torch.cuda.Event) -> CudaMark:
        return CudaMark(event)

    def submit(self, queue: Queue, after: Iterable[Mark], work: Work) -> CudaMark:
        stream = self.streams[queue]
        for mark in after:
            assert isinstance(mark, CudaMark)
            stream.wait_event(mark.end)
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        # Launches need the stream's device to be current; switching costs, and is rarely needed.
        with nullcontext() if torch.cuda.current_device() == stream.device_index else torch.cuda.device(self.device):
            start.record(stream)
            work(stream)
            end.record(stream)
        return CudaMark(end, start)

    def wait(self, mark: Mark) -> None:
        assert isinstance(mark, CudaMark)
        torch.cuda.current_stream(self.device).wait_event(mark.end)

    def drain(self) -> None:
        for stream in self.streams.values():
            stream.synchronize()


class HostMark:
    """Work that ran in the calling thread and is done."""

    __slots__ = ("_elapsed_ns",)

    def __init__(self, elapsed_ns: int | None = None) -> None:
        self._elapsed_ns = elapsed_ns

    def done(self) -> bool:
        return True

    def synchronize(self) -> None:
        return

    def elapsed_ns(self) -> int | None:
        return self._elapsed_ns


class HostQueues:
    """No queues: work runs when it is submitted, so every order is kept."""

    def here(self) -> HostMark:
        return HostMark()

    def at(self, event: torch.cuda.Event) -> HostMark:
        return HostMark()

    def submit(self, queue: Queue, after: Iterable[Mark], work: Work) -> HostMark:
        began = time.perf_counter_ns()
        work(None)
        return HostMark(time.perf_counter_ns() - began)

    def wait(self, mark: Mark) -> None:
        return

    def drain(self) -> None:
        return


def queues_for(device: torch.device) -> Queues:
    """The queues of a device: CUDA streams, or none on the CPU."""
    return CudaQueues(device) if device.type == "cuda" else HostQueues()
