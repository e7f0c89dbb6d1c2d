"""Strategies for what happens to an engine, and what plays it."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from hypothesis import strategies as st
from simulated_engine import VOCABULARY, SimulatedEngine, Step


@dataclass(frozen=True)
class Add:
    """A request arrives: the beginning of one of a few long texts, and an end of its own."""

    text: int
    shared_tokens: int
    own_tokens: int
    max_tokens: int
    priority: int


@dataclass(frozen=True)
class Steps:
    """The engine runs."""

    count: int


@dataclass(frozen=True)
class Abort:
    """A client gives up; counted over the requests that there were."""

    request: int


@dataclass(frozen=True)
class Reset:
    """The prefix cache is reset, with or without preempting what runs, with or without the host's."""

    running: bool
    connector: bool


Event = Add | Steps | Abort | Reset

_adds = st.builds(
    Add,
    text=st.integers(0, 3),
    shared_tokens=st.sampled_from([15, 16, 32, 48, 64, 96, 100, 128, 160, 224, 272, 288, 320]),
    own_tokens=st.sampled_from([0, 1, 2, 16, 17, 40]),
    max_tokens=st.integers(1, 8),
    priority=st.integers(0, 2),
)
_steps = st.builds(Steps, st.integers(1, 12))
_rare = st.one_of(
    st.builds(Abort, st.integers(0, 30)),
    st.builds(Reset, st.booleans(), st.booleans()),
    st.just(Reset(running=True, connector=False)),  # what was in the GPU cache is in the host's only
)


@st.composite
def histories(draw: st.DrawFn) -> list[Event]:
    """What happens to an engine. Aborts and resets are rare, or nothing lives long enough to be loaded."""
    history: list[Event] = []
    for _ in range(draw(st.integers(6, 14))):
        history += draw(st.lists(_adds, min_size=1, max_size=4))
        history.append(draw(_steps))
        if draw(st.integers(0, 3)) == 3:
            history.append(draw(_rare))
    return history


delays = st.lists(st.integers(0, 4), min_size=1, max_size=5).map(tuple)


def _texts() -> list[list[int]]:
    rng = Random(7)
    return [[rng.randrange(VOCABULARY) for _ in range(320)] for _ in range(4)]


TEXTS = _texts()


def do(engine: SimulatedEngine, event: Event, number: int) -> list[Step]:
    """Let one event happen to an engine; the steps it made. `number` is the event's place in its history."""
    if isinstance(event, Add):
        own = [(number * 37 + i) % VOCABULARY for i in range(event.own_tokens)]
        engine.add(TEXTS[event.text][: event.shared_tokens] + own, event.max_tokens, event.priority)
        return []
    if isinstance(event, Steps):
        return [engine.step() for _ in range(event.count) if engine.is_busy]
    if isinstance(event, Reset):
        engine.reset(running=event.running, connector=event.connector)
    elif engine.requests:
        name = f"r{event.request % len(engine.requests)}"
        if name in engine.scheduler.requests:
            engine.abort(name)
    return []
