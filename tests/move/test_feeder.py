"""The feeder queues pieces in order, at once where somebody needs the end, and survives work that fails."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kvmove.move import cudart, feeder
from kvmove.move.feeder import Feeder


class Event:
    """Stands in for a CUDA event: recorded on a stream, and reached when the test says so, or at once."""

    def __init__(self, **_: object) -> None:
        self.stream: Any = None
        self.reached = threading.Event()

    def record(self, stream: Any) -> None:
        self.stream = stream
        stream.log.append("record")
        if not stream.slow:
            self.reached.set()

    def query(self) -> bool:
        return self.reached.is_set()

    def synchronize(self) -> None:
        assert self.reached.wait(10), "nobody reached this event"

    def elapsed_time(self, end: Event) -> float:
        return 0.5


def stream(*, slow: bool = False) -> Any:
    log: list[str] = []
    return SimpleNamespace(log=log, slow=slow, wait_event=lambda event: log.append("gate"))


@pytest.fixture(autouse=True)
def no_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
    monkeypatch.setattr(cudart, "relax_stream_capture", lambda: None)


def pieces(name: str, count: int, events: list[Event] | None = None) -> Any:
    def work(stream: Any) -> Iterator[Event]:
        for i in range(count):
            stream.log.append(f"{name}{i}")
            event = Event()
            if events is None:
                event.reached.set()
            else:
                events.append(event)
            yield event

    return work


def test_jobs_are_queued_in_order_between_their_gate_and_their_end() -> None:
    """Each job waits for its gate, then its start, its pieces and its end, and the next job comes after it."""
    own = stream()
    fed = Feeder(torch.device("cpu"))
    first, second = fed.add(own, Event(), pieces("a", 2)), fed.add(own, Event(), pieces("b", 1))
    second.synchronize()
    assert own.log == ["gate", "record", "a0", "a1", "record", "gate", "record", "b0", "record"]
    assert first.done()
    assert second.done()
    assert (first.error, first.elapsed_ns()) == (None, 500_000)
    fed.close()


def test_the_feeder_stays_only_some_pieces_ahead_and_a_flush_does_not_wait() -> None:
    """The thread stops at `AHEAD` pieces that have not crossed; who needs the end has all of them queued at once."""
    own, crossing = stream(), []
    fed = Feeder(torch.device("cpu"))
    mark = fed.add(own, Event(), pieces("p", 50, crossing))
    for _ in range(1000):
        if len(crossing) == feeder.AHEAD:
            break
        threading.Event().wait(0.002)
    threading.Event().wait(0.05)
    assert len(crossing) == feeder.AHEAD
    assert not mark.done()
    mark.flush()
    assert len(crossing) == 50
    assert mark.done()
    for event in crossing:
        event.reached.set()
    fed.close()


def test_work_that_fails_half_way_ends_with_an_error_and_the_next_job_runs() -> None:
    """What was queued before runs all the same, so the end is still recorded behind it."""

    def failing(stream: Any) -> Iterator[Event]:
        yield from pieces("x", 1)(stream)
        raise RuntimeError("no room for a launch")

    own = stream()
    fed = Feeder(torch.device("cpu"))
    bad, good = fed.add(own, Event(), failing), fed.add(own, Event(), pieces("y", 1))
    good.synchronize()
    assert bad.error == "no room for a launch"
    assert own.log == ["gate", "record", "x0", "record", "gate", "record", "y0", "record"]
    assert bad.done()
    fed.close()
    fed.close()


def test_closing_queues_what_is_left() -> None:
    """No job is lost with the thread, even one that it never got to."""
    own, crossing = stream(), []
    fed = Feeder(torch.device("cpu"))
    marks = [fed.add(own, Event(), pieces(f"{i}-", 20, crossing)) for i in range(3)]
    threading.Timer(0.1, lambda: [event.reached.set() for event in list(crossing)]).start()
    fed.close()
    assert all(mark.fed for mark in marks)
    assert len(crossing) == 60
