"""What the scheduler counts, and that counting does not grow."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from kvmove import Action, Decision, Demotion, InternalError, Lane, Load, StepScheduler
from kvmove.testing.scripted import MIB, ScriptedPolicy, hit_of


def scheduler_for(answer: Any, **options: Any) -> StepScheduler:
    return StepScheduler(ScriptedPolicy(answer), **options)


def admit(scheduler: StepScheduler, decision: Decision, first_slot: int = 0) -> Load:
    slots = range(first_slot, first_slot + decision.blocks)
    return scheduler.admit(decision.request, range(decision.blocks), slots)


def test_statistics_count_what_was_planned() -> None:
    """Bytes by lane, budgets offered and used, decisions, demotions and rules; a snapshot does not change."""
    answers = {"a": Action.SYNC, "b": Action.ASYNC, "c": Action.RECOMPUTE, "d": Action.SYNC}
    scheduler = scheduler_for(lambda hit, step: answers[hit.request], budget_bytes=4 * MIB)
    for _ in range(2):
        scheduler.begin_step()
        for name, mib in (("a", 3), ("b", 5), ("c", 1), ("d", 2)):
            decision = scheduler.decide(hit_of(name, mib))
            if decision.blocks:
                admit(scheduler, decision)
        scheduler.end_step()
    scheduler.begin_step()
    scheduler.decide(hit_of("a"))
    scheduler.abort_step()
    statistics = scheduler.statistics()
    assert (statistics.steps, statistics.aborted_steps, statistics.jobs) == (2, 1, 6)
    assert statistics.decisions == {Action.SYNC: 2, Action.ASYNC: 4, Action.RECOMPUTE: 2, Action.DEFER: 0}
    assert statistics.demotions[Demotion.OVER_BUDGET] == sum(statistics.demotions.values()) == 2
    assert statistics.admitted_bytes == {Lane.EXPEDITED: 6 * MIB, Lane.BULK: 14 * MIB}
    assert (statistics.budget_offered_bytes, statistics.budget_used_bytes) == (8 * MIB, 6 * MIB)
    assert statistics.rules == {"scripted": (4, 2, 2, 0)}
    scheduler.begin_step()
    scheduler.end_step()
    assert statistics.steps == 2


def test_memory_does_not_grow_with_steps_or_reloads() -> None:
    """The table of rules keeps the latest policies only; nothing else outlives a step."""
    scheduler = scheduler_for(Action.SYNC)
    for number in range(50):
        scheduler.set_policy(ScriptedPolicy(Action.SYNC, policy_hash=str(number)))
        scheduler.begin_step()
        admit(scheduler, scheduler.decide(hit_of(f"request {number}")))
        scheduler.end_step()
    assert list(scheduler.statistics().rules) == [str(number) for number in range(42, 50)]
    assert b"request" not in pickle.dumps(scheduler._counters)
    assert scheduler._step is None


def test_integrity_check_notices_a_ledger_that_was_tampered_with() -> None:
    """The check is not vacuous."""
    scheduler = scheduler_for(Action.SYNC)
    scheduler.begin_step()
    scheduler.decide(hit_of())
    assert scheduler._step is not None
    scheduler._step.ledger.budget_remaining_bytes += 1
    with pytest.raises(InternalError, match="budget"):
        scheduler.check_integrity()
