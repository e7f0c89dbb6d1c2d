"""What is counted about each rule: how often it decided, was passed over, and why."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvmove import Hit, Policy, Refused, StepScheduler, StepState
from kvmove.schedule import RuleCounts
from kvmove.schedule.open_step import LANE_OF
from kvmove.testing import hits, policies, steps
from kvmove.testing.scripted import MIB, ScriptedPolicy, hit_of

POLICY = Policy.parse(
    "@quick recompute if recompute_time < load_time and waiting < 3\n"
    "@fits  sync      if bytes <= budget_remaining and tokens < 5000tok\n"
    "@part  sync at most budget_remaining if blocks > 1\n"
    "       async\n"
)


def decide_all(scheduler: StepScheduler, asked: list[Hit], **step: Any) -> None:
    """One step, in which every hit is decided and every load is made."""
    scheduler.begin_step(**step)
    for hit in asked:
        if scheduler.decide(hit).action in LANE_OF:
            scheduler.confirm(hit.request)
    scheduler.end_step()


def test_every_rule_says_how_often_it_decided_and_what_kept_it_from_deciding() -> None:
    """The reasons are text of the policy; one that is unknown names the estimate."""
    scheduler = StepScheduler(POLICY, explain_every=1, budget_bytes=4 * MIB)
    known = {"recompute_time_ns": 5, "load_time_ns": 9}
    asked = [
        hit_of("computes", **known),
        hit_of("fits", 2),
        hit_of("part", 4, blocks=4),
        hit_of("whole", 4, blocks=1),
        hit_of("slow", 4, blocks=1, recompute_time_ns=9, load_time_ns=5),
    ]
    decide_all(scheduler, asked)
    decide_all(scheduler, [hit_of("busy", 8, blocks=1, **known)], waiting=3)
    quick, fits, part, last = scheduler.statistics().why_not
    assert [rule.matched for rule in (quick, fits, part, last)] == [1, 1, 1, 3]
    unknown = "recompute_time < load_time [unknown: load_time, recompute_time]"
    assert quick.passed_over == {unknown: 3, "recompute_time < load_time": 1, "waiting < 3": 1}
    assert fits.passed_over == {"bytes <= budget_remaining": 4}
    assert part.passed_over == {"blocks > 1": 3}
    assert last.passed_over == {}


def test_a_limit_that_lets_no_block_through_is_a_reason() -> None:
    """And so is one that is unknown."""
    policy = Policy.parse("sync at most budget_remaining\nasync at most bytes * (load_time / 1s)\ndefer")
    scheduler = StepScheduler(policy, explain_every=1, budget_bytes=1)
    decide_all(scheduler, [hit_of()])
    first, second, _ = scheduler.statistics().why_not
    assert first.passed_over == {"at most budget_remaining [not one block fits]": 1}
    assert second.passed_over == {"at most bytes * (load_time / 1s) [unknown: load_time]": 1}


def test_what_is_not_planned_is_not_counted() -> None:
    """Refunded, replaced, never admitted, and in a step that was aborted: as in the other statistics."""
    scheduler = StepScheduler(POLICY, explain_every=1, budget_bytes=4 * MIB)
    scheduler.begin_step()
    scheduler.decide(hit_of("a"))
    scheduler.abort_step()
    scheduler.begin_step()
    scheduler.decide(hit_of("a"))
    scheduler.refund("a")
    scheduler.decide(hit_of("b"))
    scheduler.decide(hit_of("b", 8, blocks=1))
    scheduler.confirm("b")
    scheduler.decide(hit_of("c"))
    scheduler.end_step()
    statistics = scheduler.statistics()
    assert [rule.matched for rule in statistics.why_not] == [0, 0, 0, 1] == list(statistics.rules[POLICY.hash])
    assert statistics.why_not[1].passed_over == {"bytes <= budget_remaining": 1}


def test_every_nth_decision_is_explained() -> None:
    """A sample, for engines that cannot afford all."""
    scheduler = StepScheduler(POLICY, explain_every=3)
    decide_all(scheduler, [hit_of(f"r{i}") for i in range(10)])
    assert sum(rule.matched for rule in scheduler.statistics().why_not) == 3


def test_nothing_is_explained_unless_it_is_asked_for() -> None:
    """Neither by default nor of a policy that cannot explain itself; a negative number means nothing."""
    for scheduler in (StepScheduler(POLICY), StepScheduler(ScriptedPolicy(0), explain_every=1)):
        decide_all(scheduler, [hit_of()])
        assert scheduler.statistics().why_not == ()
    for every in (-1, 1.0, None):
        with pytest.raises(Refused, match="explain_every"):
            StepScheduler(POLICY, explain_every=every)  # type: ignore[arg-type]


def test_another_policys_rules_are_counted_from_nothing() -> None:
    """Rules of different texts cannot be added up."""
    scheduler = StepScheduler(POLICY, explain_every=1)
    decide_all(scheduler, [hit_of()])
    scheduler.set_policy(Policy.parse("sync if bytes < 3B\nasync"))
    assert len(scheduler.statistics().why_not) == 4
    decide_all(scheduler, [hit_of()])
    first, last = scheduler.statistics().why_not
    assert (first.matched, first.passed_over, last.matched) == (0, {"bytes < 3B": 1}, 1)


class Explaining(ScriptedPolicy):
    """Explains what it is told to."""

    def __init__(self, answer: Any, explanation: Any) -> None:
        super().__init__(answer)
        self.explanation, self.explained = explanation, 0

    def explain(self, hit: Hit, step: Any) -> Any:
        self.explained += 1
        if isinstance(self.explanation, Exception):
            raise self.explanation
        return self.explanation


@pytest.mark.parametrize("explanation", [ValueError("x"), None, (4, ["", "", "", ""]), (-1, []), (1, []), (0, ["x"])])
def test_an_explanation_that_fails_is_not_worth_a_step(explanation: Any, caplog: pytest.LogCaptureFixture) -> None:
    """It is reported once, and no more are asked for; decisions go on."""
    policy = Explaining(0, explanation)
    scheduler = StepScheduler(policy, explain_every=1)
    with caplog.at_level(logging.ERROR):
        for _ in range(2):
            decide_all(scheduler, [hit_of("a"), hit_of("b")])
    assert len(caplog.records) == 1
    assert (policy.explained, policy.calls) == (1, 4)
    statistics = scheduler.statistics()
    assert (statistics.why_not, statistics.policy_errors) == ((), 0)


def test_a_decision_without_a_rule_is_not_explained() -> None:
    """A policy that failed passed nothing over."""
    scheduler = StepScheduler(Explaining(99, (1, ["why"])), explain_every=1)
    decide_all(scheduler, [hit_of("a"), hit_of("b")])
    assert scheduler.statistics().why_not == ()


def test_counts_of_rules_follow_from_what_decided() -> None:
    """A rule was passed over as often as a later one decided, with and without explanations."""
    scheduler = StepScheduler(POLICY, budget_bytes=4 * MIB)
    decide_all(scheduler, [hit_of("fits", 2), hit_of("part", 4, blocks=4), hit_of("whole", 4, blocks=1)])
    counts = scheduler.statistics().rule_counts(POLICY.hash)
    assert counts == (RuleCounts(0, 3), RuleCounts(1, 2), RuleCounts(1, 1), RuleCounts(1, 0))
    assert [count.reached for count in counts] == [3, 3, 2, 1]
    assert scheduler.statistics().rule_counts("another") == ()


@settings(max_examples=40)
@given(policies(max_rules=4, max_depth=2), st.lists(hits(max_bytes=1 << 22), min_size=1, max_size=6), steps())
def test_reasons_add_up_to_what_was_passed_over(text: str, asked: list[Hit], step: StepState) -> None:
    """Of any policy, with every decision explained, in a batch or one by one."""
    policy = Policy.parse(text)
    scheduler = StepScheduler(policy, explain_every=1, budget_bytes=step.budget_bytes)
    scheduler.begin_step(running=step.running, waiting=step.waiting)
    for decision in scheduler.decide_batch([replace(hit, request=f"r{i}") for i, hit in enumerate(asked)]):
        if decision.action in LANE_OF:
            scheduler.confirm(decision.request)
    scheduler.end_step()
    statistics = scheduler.statistics()
    told = [RuleCounts(rule.matched, sum(rule.passed_over.values())) for rule in statistics.why_not]
    assert told == list(statistics.rule_counts(policy.hash))
    assert all(reason for rule in statistics.why_not for reason in rule.passed_over)
