"""What no policy gets past: the budget, the token to compute, the bound on deferrals, and its own failures."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest

from kvmove import Action, Decision, Demotion, Hit, InternalError, Load, StepScheduler
from kvmove.testing.scripted import MIB, ScriptedPolicy, hit_of


def scheduler_for(answer: Any, **options: Any) -> StepScheduler:
    return StepScheduler(ScriptedPolicy(answer), **options)


def admit(scheduler: StepScheduler, decision: Decision, first_slot: int = 0) -> Load:
    slots = range(first_slot, first_slot + decision.blocks)
    return scheduler.admit(decision.request, range(decision.blocks), slots)


def test_sync_beyond_the_budget_becomes_async() -> None:
    """Guard rail 1: the third MiB does not fit into two, and a smaller hit after it still does."""
    scheduler = scheduler_for(Action.SYNC, budget_bytes=5 * MIB)
    scheduler.begin_step()
    decisions = [scheduler.decide(hit_of(f"r{mib}", mib)) for mib in (3, 3 + 1, 2, 1)]
    assert [d.action for d in decisions] == [Action.SYNC, Action.ASYNC, Action.SYNC, Action.ASYNC]
    assert [d.demotion for d in decisions] == [None, Demotion.OVER_BUDGET, None, Demotion.OVER_BUDGET]
    assert all(d.asked is Action.SYNC for d in decisions)
    assert decisions[1].blocks == 2
    scheduler.check_integrity()


@pytest.mark.parametrize(("budget", "action"), [(MIB - 1, Action.ASYNC), (MIB, Action.SYNC)])
def test_the_budget_is_exact_to_the_byte(budget: int, action: Action) -> None:
    """A hit of exactly what is left fits; one byte less does not do."""
    scheduler = scheduler_for(Action.SYNC, budget_bytes=budget)
    scheduler.begin_step()
    assert scheduler.decide(hit_of()).action is action


def test_a_budget_of_zero_turns_sync_off() -> None:
    """No hit is small enough for a budget of nothing."""
    scheduler = scheduler_for(Action.SYNC, budget_bytes=0)
    scheduler.begin_step()
    assert scheduler.decide(hit_of()).demotion is Demotion.OVER_BUDGET


def test_a_hit_that_leaves_nothing_to_compute_is_not_sync() -> None:
    """Guard rail 2."""
    scheduler = scheduler_for(Action.SYNC)
    scheduler.begin_step()
    decision = scheduler.decide(hit_of(compute=0))
    assert (decision.action, decision.demotion) == (Action.ASYNC, Demotion.NOTHING_TO_COMPUTE)
    assert scheduler.end_step().sync_bytes == 0


def test_defer_becomes_async_after_max_deferrals() -> None:
    """Guard rail 5: the hit whose request was deferred twice already is not deferred a third time."""
    scheduler = scheduler_for(Action.DEFER, max_deferrals=2)
    scheduler.begin_step()
    decisions = [scheduler.decide(hit_of(f"r{n}", deferrals=n)) for n in range(4)]
    assert [d.action for d in decisions] == [Action.DEFER, Action.DEFER, Action.ASYNC, Action.ASYNC]
    assert decisions[2].demotion is Demotion.DEFERRED_TOO_OFTEN


@pytest.mark.parametrize(
    "verdict", [4, 255, -1, 3 << 8, (1 << 8) | 2, (1 << 8) | 4, None, "sync", 1.0, True, np.int64(1)], ids=repr
)
def test_an_invalid_verdict_counts_as_a_failed_policy(verdict: object, caplog: pytest.LogCaptureFixture) -> None:
    """Guard rail 6: rules or leading blocks that do not exist, blocks to recompute, and what is no int."""
    scheduler = scheduler_for(lambda hit, step: verdict)
    scheduler.begin_step()
    with caplog.at_level(logging.ERROR):
        decision = scheduler.decide(hit_of())
    assert (decision.action, decision.demotion) == (Action.ASYNC, Demotion.POLICY_FAILED)
    (record,) = caplog.records
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], InternalError)
    assert repr(verdict) in str(record.exc_info[1])


def test_a_policy_that_raises_makes_the_rest_of_its_step_async(caplog: pytest.LogCaptureFixture) -> None:
    """Guard rail 6: what was decided before stays, the policy is not asked again, and the next step tries anew."""

    def answer(hit: Hit, step: Any) -> Action:
        if hit.request == "bad":
            raise ZeroDivisionError("no")
        return Action.SYNC

    policy = ScriptedPolicy(answer)
    scheduler = StepScheduler(policy)
    for _ in range(3):
        policy.calls = 0
        scheduler.begin_step()
        with caplog.at_level(logging.ERROR):
            decisions = [scheduler.decide(hit_of(name)) for name in ("first", "bad", "later", "latest")]
        assert [d.action for d in decisions] == [Action.SYNC, Action.ASYNC, Action.ASYNC, Action.ASYNC]
        assert [d.demotion for d in decisions] == [None] + [Demotion.POLICY_FAILED] * 3
        assert policy.calls == 2
        for slot, decision in enumerate(decisions):
            assert (decision.rule is None) == (decision.asked is None) == (slot > 0)
            admit(scheduler, decision, 10 * slot)
        scheduler.end_step()
    assert len(caplog.records) == 1
    statistics = scheduler.statistics()
    assert statistics.policy_errors == 3
    assert statistics.demotions[Demotion.POLICY_FAILED] == 9
    assert statistics.rules["scripted"] == (3, 0, 0, 0)


def test_a_policy_set_after_a_failed_one_is_reported_in_turn(caplog: pytest.LogCaptureFixture) -> None:
    """Once per policy, not once per process: the operator sees that the repaired file fails too."""
    scheduler = scheduler_for(99)
    for policy_hash in ("one", "two"):
        scheduler.set_policy(ScriptedPolicy(99, policy_hash=policy_hash))
        scheduler.begin_step()
        with caplog.at_level(logging.ERROR):
            scheduler.decide(hit_of())
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 2
    assert "(one)" in messages[0]
    assert "(two)" in messages[1]


def test_what_stops_the_process_passes_through() -> None:
    """A KeyboardInterrupt is not a failure of the policy, and leaves the ledger right."""

    def answer(hit: Hit, step: Any) -> Action:
        if step.sync_loads == 0 and hit.priority:
            raise KeyboardInterrupt
        return Action.SYNC

    scheduler = scheduler_for(answer, budget_bytes=MIB)
    scheduler.begin_step()
    scheduler.decide(hit_of())
    with pytest.raises(KeyboardInterrupt):
        scheduler.decide(hit_of(priority=1))
    scheduler.check_integrity()
    assert scheduler.decide(hit_of()).action is Action.SYNC
