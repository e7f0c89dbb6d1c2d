"""What proofs say of random policies is so, as far as the evaluator and the compiled policy can tell.

Every counterexample is decided again by the compiled policy and by the evaluator. What is proved is tried on drawn
situations at the edges of the policies' own constants: one that contradicts a proof would be a hole in it.
"""

from __future__ import annotations

import random
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from kvmove import Action, Hit, Policy, StepState
from kvmove.errors import PolicyError
from kvmove.kvpol import proof, tree
from kvmove.kvpol.proof.confirm import assert_holds, outcome
from kvmove.kvpol.proof.inputs import READABLE
from kvmove.kvpol.proof.results import Comparison, Example, Report, RuleProof, Status, SyncOrder
from kvmove.kvpol.trace import trace
from kvmove.schema import Unit
from kvmove.testing import policies
from kvmove.testing.edges import edges_of
from kvmove.testing.records import hit_from, situations_at

pytest.importorskip("z3")

TIMEOUT_S = 0.2  # what is not answered by then is unknown, and nothing is claimed of it
SETTINGS = settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])


class Asked(NamedTuple):
    """What a policy asks for, by its compiled function."""

    rule: int
    action: Action
    blocks: int
    bytes: int


def asked(policy: Policy, hit: Hit, step: StepState) -> Asked:
    """What the compiled policy asks for; the evaluator has to agree."""
    verdict = policy.decide(hit, step)
    action = policy.rules[verdict & 0xFF].action
    loads = action in (Action.SYNC, Action.ASYNC)
    blocks = (verdict >> 8 or hit.blocks) if loads else 0
    found = Asked(verdict & 0xFF, action, blocks, hit.prefix_bytes(blocks) if loads else 0)
    by_evaluator = outcome(policy, Example(hit, step))
    assert found == (by_evaluator.rule, by_evaluator.action, by_evaluator.blocks, by_evaluator.bytes)
    return found


def is_sync(policy: Policy, x: Example) -> bool:
    return asked(policy, x.hit, x.step).action is Action.SYNC


def drawn_situations(data: st.DataObject, *of: Policy, count: int = 10) -> list[Example]:
    drawn = data.draw(st.lists(situations_at(edges_of(*of)), min_size=count, max_size=count), label="situations")
    return [Example(hit, step) for hit, step in drawn]


CHANGES = [(" <= ", " < "), (" < ", " <= "), (" and ", " or "), ("sync", "async"), ("MiB", "KiB"), (" >= ", " > ")]


@st.composite
def pairs(draw: st.DrawFn) -> tuple[str, str]:
    """Two policies: strangers, or one and what a small change makes of it."""
    first = draw(policies(max_rules=3, max_depth=2))
    if draw(st.booleans()):
        return first, draw(policies(max_rules=3, max_depth=2))
    rng = random.Random(draw(st.integers(0, 1 << 16)))
    before, after = rng.choice([change for change in CHANGES if change[0] in first] or [("\n", " # same\n")])
    places = [i for i in range(len(first)) if first.startswith(before, i)]
    at = rng.choice(places) if places else len(first)
    return first, first[:at] + first[at:].replace(before, after, 1)


def check_comparison(found: Comparison, situations: list[Example]) -> None:
    a, b = found.first, found.second
    for x in found.equivalent.examples:
        first, second = asked(a, x.hit, x.step), asked(b, x.hit, x.step)
        assert (first.action, first.blocks) != (second.action, second.blocks)
    assert bool(found.equivalent.examples) == (found.equivalent.status is Status.FALSE)
    for here, there, only in ((a, b, found.only_first), (b, a, found.only_second)):
        assert only is None or (is_sync(here, only) and not is_sync(there, only))
    assert found.only_first is None or found.sync in (
        SyncOrder.SECOND_WITHIN_FIRST,
        SyncOrder.NEITHER,
        SyncOrder.UNKNOWN,
    )
    for x in situations:
        first, second = asked(a, x.hit, x.step), asked(b, x.hit, x.step)
        if found.equivalent.status is Status.PROVED:
            assert (first.action, first.blocks) == (second.action, second.blocks)
        if found.sync in (SyncOrder.SAME, SyncOrder.FIRST_WITHIN_SECOND) and first.action is Action.SYNC:
            assert second.action is Action.SYNC
        if found.sync in (SyncOrder.SAME, SyncOrder.SECOND_WITHIN_FIRST) and second.action is Action.SYNC:
            assert first.action is Action.SYNC


@SETTINGS
@given(pairs(), st.data())
@example(("sync if bytes < 3B\nasync", "sync if bytes <= 2B\nasync"), None)
@example(("sync at most budget_remaining", "sync if bytes <= budget_remaining\nasync"), None)
@example(("sync at most 1000tok", "sync at most tokens - 1tok if tokens > 1000tok\nsync"), None)
@example(("defer if load_time / 3 < 1ns", "defer if load_time <= 2ns"), None)
def test_what_a_diff_says_of_two_policies_is_so(texts: tuple[str, str], data: st.DataObject | None) -> None:
    """Hits that differ do, equivalent policies do not, and the more permissive one is sync wherever the other is."""
    try:
        first, second = Policy.parse(texts[0]), Policy.parse(texts[1])
    except PolicyError:  # the change made it no policy
        return
    situations = [] if data is None else drawn_situations(data, first, second)
    check_comparison(proof.compare(first, second, timeout_s=TIMEOUT_S), situations)


def check_rule(policy: Policy, found: RuleProof, x: Example) -> None:
    decided = asked(policy, x.hit, x.step)
    index = found.rule.index
    if found.status is Status.FALSE:
        assert decided.rule != index
        if found.shadowed_by is not None:
            rules = trace(policy, x.hit, x.step).rules
            assert not rules[index].matches or any(rules[s.index].matches for s in found.shadowed_by)
    if found.beyond_budget is False and decided.rule == index:
        assert decided.bytes <= x.step.budget_remaining_bytes


def check_report(report: Report, situations: list[Example]) -> None:
    policy = report.policy
    for rule in report.rules:
        beyond = rule.beyond_budget_example
        assert (beyond is not None) == (rule.beyond_budget is True)
        if beyond is not None:
            decided = asked(policy, beyond.hit, beyond.step)
            assert (decided.rule, decided.action) == (rule.rule.index, Action.SYNC)
            assert decided.bytes > beyond.step.budget_remaining_bytes
        for x in situations:
            check_rule(policy, rule, x)
    statements = [s for s in policy.analysis.file.statements if isinstance(s, tree.Assert)]
    for statement, claim in zip(statements, report.asserts, strict=True):
        assert all(not assert_holds(policy.analysis, statement, x) for x in claim.examples)
        assert bool(claim.examples) == (claim.status is Status.FALSE)
        if claim.status is Status.PROVED:
            assert all(assert_holds(policy.analysis, statement, x) for x in situations)


def smaller(hit: Hit, per_mille: tuple[int, int, int]) -> Hit:
    """A hit of fewer tokens, blocks and bytes and a shorter load, all else equal."""
    less_tokens, less_bytes, less_time = per_mille
    names = ("bytes", "tokens", "blocks", "prompt_tokens", "cached_tokens", "compute_tokens", "waited", "deferrals",
             "priority", "load_time", "recompute_time", "deadline_left")  # fmt: skip
    times = ("load_time", "recompute_time", "waited", "deadline_left")
    values = {n: getattr(hit, f"{n}_ns" if n in times else n) for n in names}
    values["tokens"] = max(1, hit.tokens - hit.tokens * less_tokens // 1000)
    values["blocks"] = max(1, hit.blocks - hit.blocks * less_tokens // 1000)
    values["bytes"] = max(1, hit.bytes - hit.bytes * less_bytes // 1000)
    if hit.load_time_ns is not None:
        values["load_time"] = hit.load_time_ns - hit.load_time_ns * less_time // 1000
    return hit_from(values, {"tokens"}, 1 << 44, 1 << 24)


@SETTINGS
@given(policies(max_rules=4, max_depth=2), st.data())
@example(
    "sync if bytes <= budget_remaining\nsync if bytes < budget_remaining\nasync\nassert sync implies bytes < 9B", None
)
@example("sync at most 2 * budget_remaining\nassert load_tokens <= 64tok", None)
@example("sync at most budget_remaining\nassert sync implies load_bytes <= budget_remaining", None)
def test_what_a_proof_says_of_a_policy_is_so(text: str, data: st.DataObject | None) -> None:
    """No situation reaches a dead rule, breaks a proved assert, or passes a budget that a rule was proved to keep."""
    policy = Policy.parse(text)
    situations = [] if data is None else drawn_situations(data, policy)
    check_report(proof.prove(policy, timeout_s=TIMEOUT_S), situations)


PER_MILLE = st.integers(0, 1000)


@settings(SETTINGS, max_examples=20)
@given(policies(max_rules=3, max_depth=2), st.data())
def test_what_is_said_of_monotone_is_so(text: str, data: st.DataObject) -> None:
    """Two hits that are shown are a smaller and a larger one that decide so; of a monotone policy there are none."""
    policy = Policy.parse(text)
    found = proof.monotone(policy, timeout_s=TIMEOUT_S)
    if found.status is Status.FALSE:
        small, large = found.examples
        assert not is_sync(policy, small)
        assert is_sync(policy, large)
        assert small.step == large.step
        for name in ("bytes", "blocks", "tokens"):
            assert getattr(small.hit, name) <= getattr(large.hit, name)
        assert small.hit.compute_tokens == large.hit.compute_tokens
    elif found.status is Status.PROVED:
        for x in drawn_situations(data, policy):
            less = smaller(x.hit, data.draw(st.tuples(PER_MILLE, PER_MILLE, PER_MILLE)))
            assert not is_sync(policy, x) or is_sync(policy, Example(less, x.step))


def test_no_end_of_a_range_is_out_of_reach() -> None:
    """What is given of hits and steps leaves every variable its whole range, as far as the invariants do."""
    for v in READABLE:
        unit = {Unit.BYTES: "B", Unit.TOKENS: "tok", Unit.TIME: "ns", Unit.NUMBER: ""}[v.unit]
        low, high = f"{v.low + 1}{unit}", f"{v.high - 1}{unit}"
        policy = Policy.parse(f"defer if {v.name} <= {low}\nrecompute if {v.name} >= {high}\nasync\n")
        report = proof.prove(policy, timeout_s=60)
        assert [rule.status for rule in report.rules] == [Status.PROVED] * 3, v.name


def test_no_part_of_a_hit_is_out_of_reach() -> None:
    """A part can be one block of many or all of them but one, and covers fewer bytes and fewer tokens."""
    policy = Policy.parse(
        "async at most bytes - 1B if blocks > 2\ndefer\n"
        "assert async implies 2 * load_tokens <= tokens\n"
        "assert async implies 2 * load_tokens > tokens\n"
        "assert async implies load_bytes < bytes\n"
        "assert async implies load_tokens < tokens\n"
    )
    claims = proof.prove(policy, timeout_s=60).asserts
    assert [claim.status for claim in claims] == [Status.FALSE, Status.FALSE, Status.PROVED, Status.PROVED]
