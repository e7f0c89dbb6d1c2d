"""A policy that decides beside the live one, and is only counted."""

from __future__ import annotations

import logging
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvmove import Action, Demotion, Hit, Lane, Policy, Refused, StepScheduler, StepState, schema
from kvmove.schedule import ShadowStatistics, Statistics
from kvmove.schedule.open_step import LANE_OF
from kvmove.testing import hits, policies, steps
from kvmove.testing.scripted import MIB, ScriptedPolicy, hit_of

SYNC, ASYNC, RECOMPUTE, DEFER = Action.SYNC, Action.ASYNC, Action.RECOMPUTE, Action.DEFER


def decide_all(scheduler: StepScheduler, asked: list[Hit]) -> None:
    """One step, in which every hit is decided and every load is made."""
    scheduler.begin_step()
    for hit in asked:
        if scheduler.decide(hit).action in LANE_OF:
            scheduler.confirm(hit.request)
    scheduler.end_step()


def shadow_of(scheduler: StepScheduler) -> ShadowStatistics:
    shadow = scheduler.statistics().shadow
    assert shadow is not None
    return shadow


def by_request(**answers: Any) -> ScriptedPolicy:
    return ScriptedPolicy(lambda hit, step: answers[hit.request])


def test_disagreements_are_counted_by_kind() -> None:
    """What was done, and what would have been, for each pair; with the rules of the shadow."""
    live = by_request(a=SYNC, b=SYNC, c=ASYNC, d=RECOMPUTE, e=DEFER)
    shadow = by_request(a=SYNC, b=ASYNC, c=RECOMPUTE, d=RECOMPUTE, e=SYNC)
    scheduler = StepScheduler(live, shadow=shadow)
    for _ in range(2):
        decide_all(scheduler, [hit_of(name) for name in "abcde"])
    counted = shadow_of(scheduler)
    assert (counted.decisions, counted.agreed, counted.failures) == (10, 4, 0)
    assert counted.disagreements == {(SYNC, ASYNC): 2, (ASYNC, RECOMPUTE): 2, (DEFER, SYNC): 2}
    assert counted.actions[SYNC] == {SYNC: 2, ASYNC: 2, RECOMPUTE: 0, DEFER: 0}
    assert counted.rules == (4, 2, 4, 0)
    assert (counted.sync_bytes, counted.live_sync_bytes) == (4 * MIB, 4 * MIB)
    assert counted.agreed + sum(counted.disagreements.values()) == counted.decisions


def test_a_load_of_another_size_is_a_disagreement() -> None:
    """Both load inside the step, one of them only the first block."""
    scheduler = StepScheduler(by_request(a=SYNC, b=1 << 8), shadow=by_request(a=1 << 8, b=1 << 8))
    decide_all(scheduler, [hit_of("a", 2), hit_of("b", 2)])
    counted = shadow_of(scheduler)
    assert (counted.agreed, counted.disagreements) == (1, {(SYNC, SYNC): 1})
    assert counted.resized == {SYNC: 1, ASYNC: 0, RECOMPUTE: 0, DEFER: 0}
    assert (counted.live_sync_bytes, counted.sync_bytes) == (3 * MIB, 2 * MIB)


def test_a_shadow_has_a_ledger_and_a_budget_of_its_own() -> None:
    """It neither takes from the live budget nor sees what the live policy took; guard rails hold for it too."""
    left: list[int] = []

    def answer(hit: Hit, step: Any) -> Action:
        left.append(step.budget_remaining_bytes)
        return SYNC

    shadow = ScriptedPolicy(answer, budget_bytes=5 * MIB)
    scheduler = StepScheduler(ScriptedPolicy(SYNC, budget_bytes=9 * MIB), shadow=shadow)
    decide_all(scheduler, [hit_of("a", 3), hit_of("b", 3), hit_of("c", 2), hit_of("d", 1, compute=0)])
    assert left == [5 * MIB, 2 * MIB, 2 * MIB, 0]
    counted = shadow_of(scheduler)
    # Of the shadow's, b is over its budget; d leaves nothing to compute under either.
    assert counted.disagreements == {(SYNC, ASYNC): 1}
    assert (counted.live_sync_bytes, counted.sync_bytes) == (8 * MIB, 5 * MIB)
    assert scheduler.statistics().demotions[Demotion.OVER_BUDGET] == 0


def test_an_engines_budget_is_the_shadows_too() -> None:
    """As it would be if the shadow were live."""
    shadow = ScriptedPolicy(SYNC, budget_bytes=100 * MIB)
    scheduler = StepScheduler(ScriptedPolicy(SYNC), shadow=shadow, budget_bytes=MIB)
    decide_all(scheduler, [hit_of("a"), hit_of("b")])
    assert shadow_of(scheduler).sync_bytes == MIB


def test_what_is_not_planned_is_not_counted_and_is_refunded() -> None:
    """Refunded, replaced, never admitted, and in a step that was aborted."""
    scheduler = StepScheduler(ScriptedPolicy(ASYNC), shadow=ScriptedPolicy(SYNC), budget_bytes=2 * MIB)
    scheduler.begin_step()
    scheduler.decide(hit_of("a", 2))
    scheduler.abort_step()
    scheduler.begin_step()
    scheduler.decide(hit_of("a", 2))
    scheduler.refund("a")
    scheduler.decide(hit_of("b", 2))
    scheduler.decide(hit_of("b", 1))
    scheduler.decide(hit_of("c", 1))
    scheduler.decide(hit_of("d", 1))
    scheduler.confirm("c")
    scheduler.end_step()
    counted = shadow_of(scheduler)
    # Had a or the first b kept its bytes, c would not have fitted.
    assert (counted.decisions, counted.disagreements, counted.sync_bytes) == (1, {(ASYNC, SYNC): 1}, MIB)


@pytest.mark.parametrize("answer", [ValueError("x"), 99, None, -1], ids=repr)
def test_a_shadow_that_fails_sits_out_the_rest_of_its_step(answer: Any, caplog: pytest.LogCaptureFixture) -> None:
    """The live policy goes on; the failure is counted in every step and reported once."""

    def fail(hit: Hit, step: Any) -> Any:
        if hit.request != "bad":
            return SYNC
        if isinstance(answer, Exception):
            raise answer
        return answer

    shadow = ScriptedPolicy(fail)
    scheduler = StepScheduler(ScriptedPolicy(SYNC), shadow=shadow)
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            decide_all(scheduler, [hit_of(name) for name in ("first", "bad", "last")])
    counted = shadow_of(scheduler)
    assert (counted.decisions, counted.agreed, counted.failures) == (3, 3, 3)
    assert shadow.calls == 6
    assert len(caplog.records) == 1
    assert "as a shadow it sits out the rest of every step" in caplog.text
    statistics = scheduler.statistics()
    assert (statistics.policy_errors, statistics.decisions[SYNC]) == (0, 9)


def test_a_live_policy_that_fails_is_still_compared() -> None:
    """What was done then is to load asynchronously."""
    scheduler = StepScheduler(ScriptedPolicy(99), shadow=ScriptedPolicy(RECOMPUTE))
    decide_all(scheduler, [hit_of("a"), hit_of("b")])
    assert shadow_of(scheduler).disagreements == {(ASYNC, RECOMPUTE): 2}


def test_a_new_shadow_waits_for_the_next_step_and_starts_from_nothing() -> None:
    """The step under way counts for nobody; None ends it."""
    scheduler = StepScheduler(ScriptedPolicy(SYNC))
    assert scheduler.statistics().shadow is None
    scheduler.begin_step()
    scheduler.set_shadow(ScriptedPolicy(ASYNC, policy_hash="one"))
    scheduler.decide(hit_of())
    scheduler.confirm("r")
    scheduler.end_step()
    assert (shadow_of(scheduler).policy_hash, shadow_of(scheduler).decisions) == ("one", 0)
    decide_all(scheduler, [hit_of()])
    assert shadow_of(scheduler).decisions == 1
    with pytest.raises(Refused, match="is no policy"):
        scheduler.set_shadow("budgeted")  # type: ignore[arg-type]
    decide_all(scheduler, [hit_of()])
    assert shadow_of(scheduler).decisions == 2
    scheduler.begin_step()
    scheduler.decide(hit_of())
    scheduler.confirm("r")
    scheduler.set_shadow(ScriptedPolicy(ASYNC, policy_hash="two"))
    scheduler.end_step()
    assert (shadow_of(scheduler).policy_hash, shadow_of(scheduler).decisions) == ("two", 0)
    scheduler.set_shadow(None)
    decide_all(scheduler, [hit_of()])
    assert scheduler.statistics().shadow is None


def planned(live: Policy, shadow: Policy | None, step: StepState, asked: list[Hit]) -> tuple[Any, Statistics]:
    """The plan of one step under `live`, with the loads of every decision, and what was counted."""
    scheduler = StepScheduler(live, budget_bytes=step.budget_bytes, shadow=shadow)
    given_by_engine = {v.attribute: getattr(step, v.attribute) for v in schema.STEP if not v.name.startswith("budget")}
    del given_by_engine["sync_loads"]
    scheduler.begin_step(**given_by_engine)
    for hit in asked:
        if scheduler.decide(hit).action in LANE_OF:
            scheduler.confirm(hit.request)
    return scheduler.end_step(), scheduler.statistics()


TEXTS = st.lists(policies(max_rules=3, max_depth=1), min_size=2, max_size=2)


@settings(max_examples=30)
@given(TEXTS, st.lists(hits(max_bytes=1 << 22), max_size=6, unique_by=lambda hit: hit.request), steps())
def test_a_shadow_does_what_it_would_do_alone_and_changes_nothing(
    texts: list[str], asked: list[Hit], step: StepState
) -> None:
    """Compared with two schedulers: one without a shadow, and one in which the shadow is the live policy."""
    live, shadow = (Policy.parse(text) for text in texts)
    plan, counted = planned(live, shadow, step, asked)
    alone, counted_alone = planned(live, None, step, asked)
    promoted, counted_promoted = planned(shadow, None, step, asked)
    assert plan == alone
    assert counted.decisions == counted_alone.decisions
    assert counted.shadow is not None
    pairs = Counter((a.action, b.action) for a, b in zip(plan.decisions, promoted.decisions, strict=True))
    told = {(a, b): n for a, row in counted.shadow.actions.items() for b, n in row.items() if n}
    assert told == dict(pairs)
    assert counted.shadow.agreed == sum(
        (a.action, a.blocks) == (b.action, b.blocks) for a, b in zip(plan.decisions, promoted.decisions, strict=True)
    )
    assert counted.shadow.rules == counted_promoted.rules[shadow.hash]
    assert counted.shadow.sync_bytes == counted_promoted.admitted_bytes[Lane.EXPEDITED]
