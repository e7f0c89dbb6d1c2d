"""The budget holds under any policy: those that come with kvmove, and texts drawn at random."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kvmove
from kvmove import Action, Demotion, Hit, Policy, StepScheduler, StepState, schema
from kvmove.testing import hits, policies, steps
from kvmove.testing.corpus import drawn_policies, random_hit, random_step
from kvmove.testing.edges import edges_of

SHIPPED = sorted(path.stem for path in Path(kvmove.__file__).with_name("policies").glob("*.kvpol"))


def begin(scheduler: StepScheduler, state: StepState) -> None:
    given_by_engine = {v.attribute: getattr(state, v.attribute) for v in schema.STEP if not v.name.startswith("budget")}
    del given_by_engine["sync_loads"]
    scheduler.begin_step(**given_by_engine)


def run_step(scheduler: StepScheduler, state: StepState, asked: list[tuple[Hit, bool]]) -> None:
    """Decide every hit, admit the marked ones, and hold the plan against the budget."""
    scheduler.set_budget(state.budget_bytes)
    begin(scheduler, state)
    for hit, admitted in asked:
        decision = scheduler.decide(hit)
        assert decision.demotion is not Demotion.POLICY_FAILED
        if decision.action is Action.SYNC:
            assert hit.compute_tokens > 0 or decision.partial
        if decision.blocks:
            assert (decision.bytes, decision.tokens) == (
                hit.prefix_bytes(decision.blocks),
                hit.prefix_tokens(decision.blocks),
            )
            assert decision.partial == (decision.blocks < hit.blocks)
        if decision.blocks and admitted:
            scheduler.admit(hit.request, range(decision.blocks), range(decision.blocks))
        scheduler.check_integrity()
    plan = scheduler.end_step()
    sync = [d for d in plan.decisions if d.action is Action.SYNC]
    assert plan.sync_bytes == sum(d.bytes for d in sync) <= state.budget_bytes
    assert len(plan.sync_loads) == len(sync)


def asked_hits(max_bytes: int) -> st.SearchStrategy[list[tuple[Hit, bool]]]:
    one = st.tuples(hits(max_bytes=max_bytes, max_tokens=4096), st.booleans())
    return st.lists(one, max_size=6, unique_by=lambda pair: pair[0].request)


@given(text=policies(max_rules=4, max_depth=2), state=steps(max_budget_bytes=1 << 20), asked=asked_hits(1 << 19))
@settings(max_examples=60)
def test_no_policy_exceeds_the_budget(text: str, state: StepState, asked: list[tuple[Hit, bool]]) -> None:
    """Any text that compiles, any step, any hits: and what the checker accepted never fails."""
    run_step(StepScheduler(Policy.parse(text)), state, asked)


def test_no_policy_of_the_corpus_exceeds_the_budget() -> None:
    """Nine hundred steps, whose budgets are near what some of their hits weigh; several with one scheduler."""
    sync_bytes = 0
    for index, policy in enumerate(drawn_policies()):
        scheduler, edges = StepScheduler(policy), edges_of(policy)
        for seed in range(6):
            rng = Random(1000 * index + seed)
            asked = [random_hit(rng, edges, max_bytes=1 << 22, request=f"r{i}") for i in range(6)]
            run_step(scheduler, random_step(rng, edges, beside=asked), [(hit, rng.random() < 0.7) for hit in asked])
        statistics = scheduler.statistics()
        assert statistics.policy_errors == 0, (index, policy.text)
        assert statistics.budget_used_bytes <= statistics.budget_offered_bytes
        sync_bytes += statistics.budget_used_bytes
    assert sync_bytes > 0


@pytest.mark.parametrize("name", SHIPPED)
@given(data=st.data())
@settings(max_examples=15)
def test_no_shipped_policy_exceeds_the_budget(name: str, data: st.DataObject) -> None:
    """Over several steps, with every value that the schema allows."""
    scheduler = StepScheduler(Policy.load(name))
    for _ in range(2):
        run_step(scheduler, data.draw(steps()), data.draw(asked_hits(schema.MAX_BYTES)))
    assert scheduler.statistics().policy_errors == 0


def test_a_policy_reads_the_ledger_as_it_reads_a_step_state() -> None:
    """The second hit does not fit into what the first one left, so that its rule does not match."""
    scheduler = StepScheduler(Policy.parse("@fits sync if bytes <= budget_remaining\nrecompute"), budget_bytes=1000)
    scheduler.begin_step()
    actions = []
    for request, num_bytes in (("a", 600), ("b", 600), ("c", 400)):
        hit = Hit(
            request=request,
            bytes=num_bytes,
            tokens=1,
            blocks=1,
            prompt_tokens=2,
            cached_tokens=0,
            compute_tokens=1,
        )
        decision = scheduler.decide(hit)
        assert decision.demotion is None
        actions.append(decision.action)
    assert actions == [Action.SYNC, Action.RECOMPUTE, Action.SYNC]


def test_the_policys_budget_is_the_steps_where_the_engine_names_none() -> None:
    """`param budget` of the file."""
    scheduler = StepScheduler(Policy.parse("param budget: bytes = 3MiB\nsync if bytes <= budget_remaining"))
    assert scheduler.begin_step().budget_bytes == 3 << 20
