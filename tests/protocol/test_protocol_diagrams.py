"""docs/protocol.md draws the states and transitions that the code has: names, and what a run of the machine does."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from kvmove.offload.loads import LoadBook
from kvmove.offload.ranks import RankBoard
from kvmove.offload.requests import RequestState
from kvmove.offload.scheduler import OffloadScheduler
from kvmove.offload.stores import StoreBook
from kvmove.testing.protocol_machine import ProtocolMachine
from kvmove.tier import HostTier, blocks

PAGE = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text(encoding="utf-8")
NOWHERE = "[*]"
Edges = dict[tuple[str, str], set[str]]

RUN = settings(
    max_examples=20, stateful_step_count=40, deadline=None, database=None, phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)  # fmt: skip
TIER_STATES = ("FREE", "STORING", "READY", "LEAVING_STORE", "LEAVING_LOADS")


def drawn(section: str) -> Edges:
    """From state to state: the calls on the arrow."""
    text = PAGE.partition(f"\n## {section}\n")[2].partition("```mermaid\n")[2].partition("```")[0]
    edges: Edges = {}
    for line in text.splitlines()[1:]:
        match = re.fullmatch(r"    (\S+) --> (\S+)(?: : ([a-z_, ]+))?", line)
        assert match, line
        edges[match[1], match[2]] = set((match[3] or "").split(", ")) - {""}
    assert edges, section
    return edges


def states(edges: Edges) -> set[str]:
    return {state for edge in edges for state in edge} - {NOWHERE}


@pytest.mark.parametrize(
    ("section", "home"),
    [
        ("A request", OffloadScheduler),
        ("A key in the tier", HostTier),
        ("A load", LoadBook),
        ("A store", StoreBook),
        ("A rank", OffloadScheduler),
    ],
)
def test_every_arrow_names_a_call_that_exists(section: str, home: type) -> None:
    """A method that is renamed has to be renamed here too."""
    calls = set().union(*drawn(section).values())
    assert calls
    assert {call for call in calls if not callable(getattr(home, call, None))} == set()


def test_the_states_are_those_of_the_code() -> None:
    """All of them, and no others."""
    assert states(drawn("A request")) == {str(state) for state in RequestState}
    assert states(drawn("A key in the tier")) == set(TIER_STATES)
    assert sorted(getattr(blocks, name) for name in TIER_STATES) == list(range(5))
    assert {"lost", "replaced"} <= set(dir(RankBoard))


def watch(patch: pytest.MonkeyPatch, home: type, names: set[str], look: Callable[[Any], dict[Any, str]]) -> Edges:
    """Which changes of `look(self)` the calls made, outermost calls counting, is added to the result as they run."""
    seen: Edges = {}
    depth = [0]

    def watched(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def run(self: Any, *args: Any, **kwargs: Any) -> Any:
            before = look(self) if not depth[0] else {}
            depth[0] += 1
            try:
                return call(self, *args, **kwargs)
            finally:
                depth[0] -= 1
                if not depth[0]:
                    after = look(self)
                    for thing in before.keys() | after.keys():
                        change = before.get(thing, NOWHERE), after.get(thing, NOWHERE)
                        if change[0] != change[1]:
                            seen.setdefault(change, set()).add(name)

        return run

    for name in names:
        patch.setattr(home, name, watched(name, getattr(home, name)))
    return seen


def compare(seen: Edges, edges: Edges) -> None:
    """Everything that was seen is drawn, and every arrow was taken, but for two that are rare."""
    undrawn = {edge: calls - edges.get(edge, set()) for edge, calls in seen.items()}
    assert {edge: calls for edge, calls in undrawn.items() if calls} == {}
    assert set(edges) - set(seen) <= {("parked", NOWHERE), ("joined", NOWHERE)}


def run_the_machine() -> None:
    for number in range(2):
        run_state_machine_as_test(seed(number)(ProtocolMachine), settings=RUN)


def test_requests_change_their_state_as_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """No call of the scheduler takes a request along an arrow that is not there."""
    edges = drawn("A request")
    calls = set().union(*edges.values()) | {"decide", "build_step", "computed", "extend", "worker_replaced"}
    seen = watch(monkeypatch, OffloadScheduler, calls, lambda s: {n: str(r.state) for n, r in s._requests.items()})
    run_the_machine()
    compare(seen, edges)


def test_keys_change_their_state_as_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """No call of the tier takes a block along an arrow that is not there."""
    edges = drawn("A key in the tier")
    del edges[NOWHERE, "FREE"]
    calls = set().union(*edges.values()) | {"prepare_load", "lookup", "touch"}
    seen = watch(
        monkeypatch, HostTier, calls, lambda t: {b: TIER_STATES[state] for b, state in enumerate(t._table.states)}
    )
    # An evicted block is stored in by the same call, so FREE is passed through: eviction shows as READY to STORING.
    run_the_machine()
    assert seen.pop(("READY", "STORING")) == {"prepare_store"}
    seen.setdefault(("READY", "FREE"), set())
    compare(seen, edges)
