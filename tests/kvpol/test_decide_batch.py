"""Three implementations decide alike: the tree evaluator, the compiled function, and the compiled batch.

What fails here shrinks to a short policy and few hits; `test_differential` has the thousands of cases.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kvmove import Action, Hit, Policy, StepScheduler, StepState, schema
from kvmove.kvpol.compiler import CHANGED_BY_ADMISSION
from kvmove.kvpol.evaluate import Evaluator
from kvmove.kvpol.library import shipped
from kvmove.schedule.ledger import Ledger
from kvmove.testing import hits, policies, steps

STEP = StepState(budget_bytes=10_000, budget_remaining_bytes=10_000)


def any_hit(num_bytes: int, blocks: int = 4) -> Hit:
    return Hit(
        request=f"r{num_bytes}", bytes=num_bytes, tokens=64, blocks=blocks, prompt_tokens=100, cached_tokens=6,
        compute_tokens=30,
    )  # fmt: skip


class Admission:
    """Debits the ledger as a scheduler does, and keeps the verdicts."""

    def __init__(self, policy: Policy, step: StepState) -> None:
        self.policy, self.ledger = policy, Ledger(step)
        self.verdicts: list[int] = []

    def __call__(self, hit: Hit, verdict: int) -> None:
        self.verdicts.append(verdict)
        num_bytes = hit.prefix_bytes(verdict >> 8 or hit.blocks)
        if self.policy.rules[verdict & 255].action is Action.SYNC and num_bytes <= self.ledger.budget_remaining_bytes:
            self.ledger.reserve(num_bytes)


@settings(max_examples=40)
@given(policies(), st.lists(hits(max_bytes=1 << 22), min_size=1, max_size=8), steps(max_budget_bytes=1 << 23))
@example("sync at most budget_remaining", [any_hit(6_000), any_hit(7_000), any_hit(8_000)], STEP)
@example("sync if bytes <= budget_remaining and sync_loads < 2", [any_hit(10), any_hit(20), any_hit(30)], STEP)
@example("let x = step_time < 5s\nsync if x or budget > 3B\ndefer if not x", [any_hit(1), any_hit(2)], STEP)
def test_batch_equals_one_after_the_other(text: str, asked: list[Hit], step: StepState) -> None:
    """Every hit sees the ledger as those before it left it, in all three."""
    policy = Policy.parse(text)
    batch, single, walked = (Admission(policy, step) for _ in range(3))
    policy.decide_batch(asked, batch.ledger, batch)
    evaluator = Evaluator(policy.analysis.file, policy.program.params)
    for hit in asked:
        single(hit, policy.decide(hit, single.ledger))
        walked(hit, evaluator.verdict(hit, walked.ledger))
    assert batch.verdicts == single.verdicts == walked.verdicts
    assert batch.ledger.budget_remaining_bytes == walked.ledger.budget_remaining_bytes
    assert policy.explain(asked[0], step)[0] == evaluator.rule(asked[0], step)


@settings(max_examples=25)
@given(policies(), st.lists(hits(max_bytes=1 << 22), max_size=6), steps(max_budget_bytes=1 << 23))
def test_a_schedulers_batch_equals_its_single_decisions(text: str, asked: list[Hit], step: StepState) -> None:
    """Guard rails, reservations and replaced decisions included; a batch may name a request twice."""
    named = [replace(hit, request=f"r{i % 4}") for i, hit in enumerate(asked)]
    given = {v.attribute: getattr(step, v.attribute) for v in schema.STEP if not v.name.startswith("budget")}
    del given["sync_loads"]
    made = []
    for in_batch in (True, False):
        scheduler = StepScheduler(Policy.parse(text), budget_bytes=step.budget_bytes, shadow=Policy.parse("async"))
        scheduler.begin_step(**given)
        decisions = scheduler.decide_batch(named) if in_batch else [scheduler.decide(hit) for hit in named]
        scheduler.check_integrity()
        # A request that is named twice keeps its last decision.
        for decision in {d.request: d for d in decisions}.values():
            if decision.blocks:
                scheduler.admit(decision.request, range(decision.blocks), range(decision.blocks))
        plan = scheduler.end_step()
        made.append((decisions, plan.decisions, plan.sync_bytes, scheduler.statistics()))
    assert made[0] == made[1]
    assert made[0][3].policy_errors == 0


@pytest.mark.parametrize("name", shipped())
@settings(max_examples=15)
@given(asked=st.lists(hits(), min_size=1, max_size=4), step=steps())
def test_shipped_policies_decide_alike_in_batches(name: str, asked: list[Hit], step: StepState) -> None:
    """The policies that come with kvmove."""
    policy = Policy.load(name)
    batch, walked = Admission(policy, step), Admission(policy, step)
    policy.decide_batch(asked, batch.ledger, batch)
    evaluator = Evaluator(policy.analysis.file, policy.program.params)
    for hit in asked:
        walked(hit, evaluator.verdict(hit, walked.ledger))
    assert batch.verdicts == walked.verdicts


def test_what_no_admission_changes_is_read_once_a_batch() -> None:
    """The rest of the step is read for every hit that asks for it."""
    reads: list[str] = []

    class Counting:
        def __getattr__(self, name: str) -> int:
            reads.append(name)
            return 5

    policy = Policy.parse(
        "sync if waiting > 7 and bytes <= budget_remaining\ndefer if running > 9 or 2 * bytes > budget_remaining"
    )
    policy.decide_batch([any_hit(n) for n in (1, 2, 3)], Counting(), lambda hit, verdict: None)
    assert (reads.count("waiting"), reads.count("running"), reads.count("budget_remaining_bytes")) == (1, 1, 3)


def test_admissions_change_what_a_ledger_changes() -> None:
    """The attributes that a batch reads afresh are those that reserving changes."""
    ledger = Ledger(STEP)
    ledger.reserve(10)
    changed = {v.attribute for v in schema.STEP if getattr(ledger, v.attribute) != getattr(STEP, v.attribute)}
    assert changed == CHANGED_BY_ADMISSION


def test_an_empty_batch_decides_nothing() -> None:
    """No hit, no admission."""
    policy = Policy.parse("sync at most budget_remaining")
    policy.decide_batch([], STEP, lambda hit, verdict: pytest.fail("nothing to admit"))
    scheduler = StepScheduler(policy)
    scheduler.begin_step()
    assert scheduler.decide_batch([]) == []
