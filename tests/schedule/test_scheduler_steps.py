"""How a step goes from hits to a plan: what is in the plan, what is taken back, what the policy sees."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from kvmove import Action, Decision, Hit, Lane, Load, Refused, StepScheduler, schema
from kvmove.testing.scripted import MIB, ScriptedPolicy, hit_of


def scheduler_for(answer: Any, **options: Any) -> StepScheduler:
    return StepScheduler(ScriptedPolicy(answer), **options)


def admit(scheduler: StepScheduler, decision: Decision, first_slot: int = 0) -> Load:
    slots = range(first_slot, first_slot + decision.blocks)
    return scheduler.admit(decision.request, range(decision.blocks), slots)


def test_a_step_goes_from_hits_to_a_plan() -> None:
    """Sync loads come expedited, async loads bulk, stores beside them, each with a job id of its own."""
    answers = {"a": Action.SYNC, "b": Action.ASYNC, "c": Action.RECOMPUTE, "d": Action.DEFER}
    scheduler = scheduler_for(lambda hit, step: answers[hit.request], budget_bytes=8 * MIB)
    state = scheduler.begin_step(running=3)
    assert (state.budget_bytes, state.budget_remaining_bytes, state.running) == (8 * MIB, 8 * MIB, 3)
    decisions = {name: scheduler.decide(hit_of(name)) for name in answers}
    sync = scheduler.admit("a", [4, 5], np.array([8, 9]))
    background = scheduler.admit("b", [6, 7], [10, 11])
    store = scheduler.store([1, 2, 3], [20, 21, 22])
    plan = scheduler.end_step()
    assert [d.action for d in plan.decisions] == list(answers.values())
    assert plan.decisions == tuple(decisions.values())
    assert (sync.lane, background.lane) == (Lane.EXPEDITED, Lane.BULK)
    assert plan.sync_loads == (sync,)
    assert plan.async_loads == (background,)
    assert plan.stores == (store,)
    assert len({sync.job, background.job, store.job}) == 3
    assert (plan.budget_bytes, plan.sync_bytes) == (8 * MIB, MIB)
    assert decisions["c"].blocks == decisions["c"].bytes == decisions["d"].tokens == 0
    assert pickle.loads(pickle.dumps(plan)) == plan


@pytest.mark.parametrize("ending", ["end_step", "abort_step", None])
def test_the_budget_is_whole_again_in_the_next_step(ending: str | None) -> None:
    """Guard rail 4: also when the step before was aborted or never ended."""
    scheduler = scheduler_for(Action.SYNC, budget_bytes=MIB)
    for _ in range(3):
        state = scheduler.begin_step()
        assert (state.budget_remaining_bytes, state.sync_loads) == (MIB, 0)
        decision = scheduler.decide(hit_of())
        assert decision.action is Action.SYNC
        admit(scheduler, decision)
        if ending:
            getattr(scheduler, ending)()
    assert scheduler.statistics().aborted_steps == {"end_step": 0, "abort_step": 3, None: 2}[ending]


def test_a_step_that_was_never_ended_leaves_nothing_in_the_next_plan() -> None:
    """Loads and stores of an abandoned step are not planned, and their job ids are not used again."""
    scheduler = scheduler_for(Action.SYNC)
    scheduler.begin_step()
    lost = admit(scheduler, scheduler.decide(hit_of("a")))
    scheduler.store([1], [1])
    scheduler.begin_step()
    load = admit(scheduler, scheduler.decide(hit_of("a")))
    plan = scheduler.end_step()
    assert plan.sync_loads == (load,)
    assert plan.stores == ()
    assert load.job > lost.job


def test_a_refund_returns_the_bytes_and_removes_the_decision() -> None:
    """Guard rail 8, before and after the request was admitted."""
    scheduler = scheduler_for(Action.SYNC, budget_bytes=MIB)
    scheduler.begin_step()
    scheduler.decide(hit_of("a"))
    scheduler.refund("a")
    admit(scheduler, scheduler.decide(hit_of("b")))
    scheduler.refund("b")
    scheduler.check_integrity()
    load = admit(scheduler, scheduler.decide(hit_of("c")))
    plan = scheduler.end_step()
    assert [d.request for d in plan.decisions] == ["c"]
    assert plan.sync_loads == (load,)
    assert scheduler.statistics().refunds == 2


def test_decisions_that_are_never_admitted_are_refunded_at_the_end() -> None:
    """The plan holds what moves, and its sync bytes are those of its sync loads."""
    answers = {"a": Action.SYNC, "b": Action.SYNC, "c": Action.ASYNC, "d": Action.DEFER}
    scheduler = scheduler_for(lambda hit, step: answers[hit.request])
    scheduler.begin_step()
    decisions = [scheduler.decide(hit_of(name, 2)) for name in answers]
    admit(scheduler, decisions[1])
    plan = scheduler.end_step()
    assert [d.request for d in plan.decisions] == ["b", "d"]
    assert plan.sync_bytes == 2 * MIB
    assert scheduler.statistics().unadmitted == 2


def test_a_second_decision_replaces_the_first() -> None:
    """The first reservation is refunded before the policy is asked again."""
    seen = []

    def answer(hit: Hit, step: Any) -> Action:
        seen.append((step.budget_remaining_bytes, step.sync_loads))
        return Action.SYNC

    scheduler = scheduler_for(answer, budget_bytes=4 * MIB)
    scheduler.begin_step()
    scheduler.decide(hit_of("a", 3))
    scheduler.decide(hit_of("a", 4))
    assert seen == [(4 * MIB, 0), (4 * MIB, 0)]
    decision = scheduler.decide(hit_of("a", 2))
    admit(scheduler, decision)
    plan = scheduler.end_step()
    assert plan.decisions == (decision,)
    assert plan.sync_bytes == 2 * MIB


def test_a_confirmed_load_keeps_its_bytes_without_a_load_of_ours() -> None:
    """Its decision and bytes are in the plan; confirming it twice, or what does not load, is refused."""
    scheduler = scheduler_for(Action.SYNC, budget_bytes=8 * MIB)
    scheduler.begin_step()
    scheduler.decide(hit_of("a", 5))
    scheduler.confirm("a")
    with pytest.raises(Refused, match="confirmed in this step already"):
        scheduler.confirm("a")
    with pytest.raises(Refused, match="confirmed in this step already"):
        scheduler.admit("a", [0], [0])
    with pytest.raises(Refused, match="admitted in this step already"):
        scheduler.decide(hit_of("a", 5))
    scheduler.check_integrity()
    plan = scheduler.end_step()
    assert (plan.sync_bytes, plan.sync_loads) == (5 * MIB, ())
    assert [d.request for d in plan.decisions] == ["a"]
    scheduler.begin_step()
    scheduler.decide(hit_of("a", 5))
    scheduler.confirm("a")
    scheduler.refund("a")
    assert scheduler.end_step().sync_bytes == 0


def test_the_policy_sees_the_live_ledger() -> None:
    """Every attribute of a StepState is there; what is left and the sync loads follow the decisions."""
    seen: list[dict[str, Any]] = []

    def answer(hit: Hit, step: Any) -> Action:
        seen.append({v.attribute: getattr(step, v.attribute) for v in schema.STEP})
        return Action.SYNC

    scheduler = scheduler_for(answer, budget_bytes=4 * MIB)
    said: dict[str, Any] = {
        "inflight_bytes": 7,
        "inflight_loads": 2,
        "drain_time_ns": 5,
        "step_time_ns": None,
        "async_delay_ns": 9,
        "running": 1,
        "waiting": 4,
        "free_slots": 6,
    }
    scheduler.begin_step(**said)
    for name in "abc":
        scheduler.decide(hit_of(name, 2))
    whole = {"budget_bytes": 4 * MIB, **said}
    assert seen == [
        {**whole, "budget_remaining_bytes": left * MIB, "sync_loads": loads} for left, loads in ((4, 0), (2, 1), (0, 2))
    ]


def test_the_budget_comes_from_the_engine_then_the_policy_then_the_default() -> None:
    """Each source only counts where the one before it says nothing; a change waits for the next step."""
    scheduler = StepScheduler(ScriptedPolicy(Action.SYNC))
    assert scheduler.begin_step().budget_bytes == schema.DEFAULT_BUDGET_BYTES
    scheduler.set_policy(ScriptedPolicy(Action.SYNC, budget_bytes=3 * MIB))
    scheduler.set_budget(2 * MIB)
    assert scheduler.decide(hit_of("a", 4)).action is Action.SYNC
    assert scheduler.end_step().budget_bytes == schema.DEFAULT_BUDGET_BYTES
    assert scheduler.begin_step().budget_bytes == 2 * MIB
    scheduler.set_budget(None)
    assert scheduler.begin_step().budget_bytes == 3 * MIB
    scheduler.set_budget(0)
    assert scheduler.begin_step().budget_bytes == 0


def test_a_new_policy_waits_for_the_next_step() -> None:
    """Every decision of a step carries the hash of the policy that the step began with."""
    scheduler = StepScheduler(ScriptedPolicy(Action.SYNC, policy_hash="old"))
    scheduler.begin_step()
    scheduler.set_policy(ScriptedPolicy(Action.RECOMPUTE, policy_hash="new"))
    old = scheduler.decide(hit_of())
    scheduler.begin_step()
    new = scheduler.decide(hit_of())
    assert (old.action, old.policy_hash) == (Action.SYNC, "old")
    assert (new.action, new.policy_hash) == (Action.RECOMPUTE, "new")
