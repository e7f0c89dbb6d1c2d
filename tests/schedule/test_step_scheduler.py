"""What the scheduler promises, call by call."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import kvmove
from kvmove import Action, Decision, Demotion, Hit, InternalError, Lane, RecordError, Refused, StepScheduler, schema

MIB = 1 << 20
ORDER = (Action.SYNC, Action.ASYNC, Action.RECOMPUTE, Action.DEFER)


@dataclass
class Rule:
    action: Action


class FakePolicy:
    """Answers with what a function says: an action, or any raw verdict."""

    def __init__(
        self, answer: Callable[[Hit, Any], Any] | Any, *, budget_bytes: int | None = None, policy_hash: str = "fake"
    ) -> None:
        self.answer = answer
        self.name = "fake"
        self.hash = policy_hash
        self.budget_bytes = budget_bytes
        self.rules = tuple(Rule(action) for action in ORDER)
        self.calls = 0

    def decide(self, hit: Hit, step: Any) -> int:
        self.calls += 1
        answer = self.answer(hit, step) if callable(self.answer) else self.answer
        return ORDER.index(answer) if isinstance(answer, Action) else answer


def make_hit(request: str = "r", mib: int = 1, *, blocks: int = 2, compute: int = 8, **fields: Any) -> Hit:
    tokens = mib * 1024
    return Hit(
        request=request,
        bytes=mib * MIB,
        tokens=tokens,
        blocks=blocks,
        prompt_tokens=tokens + compute,
        cached_tokens=0,
        compute_tokens=compute,
        **fields,
    )


def admit(scheduler: StepScheduler, decision: Decision, first_slot: int = 0) -> kvmove.Load:
    return scheduler.admit(
        decision.request,
        range(decision.blocks),
        range(first_slot, first_slot + decision.blocks),
    )


def scheduler_for(answer: Any, **options: Any) -> StepScheduler:
    return StepScheduler(FakePolicy(answer), **options)


def test_a_step_goes_from_hits_to_a_plan() -> None:
    """Sync loads come expedited, async loads bulk, stores beside them, each with a job id of its own."""
    answers = {"a": Action.SYNC, "b": Action.ASYNC, "c": Action.RECOMPUTE, "d": Action.DEFER}
    scheduler = scheduler_for(lambda hit, step: answers[hit.request], budget_bytes=8 * MIB)
    state = scheduler.begin_step(running=3)
    assert (state.budget_bytes, state.budget_remaining_bytes, state.running) == (8 * MIB, 8 * MIB, 3)
    decisions = {name: scheduler.decide(make_hit(name)) for name in answers}
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


def test_sync_beyond_the_budget_becomes_async() -> None:
    """Guard rail 1: the third MiB does not fit into two, and a smaller hit after it still does."""
    scheduler = scheduler_for(Action.SYNC, budget_bytes=5 * MIB)
    scheduler.begin_step()
    decisions = [scheduler.decide(make_hit(f"r{mib}", mib)) for mib in (3, 3 + 1, 2, 1)]
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
    assert scheduler.decide(make_hit()).action is action


def test_a_budget_of_zero_turns_sync_off() -> None:
    """No hit is small enough for a budget of nothing."""
    scheduler = scheduler_for(Action.SYNC, budget_bytes=0)
    scheduler.begin_step()
    assert scheduler.decide(make_hit()).demotion is Demotion.OVER_BUDGET


def test_a_hit_that_leaves_nothing_to_compute_is_not_sync() -> None:
    """Guard rail 2."""
    scheduler = scheduler_for(Action.SYNC)
    scheduler.begin_step()
    decision = scheduler.decide(make_hit(compute=0))
    assert (decision.action, decision.demotion) == (Action.ASYNC, Demotion.NOTHING_TO_COMPUTE)
    assert scheduler.end_step().sync_bytes == 0


@pytest.mark.parametrize("ending", ["end_step", "abort_step", None])
def test_the_budget_is_whole_again_in_the_next_step(ending: str | None) -> None:
    """Guard rail 4: also when the step before was aborted or never ended."""
    scheduler = scheduler_for(Action.SYNC, budget_bytes=MIB)
    for _ in range(3):
        state = scheduler.begin_step()
        assert (state.budget_remaining_bytes, state.sync_loads) == (MIB, 0)
        decision = scheduler.decide(make_hit())
        assert decision.action is Action.SYNC
        admit(scheduler, decision)
        if ending:
            getattr(scheduler, ending)()
    assert scheduler.statistics().aborted_steps == {"end_step": 0, "abort_step": 3, None: 2}[ending]


def test_a_step_that_was_never_ended_leaves_nothing_in_the_next_plan() -> None:
    """Loads and stores of an abandoned step are not planned, and their job ids are not used again."""
    scheduler = scheduler_for(Action.SYNC)
    scheduler.begin_step()
    lost = admit(scheduler, scheduler.decide(make_hit("a")))
    scheduler.store([1], [1])
    scheduler.begin_step()
    load = admit(scheduler, scheduler.decide(make_hit("a")))
    plan = scheduler.end_step()
    assert plan.sync_loads == (load,)
    assert plan.stores == ()
    assert load.job > lost.job


def test_defer_becomes_async_after_max_deferrals() -> None:
    """Guard rail 5: the hit whose request was deferred twice already is not deferred a third time."""
    scheduler = scheduler_for(Action.DEFER, max_deferrals=2)
    scheduler.begin_step()
    decisions = [scheduler.decide(make_hit(f"r{n}", deferrals=n)) for n in range(4)]
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
        decision = scheduler.decide(make_hit())
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

    policy = FakePolicy(answer)
    scheduler = StepScheduler(policy)
    for _ in range(3):
        policy.calls = 0
        scheduler.begin_step()
        with caplog.at_level(logging.ERROR):
            decisions = [scheduler.decide(make_hit(name)) for name in ("first", "bad", "later", "latest")]
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
    assert statistics.rules["fake"] == (3, 0, 0, 0)


def test_a_policy_set_after_a_failed_one_is_reported_in_turn(caplog: pytest.LogCaptureFixture) -> None:
    """Once per policy, not once per process: the operator sees that the repaired file fails too."""
    scheduler = scheduler_for(99)
    for policy_hash in ("one", "two"):
        scheduler.set_policy(FakePolicy(99, policy_hash=policy_hash))
        scheduler.begin_step()
        with caplog.at_level(logging.ERROR):
            scheduler.decide(make_hit())
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
    scheduler.decide(make_hit())
    with pytest.raises(KeyboardInterrupt):
        scheduler.decide(make_hit(priority=1))
    scheduler.check_integrity()
    assert scheduler.decide(make_hit()).action is Action.SYNC


def test_a_refund_returns_the_bytes_and_removes_the_decision() -> None:
    """Guard rail 8, before and after the request was admitted."""
    scheduler = scheduler_for(Action.SYNC, budget_bytes=MIB)
    scheduler.begin_step()
    scheduler.decide(make_hit("a"))
    scheduler.refund("a")
    admit(scheduler, scheduler.decide(make_hit("b")))
    scheduler.refund("b")
    scheduler.check_integrity()
    load = admit(scheduler, scheduler.decide(make_hit("c")))
    plan = scheduler.end_step()
    assert [d.request for d in plan.decisions] == ["c"]
    assert plan.sync_loads == (load,)
    assert scheduler.statistics().refunds == 2


def test_decisions_that_are_never_admitted_are_refunded_at_the_end() -> None:
    """The plan holds what moves, and its sync bytes are those of its sync loads."""
    answers = {"a": Action.SYNC, "b": Action.SYNC, "c": Action.ASYNC, "d": Action.DEFER}
    scheduler = scheduler_for(lambda hit, step: answers[hit.request])
    scheduler.begin_step()
    decisions = [scheduler.decide(make_hit(name, 2)) for name in answers]
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
    scheduler.decide(make_hit("a", 3))
    scheduler.decide(make_hit("a", 4))
    assert seen == [(4 * MIB, 0), (4 * MIB, 0)]
    decision = scheduler.decide(make_hit("a", 2))
    admit(scheduler, decision)
    plan = scheduler.end_step()
    assert plan.decisions == (decision,)
    assert plan.sync_bytes == 2 * MIB


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
        scheduler.decide(make_hit(name, 2))
    whole = {"budget_bytes": 4 * MIB, **said}
    assert seen == [
        {**whole, "budget_remaining_bytes": left * MIB, "sync_loads": loads} for left, loads in ((4, 0), (2, 1), (0, 2))
    ]


def test_the_budget_comes_from_the_engine_then_the_policy_then_the_default() -> None:
    """Each source only counts where the one before it says nothing; a change waits for the next step."""
    scheduler = StepScheduler(FakePolicy(Action.SYNC))
    assert scheduler.begin_step().budget_bytes == schema.DEFAULT_BUDGET_BYTES
    scheduler.set_policy(FakePolicy(Action.SYNC, budget_bytes=3 * MIB))
    scheduler.set_budget(2 * MIB)
    assert scheduler.decide(make_hit("a", 4)).action is Action.SYNC
    assert scheduler.end_step().budget_bytes == schema.DEFAULT_BUDGET_BYTES
    assert scheduler.begin_step().budget_bytes == 2 * MIB
    scheduler.set_budget(None)
    assert scheduler.begin_step().budget_bytes == 3 * MIB
    scheduler.set_budget(0)
    assert scheduler.begin_step().budget_bytes == 0


def test_a_new_policy_waits_for_the_next_step() -> None:
    """Every decision of a step carries the hash of the policy that the step began with."""
    scheduler = StepScheduler(FakePolicy(Action.SYNC, policy_hash="old"))
    scheduler.begin_step()
    scheduler.set_policy(FakePolicy(Action.RECOMPUTE, policy_hash="new"))
    old = scheduler.decide(make_hit())
    scheduler.begin_step()
    new = scheduler.decide(make_hit())
    assert (old.action, old.policy_hash) == (Action.SYNC, "old")
    assert (new.action, new.policy_hash) == (Action.RECOMPUTE, "new")


def test_calls_outside_a_step_are_refused() -> None:
    """Each names itself and the remedy."""
    scheduler = scheduler_for(Action.SYNC)
    calls: list[Callable[[], object]] = [
        lambda: scheduler.decide(make_hit()),
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
    scheduler.decide(make_hit("loads", priority=1))
    scheduler.decide(make_hit("computes"))
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
        scheduler.decide(make_hit("loads"))
    assert scheduler.end_step().sync_loads == (load,)


def test_a_step_with_a_value_out_of_range_does_not_begin() -> None:
    """The step that was under way goes on."""
    scheduler = scheduler_for(Action.SYNC)
    scheduler.begin_step()
    scheduler.decide(make_hit())
    with pytest.raises(RecordError, match="running is -1"):
        scheduler.begin_step(running=-1)
    admit(scheduler, again := scheduler.decide(make_hit()))
    assert scheduler.end_step().decisions == (again,)


@pytest.mark.parametrize("budget", [-1, schema.MAX_BYTES + 1, 1.5, True])
def test_a_budget_out_of_range_is_refused_and_the_old_one_stays(budget: Any) -> None:
    """From the engine and from a policy alike."""
    policy = FakePolicy(Action.SYNC)
    with pytest.raises(Refused, match="budget_bytes"):
        StepScheduler(policy, budget_bytes=budget)
    with pytest.raises(Refused, match="policy `fake`: budget_bytes"):
        StepScheduler(FakePolicy(Action.SYNC, budget_bytes=budget))
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
    no_action: Any = Rule("sync")  # type: ignore[arg-type]
    for rules in ((), (no_action,), (Rule(Action.ASYNC),) * 257):
        policy = FakePolicy(Action.SYNC)
        policy.rules = rules
        with pytest.raises(Refused, match="policy `fake`"):
            scheduler.set_policy(policy)
    scheduler.begin_step()
    assert scheduler.decide(make_hit()).action is Action.SYNC


@pytest.mark.parametrize("max_deferrals", [-1, 1.0, None])
def test_max_deferrals_out_of_range_is_refused(max_deferrals: Any) -> None:
    """A negative number of deferrals has no meaning."""
    with pytest.raises(Refused, match="max_deferrals"):
        scheduler_for(Action.SYNC, max_deferrals=max_deferrals)


def test_statistics_count_what_was_planned() -> None:
    """Bytes by lane, budgets offered and used, decisions, demotions and rules; a snapshot does not change."""
    answers = {"a": Action.SYNC, "b": Action.ASYNC, "c": Action.RECOMPUTE, "d": Action.SYNC}
    scheduler = scheduler_for(lambda hit, step: answers[hit.request], budget_bytes=4 * MIB)
    for _ in range(2):
        scheduler.begin_step()
        for name, mib in (("a", 3), ("b", 5), ("c", 1), ("d", 2)):
            decision = scheduler.decide(make_hit(name, mib))
            if decision.blocks:
                admit(scheduler, decision)
        scheduler.end_step()
    scheduler.begin_step()
    scheduler.decide(make_hit("a"))
    scheduler.abort_step()
    statistics = scheduler.statistics()
    assert (statistics.steps, statistics.aborted_steps, statistics.jobs) == (2, 1, 6)
    assert statistics.decisions == {Action.SYNC: 2, Action.ASYNC: 4, Action.RECOMPUTE: 2, Action.DEFER: 0}
    assert statistics.demotions[Demotion.OVER_BUDGET] == sum(statistics.demotions.values()) == 2
    assert statistics.admitted_bytes == {Lane.EXPEDITED: 6 * MIB, Lane.BULK: 14 * MIB}
    assert (statistics.budget_offered_bytes, statistics.budget_used_bytes) == (8 * MIB, 6 * MIB)
    assert statistics.rules == {"fake": (4, 2, 2, 0)}
    scheduler.begin_step()
    scheduler.end_step()
    assert statistics.steps == 2


def test_memory_does_not_grow_with_steps_or_reloads() -> None:
    """The table of rules keeps the latest policies only; nothing else outlives a step."""
    scheduler = scheduler_for(Action.SYNC)
    for number in range(50):
        scheduler.set_policy(FakePolicy(Action.SYNC, policy_hash=str(number)))
        scheduler.begin_step()
        admit(scheduler, scheduler.decide(make_hit(f"request {number}")))
        scheduler.end_step()
    assert list(scheduler.statistics().rules) == [str(number) for number in range(42, 50)]
    assert b"request" not in pickle.dumps(scheduler._counters)
    assert scheduler._step is None


def test_integrity_check_notices_a_ledger_that_was_tampered_with() -> None:
    """The check is not vacuous."""
    scheduler = scheduler_for(Action.SYNC)
    scheduler.begin_step()
    scheduler.decide(make_hit())
    assert scheduler._step is not None
    scheduler._step.ledger.budget_remaining_bytes += 1
    with pytest.raises(InternalError, match="budget"):
        scheduler.check_integrity()


def test_a_confirmed_load_keeps_its_bytes_without_a_load_of_ours() -> None:
    """Its decision and bytes are in the plan; confirming it twice, or what does not load, is refused."""
    scheduler = scheduler_for(Action.SYNC, budget_bytes=8 * MIB)
    scheduler.begin_step()
    scheduler.decide(make_hit("a", 5))
    scheduler.confirm("a")
    with pytest.raises(Refused, match="confirmed in this step already"):
        scheduler.confirm("a")
    with pytest.raises(Refused, match="confirmed in this step already"):
        scheduler.admit("a", [0], [0])
    with pytest.raises(Refused, match="admitted in this step already"):
        scheduler.decide(make_hit("a", 5))
    scheduler.check_integrity()
    plan = scheduler.end_step()
    assert (plan.sync_bytes, plan.sync_loads) == (5 * MIB, ())
    assert [d.request for d in plan.decisions] == ["a"]
    scheduler.begin_step()
    scheduler.decide(make_hit("a", 5))
    scheduler.confirm("a")
    scheduler.refund("a")
    assert scheduler.end_step().sync_bytes == 0
