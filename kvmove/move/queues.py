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

from kvmove.move.feeder import FedMark, Feeder, Pieces


class Queue(IntEnum):
    """The mover's queues. Loads of the two lanes never queue behind each other; stores have their own.

    The fed queues take jobs of many pieces, which a thread of their own queues (`feeder.py`). Work in one queue keeps
    its order, which could not be promised where a short job overtakes the pieces of a long one.
    """

    EXPEDITED = 0
    BULK = 1
    STORE = 2
    FED_LOAD = 3
    FED_STORE = 4


# Launches on the stream it is given; None: runs at once. Work of several pieces yields after each.
Work = Callable[["torch.cuda.Stream | None"], "Pieces | None"]


def run_through(pieces: Pieces | None) -> None:
    """Launch whatever is left of the work."""
    for _ in pieces or ():
        pass


class Mark(Protocol):
    """A point in a queue. Everything submitted to that queue before it is done when the mark is."""

    def done(self) -> bool:
        """Whether the point was reached. Raises RuntimeError when the device failed."""

    def synchronize(self) -> None:
        """Block the host until the point is reached. Raises RuntimeError when the device failed."""

    def elapsed_ns(self) -> int | None:
        """From the start of the marked work to its end, once done; None when it was not measured."""

    @property
    def error(self) -> str | None:
        """Why part of the work could not be launched. The rest ran, and is over when the mark is done."""


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
        """Block the host until everything submitted has ended; nothing can be submitted afterwards.

        Raises RuntimeError when the device failed.
        """


class CudaMark:
    """The end of a piece of work on a stream, with its start for the elapsed time."""

    __slots__ = ("end", "start")
    error = None

    def __init__(self, end: torch.cuda.Event, start: torch.cuda.Event | None = None) -> None:
        self.end, self.start = end, start

    def done(self) -> bool:
        return bool(self.end.query())

    def synchronize(self) -> None:
        self.end.synchronize()

    def elapsed_ns(self) -> int | None:
        return None if self.start is None else round(self.start.elapsed_time(self.end) * 1e6)


class CudaQueues:
    """One stream a queue; expedited loads have the highest priority that the device offers.

    Events are made once and used again: making one costs more than recording it.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = torch.device("cuda", torch.cuda.current_device() if device.index is None else device.index)
        with torch.cuda.device(self.device):
            priority = {Queue.EXPEDITED: -1}  # lower goes first
            self.streams = {q: torch.cuda.Stream(self.device, priority=priority.get(q, 0)) for q in Queue}
            # What a fed job comes after is put on a stream of no other use, and marked there: the job itself may be
            # queued long after the marks that it was given have been used again.
            self._gates = {q: torch.cuda.Stream(self.device) for q in (Queue.FED_LOAD, Queue.FED_STORE)}
            self._here = CudaMark(torch.cuda.Event())
        self._feeders = {q: Feeder(self.device) for q in self._gates}
        self._engine_streams: dict[int, torch.cuda.Stream] = {}  # by handle; an engine has a few
        self._spare: list[CudaMark] = []

    def _engine_stream(self) -> torch.cuda.Stream:
        # torch.cuda.current_stream builds an object each time, which takes several times what recording does.
        handle = torch._C._cuda_getCurrentRawStream(self.device.index)
        stream = self._engine_streams.get(handle)
        if stream is None:
            stream = self._engine_streams[handle] = torch.cuda.current_stream(self.device)
        return stream

    def here(self) -> CudaMark:
        # One event serves every call: a wait keeps to what was recorded when it was asked for.
        self._here.end.record(self._engine_stream())
        return self._here

    def at(self, event: torch.cuda.Event) -> CudaMark:
        return CudaMark(event)

    def submit(self, queue: Queue, after: Iterable[Mark], work: Work) -> CudaMark | FedMark:
        if torch.cuda.current_device() != self.device.index:
            with torch.cuda.device(self.device):  # launches need the stream's device to be current
                return self._submit(queue, after, work)
        return self._submit(queue, after, work)

    def _submit(self, queue: Queue, after: Iterable[Mark], work: Work) -> CudaMark | FedMark:
        stream = self.streams[queue]
        feeder = self._feeders.get(queue)
        if feeder is not None:
            gate = torch.cuda.Event()
            for mark in after:
                _let_wait(self._gates[queue], mark)
            gate.record(self._gates[queue])
            return feeder.add(stream, gate, work)  # type: ignore[arg-type]
        for mark in after:
            _let_wait(stream, mark)
        own = self._spare.pop() if self._spare else _new_mark()
        assert own.start is not None
        own.start.record(stream)
        run_through(work(stream))
        own.end.record(stream)
        return own

    def wait(self, mark: Mark) -> None:
        _let_wait(self._engine_stream(), mark)

    def recycle(self, mark: Mark) -> None:
        if isinstance(mark, CudaMark):
            self._spare.append(mark)

    def drain(self) -> None:
        for feeder in self._feeders.values():
            feeder.close()
        for stream in self.streams.values():
            stream.synchronize()


def _let_wait(stream: torch.cuda.Stream, mark: Mark) -> None:
    assert isinstance(mark, CudaMark | FedMark)
    if isinstance(mark, FedMark):
        mark.flush()
    stream.wait_event(mark.end)


def _new_mark() -> CudaMark:
    return CudaMark(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True))


class HostMark:
    """Work that ran in the calling thread and is done."""

    __slots__ = ("_elapsed_ns",)
    error = None

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
        run_through(work(None))
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
