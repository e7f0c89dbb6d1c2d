"""What the scheduler refuses, with the remedy, and without changing anything."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kvmove import Action, Decision, Load, RecordError, Refused, StepScheduler, schema
from kvmove.testing.scripted import MIB, ScriptedPolicy, ScriptedRule, hit_of


def scheduler_for(answer: Any, **options: Any) -> StepScheduler:
    return StepScheduler(ScriptedPolicy(answer), **options)


def admit(scheduler: StepScheduler, decision: Decision, first_slot: int = 0) -> Load:
    slots = range(first_slot, first_slot + decision.blocks)
    return scheduler.admit(decision.request, range(decision.blocks), slots)


def test_calls_outside_a_step_are_refused() -> None:
    """Each names itself and the remedy."""
    scheduler = scheduler_for(Action.SYNC)
    calls: list[Callable[[], object]] = [
        lambda: scheduler.decide(hit_of()),
        lambda: scheduler.admit("r", [1, 2], [1, 2]),
        lambda: scheduler.refund("r"),
        lambda: scheduler.store([1], [2]),
        scheduler.end_step,
        scheduler.abort_step,
    ]
    for call in calls:
        with pytest.raises(Refused, match=r"^\w+: no step is open; call begin_step\(\) first$"):
            call()
    scheduler.begin_step()
    scheduler.end_step()
    with pytest.raises(Refused, match="no step is open"):
        scheduler.end_step()
    assert scheduler.statistics().jobs == 0


def test_refused_calls_name_the_remedy_and_change_nothing() -> None:
    """Unknown requests, requests that do not load, wrong numbers of blocks, and a second admission."""
    scheduler = scheduler_for(lambda hit, step: Action.SYNC if hit.priority else Action.RECOMPUTE)
    scheduler.begin_step()
    scheduler.decide(hit_of("loads", priority=1))
    scheduler.decide(hit_of("computes"))
    for request, blocks, message in [
        ("nobody", 2, r"nobody has no decision in this step; call decide\(hit\) first"),
        ("computes", 2, "computes is to recompute in this step, not to load; leave the call out"),
        ("loads", 3, r"3 blocks for loads, but its decision has 2; .*refund\('loads'\)"),
        ("loads", 0, "0 blocks for loads, but its decision has 2"),
    ]:
        with pytest.raises(Refused, match=message):
            scheduler.admit(request, [0] * blocks, [0] * blocks)
    with pytest.raises(RecordError, match="differ in length"):
        scheduler.admit("loads", [0, 1], [0, 1, 2])
    with pytest.raises(RecordError, match="nothing to move"):
        scheduler.store([], [])
    with pytest.raises(Refused, match="refund: nobody has no decision"):
        scheduler.refund("nobody")
    scheduler.check_integrity()
    load = scheduler.admit("loads", [0, 1], [2, 3])
    assert load.job == 0
    with pytest.raises(Refused, match="loads has job 0 in this step already"):
        scheduler.admit("loads", [0, 1], [2, 3])
    with pytest.raises(Refused, match=r"loads is admitted in this step already; call refund\('loads'\) first"):
        scheduler.decide(hit_of("loads"))
    assert scheduler.end_step().sync_loads == (load,)


def test_a_step_with_a_value_out_of_range_does_not_begin() -> None:
    """The step that was under way goes on."""
    scheduler = scheduler_for(Action.SYNC)
    scheduler.begin_step()
    scheduler.decide(hit_of())
    with pytest.raises(RecordError, match="running is -1"):
        scheduler.begin_step(running=-1)
    admit(scheduler, again := scheduler.decide(hit_of()))
    assert scheduler.end_step().decisions == (again,)


@pytest.mark.parametrize("budget", [-1, schema.MAX_BYTES + 1, 1.5, True])
def test_a_budget_out_of_range_is_refused_and_the_old_one_stays(budget: Any) -> None:
    """From the engine and from a policy alike."""
    policy = ScriptedPolicy(Action.SYNC)
    with pytest.raises(Refused, match="budget_bytes"):
        StepScheduler(policy, budget_bytes=budget)
    with pytest.raises(Refused, match="policy `scripted`: budget_bytes"):
        StepScheduler(ScriptedPolicy(Action.SYNC, budget_bytes=budget))
    scheduler = StepScheduler(policy, budget_bytes=MIB)
    with pytest.raises(Refused):
        scheduler.set_budget(budget)
    assert scheduler.begin_step().budget_bytes == MIB


@pytest.mark.parametrize("policy", [None, "budgeted", 3])
def test_what_is_no_policy_is_refused(policy: Any) -> None:
    """A name or nothing in the place of a policy is refused with what to pass."""
    with pytest.raises(Refused, match=r"is no policy, it has no `\w+`; pass what kvmove\.Policy\.load\(\) returns"):
        StepScheduler(policy)


def test_a_policy_without_usable_rules_is_refused() -> None:
    """A bad policy is refused where it is set, not in the middle of a step."""
    scheduler = scheduler_for(Action.SYNC)
    no_action: Any = ScriptedRule("sync")  # type: ignore[arg-type]
    for rules in ((), (no_action,), (ScriptedRule(Action.ASYNC),) * 257):
        policy = ScriptedPolicy(Action.SYNC)
        policy.rules = rules
        with pytest.raises(Refused, match="policy `scripted`"):
            scheduler.set_policy(policy)
    scheduler.begin_step()
    assert scheduler.decide(hit_of()).action is Action.SYNC


@pytest.mark.parametrize("max_deferrals", [-1, 1.0, None])
def test_max_deferrals_out_of_range_is_refused(max_deferrals: Any) -> None:
    """A negative number of deferrals has no meaning."""
    with pytest.raises(Refused, match="max_deferrals"):
        scheduler_for(Action.SYNC, max_deferrals=max_deferrals)
