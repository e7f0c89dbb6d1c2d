"""A thread that queues large jobs piece by piece, so that the thread which asked for them does not have to.

Queueing a load of 768 MiB takes milliseconds of CPU; `load_batch` gives it to the feeder and returns. The feeder
keeps only some pieces ahead of the copy engine, in the order of submission. Whoever needs a job's end on a
stream before the feeder got there (a store of slots that are being loaded) has it queued at once by `flush`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch

from kvmove.move import cudart

_log = logging.getLogger(__name__)

# What a piece of work yields after each piece: the event after which the piece has crossed the link.
Pieces = Iterator[torch.cuda.Event]
# How long the thread sleeps between two looks at a piece, which takes about 600 us to cross. Events that block the host
# until an interrupt comes took 40 ms each on a virtual machine.
POLL_S = 100e-6
# Pieces that may be queued and not yet have crossed. They keep the link busy while this thread sleeps or waits for
# the interpreter; what is queued cannot be called back.
AHEAD = 4


class FedMark:
    """The end of a job that the feeder queues. Not on any stream before `fed`."""

    __slots__ = ("_feeder", "end", "error", "fed", "start")

    def __init__(self, feeder: Feeder) -> None:
        self._feeder = feeder
        self.start, self.end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        self.fed = False
        self.error: str | None = None  # why a piece could not be queued; the pieces before it run all the same

    def done(self) -> bool:
        return self.fed and bool(self.end.query())

    def synchronize(self) -> None:
        self.flush()
        self.end.synchronize()

    def flush(self) -> None:
        """Return once the end is on its stream."""
        self._feeder.flush(self)

    def elapsed_ns(self) -> int | None:
        return int(self.start.elapsed_time(self.end) * 1e6)


def _let_cross(piece: torch.cuda.Event) -> None:
    try:
        while not piece.query():
            time.sleep(POLL_S)
    except RuntimeError:
        return  # the device failed; whoever asks for a job's end is told


@dataclass(slots=True)
class _Task:
    stream: torch.cuda.Stream
    gate: torch.cuda.Event  # what the job comes after
    work: Callable[[torch.cuda.Stream], Pieces]
    mark: FedMark
    pieces: Pieces | None = field(default=None)


class Feeder:
    """Queues the pieces of jobs in the order of `add`, from a thread that starts with the first job."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._tasks: deque[_Task] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False

    def add(
        self, stream: torch.cuda.Stream, gate: torch.cuda.Event, work: Callable[[torch.cuda.Stream], Pieces]
    ) -> FedMark:
        """Queue the pieces of `work` on `stream` behind `gate`, later."""
        mark = FedMark(self)
        with self._changed:
            self._tasks.append(_Task(stream, gate, work, mark))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="kvmove-feeder", daemon=True)
                self._thread.start()
            self._changed.notify()
        return mark

    def flush(self, mark: FedMark) -> None:
        """Queue, in this thread, what is left of the job and of those before it."""
        with self._changed:
            while not mark.fed:
                self._feed_one()

    def close(self) -> None:
        """Queue what is left and end the thread."""
        with self._changed:
            while self._tasks:
                self._feed_one()
            self._closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            torch.cuda.set_device(self._device)
            # Whatever another thread captures into a graph, this thread's calls are not part of it and do not end it.
            cudart.relax_stream_capture()
        except Exception:
            # Jobs that nobody queues would never end. Those that cannot be queued end with an error.
            _log.exception("the thread that queues staged jobs could not be set up, and goes on without")
        ahead: deque[torch.cuda.Event] = deque()
        while True:
            with self._changed:
                while not self._tasks and not self._closed:
                    self._changed.wait()
                if not self._tasks:
                    return
                crossed = self._feed_one()
            if crossed is not None:
                ahead.append(crossed)
            if len(ahead) >= AHEAD:
                _let_cross(ahead.popleft())

    def _feed_one(self) -> torch.cuda.Event | None:
        """Queue the next piece of the oldest job; returns None where its end was queued."""
        task = self._tasks[0]
        mark = task.mark
        try:
            if task.pieces is None:
                task.stream.wait_event(task.gate)
                mark.start.record(task.stream)
                task.pieces = task.work(task.stream)
            piece = next(task.pieces, None)
            if piece is not None:
                return piece
        except Exception as error:
            mark.error = str(error)
        try:
            mark.end.record(task.stream)
        except Exception as error:  # the device failed; an event that was never recorded counts as reached
            mark.error = mark.error or str(error)
        mark.fed = True
        self._tasks.popleft()
        return None
