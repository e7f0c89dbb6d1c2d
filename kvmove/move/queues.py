"""Where work runs and in which order: CUDA streams, or the calling thread on a machine without CUDA.

A mover submits work to one of three queues and gets a `Mark` of its end, which it gives back with `recycle` once
the end was seen. Work in one queue runs in the order of its submission; work in different queues is ordered only by
the marks it is told to come after. Nothing here blocks the host except `Mark.synchronize` and `Queues.drain`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from enum import IntEnum
from typing import Protocol

import torch

from kvmove.move import cudart


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

    def queued_ns(self) -> int | None:
        """From where the caller's stream was (`Queues.here`) to the start of the marked work, once done; or None."""


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

    def recycle(self, mark: Mark) -> None:
        """The mark of a submission that ended; nobody will ask about it again."""

    def drain(self) -> None:
        """Block the host until everything submitted has ended. Raises RuntimeError when the device failed."""


class CudaMark:
    """The end of a piece of work on a stream, with its start for the elapsed time.

    Attributes:
        is_point: where the caller's stream was; its event is used again once nothing in flight has it as its origin.
        origin: the point that the marked work came after; `uses` counts those works, for a point.
    """

    __slots__ = ("end", "is_point", "origin", "start", "uses")

    def __init__(self, end: torch.cuda.Event, start: torch.cuda.Event | None = None, *, is_point: bool = False) -> None:
        self.end, self.start, self.is_point = end, start, is_point
        self.origin: CudaMark | None = None
        self.uses = 0

    def done(self) -> bool:
        with cudart.beside_captures():
            return bool(self.end.query())

    def synchronize(self) -> None:
        with cudart.beside_captures():
            self.end.synchronize()

    def elapsed_ns(self) -> int | None:
        return None if self.start is None else round(self.start.elapsed_time(self.end) * 1e6)

    def queued_ns(self) -> int | None:
        if self.start is None or self.origin is None:
            return None
        return max(0, round(float(self.origin.end.elapsed_time(self.start)) * 1e6))


class CudaQueues:
    """One stream a queue; expedited loads have the highest priority that the device offers.

    Events are made once and used again: making one costs more than recording it.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = torch.device("cuda", torch.cuda.current_device() if device.index is None else device.index)
        with torch.cuda.device(self.device):
            priority = {Queue.EXPEDITED: -1, Queue.BULK: 0, Queue.STORE: 0}  # lower goes first
            self.streams = {queue: torch.cuda.Stream(self.device, priority=p) for queue, p in priority.items()}
        self._engine_streams: dict[int, torch.cuda.Stream] = {}  # by handle; an engine has a few
        self._spare: list[CudaMark] = []
        self._spare_points: list[CudaMark] = []

    def _engine_stream(self) -> torch.cuda.Stream:
        # torch.cuda.current_stream builds an object each time, which takes several times what recording does.
        handle = torch._C._cuda_getCurrentRawStream(self.device.index)
        stream = self._engine_streams.get(handle)
        if stream is None:
            stream = self._engine_streams[handle] = torch.cuda.current_stream(self.device)
        return stream

    def here(self) -> CudaMark:
        point = self._spare_points.pop() if self._spare_points else _new_point()
        point.end.record(self._engine_stream())
        return point

    def at(self, event: torch.cuda.Event) -> CudaMark:
        return CudaMark(event)

    def submit(self, queue: Queue, after: Iterable[Mark], work: Work) -> CudaMark:
        stream = self.streams[queue]
        if torch.cuda.current_device() != self.device.index:
            with torch.cuda.device(self.device):  # launches need the stream's device to be current
                return self._submit(stream, after, work)
        return self._submit(stream, after, work)

    def _submit(self, stream: torch.cuda.Stream, after: Iterable[Mark], work: Work) -> CudaMark:
        mark = self._spare.pop() if self._spare else _new_mark()
        assert mark.start is not None
        for one in after:
            assert isinstance(one, CudaMark)
            stream.wait_event(one.end)
            if one.is_point:
                mark.origin = one
                one.uses += 1
        mark.start.record(stream)
        work(stream)
        mark.end.record(stream)
        return mark

    def wait(self, mark: Mark) -> None:
        assert isinstance(mark, CudaMark)
        self._engine_stream().wait_event(mark.end)

    def recycle(self, mark: Mark) -> None:
        assert isinstance(mark, CudaMark)
        point, mark.origin = mark.origin, None
        if point is not None:
            point.uses -= 1
            if not point.uses:
                self._spare_points.append(point)
        self._spare.append(mark)

    def drain(self) -> None:
        for stream in self.streams.values():
            stream.synchronize()


def _new_point() -> CudaMark:
    return CudaMark(torch.cuda.Event(enable_timing=True), is_point=True)


def _new_mark() -> CudaMark:
    return CudaMark(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True))


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

    def queued_ns(self) -> int | None:
        return None if self._elapsed_ns is None else 0


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

    def recycle(self, mark: Mark) -> None:
        return

    def drain(self) -> None:
        return


def queues_for(device: torch.device) -> Queues:
    """The queues of a device: CUDA streams, or none on the CPU."""
    return CudaQueues(device) if device.type == "cuda" else HostQueues()
