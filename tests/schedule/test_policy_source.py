"""A scheduler that follows a source of policies: what replaces its policy, when, and what does not."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from kvmove import Action, Policy, PolicyFile, Refused, StepScheduler
from kvmove.testing.scripted import MIB, ScriptedPolicy, hit_of


class Source:
    """What is `current` is a test's; an exception is raised."""

    def __init__(self, current: Any) -> None:
        self.holds, self.reads = current, 0

    @property
    def current(self) -> Any:
        self.reads += 1
        if isinstance(self.holds, Exception):
            raise self.holds
        return self.holds


OLD, NEW = ScriptedPolicy(Action.SYNC, policy_hash="old"), ScriptedPolicy(Action.ASYNC, policy_hash="new")


def step_under(scheduler: StepScheduler) -> str:
    """The policy of one step."""
    scheduler.begin_step()
    decision = scheduler.decide(hit_of())
    scheduler.abort_step()
    return decision.policy_hash


def test_a_change_waits_for_the_next_step() -> None:
    """The source is read once a step, when it begins."""
    source = Source(OLD)
    scheduler = StepScheduler(source)
    assert source.reads == 1
    scheduler.begin_step()
    source.holds = NEW
    decisions = [scheduler.decide(hit_of("a")), *scheduler.decide_batch([hit_of("b"), hit_of("c")])]
    assert {decision.policy_hash for decision in decisions} == {"old"}
    scheduler.abort_step()
    assert source.reads == 2
    assert step_under(scheduler) == "new"
    assert source.reads == 3


def test_the_budget_follows_the_policy() -> None:
    """`param budget` of the new one counts from its first step on."""
    source = Source(ScriptedPolicy(Action.SYNC, budget_bytes=MIB))
    scheduler = StepScheduler(source)
    assert scheduler.begin_step().budget_bytes == MIB
    source.holds = ScriptedPolicy(Action.SYNC, budget_bytes=2 * MIB)
    assert scheduler.begin_step().budget_bytes == 2 * MIB


@pytest.mark.parametrize(
    "bad",
    [RuntimeError("gone"), None, "budgeted", ScriptedPolicy(0, budget_bytes=-1)],
    ids=["raises", "none", "text", "bad budget"],
)
def test_a_source_without_a_policy_leaves_the_last_good_one(bad: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Reported once, and once more when it fails again after it was well."""
    source = Source(OLD)
    scheduler = StepScheduler(source)
    with caplog.at_level(logging.ERROR):
        for _ in range(2):
            source.holds = bad
            assert [step_under(scheduler) for _ in range(3)] == ["old"] * 3
            source.holds = OLD
            assert step_under(scheduler) == "old"
    assert ["gives no policy, old stays" in record.getMessage() for record in caplog.records] == [True, True]
    source.holds = NEW
    assert step_under(scheduler) == "new"


def test_a_source_that_has_nothing_at_the_start_is_refused() -> None:
    """There is no earlier policy to keep."""
    with pytest.raises(Refused, match="is no policy"):
        StepScheduler(Source(None))
    with pytest.raises(RuntimeError, match="gone"):
        StepScheduler(Source(RuntimeError("gone")))


def test_a_policy_set_by_hand_ends_the_following() -> None:
    """And a source can be set by hand."""
    source = Source(OLD)
    scheduler = StepScheduler(source)
    scheduler.set_policy(NEW)
    assert step_under(scheduler) == "new"
    assert source.reads == 1
    scheduler.set_policy(source)
    assert step_under(scheduler) == "old"


def test_a_shadow_follows_its_source() -> None:
    """Its counters begin at zero with each policy: two policies' counts mean nothing together."""
    source = Source(OLD)
    scheduler = StepScheduler(ScriptedPolicy(Action.RECOMPUTE), shadow=source)
    for policy in (OLD, NEW):
        source.holds = policy
        for decisions in (1, 2):
            scheduler.begin_step()
            scheduler.decide(hit_of())
            scheduler.end_step()
            shadow = scheduler.statistics().shadow
            assert shadow is not None
            assert (shadow.policy_hash, shadow.decisions) == (policy.hash, decisions)


def test_a_policy_file_is_a_source(tmp_path: Path) -> None:
    """Without a call at each step boundary; a file with mistakes changes nothing."""
    path = tmp_path / "live.kvpol"
    path.write_text("sync")
    file = PolicyFile(path, watch=False)
    scheduler = StepScheduler(file)
    first = file.current.hash
    assert step_under(scheduler) == first
    path.write_text("snyc")
    assert not file.reload()
    assert step_under(scheduler) == first
    path.write_text("async")
    assert file.reload()
    assert step_under(scheduler) == file.current.hash != first


@pytest.fixture
def frequent_switches() -> Iterator[None]:
    """Threads take turns as often as can be."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


class Storm:
    """Swaps policies 1,000 times on another thread, evenly over so many steps."""

    SWAPS = 1_000

    def __init__(self, *choices: Policy) -> None:
        self.current = choices[0]
        self.swaps = 0
        self._choices = cycle(choices[1:] + choices[:1])
        self._turns = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._swap)

    def _swap(self) -> None:
        while self.swaps < self.SWAPS:
            self._turns.acquire()
            self.current = next(self._choices)
            self.swaps += 1

    def __enter__(self) -> Storm:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._turns.release(self.SWAPS)
        self._thread.join()

    def let_one_come(self) -> None:
        """From now on, at any moment."""
        self._turns.release()


@pytest.mark.usefixtures("frequent_switches")
@pytest.mark.parametrize("in_batch", [False, True], ids=["one by one", "in batches"])
def test_a_storm_of_swaps_never_mixes_two_policies_in_a_step(in_batch: bool) -> None:
    """1,000 swaps while 100,000 decisions run: each is the one policy's with which its step began.

    Not only the hash that a decision carries, also its action and the step's budget.
    """
    fits, never = Policy.parse("param budget: bytes = 9MiB\nsync if bytes <= budget"), Policy.parse("recompute")
    expected = {fits.hash: (Action.SYNC, 9 * MIB), never.hash: (Action.RECOMPUTE, 64 * MIB)}
    asked = [hit_of(f"r{i}", blocks=1) for i in range(9)]
    decisions, seen = 0, set()
    with Storm(fits, never) as storm:
        scheduler = StepScheduler(storm)
        while decisions < 100_000:
            if decisions % 100 < len(asked):
                storm.let_one_come()
            state = scheduler.begin_step()
            made = scheduler.decide_batch(asked) if in_batch else [scheduler.decide(hit) for hit in asked]
            (told,) = {(decision.policy_hash, decision.action, state.budget_bytes) for decision in made}
            assert told[1:] == expected[told[0]]
            seen.add(told[0])
            scheduler.abort_step()
            decisions += len(made)
    assert storm.swaps == storm.SWAPS
    assert seen == expected.keys()
