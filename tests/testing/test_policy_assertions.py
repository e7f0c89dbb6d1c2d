"""What is asserted of a policy holds for every hit and step, or a readable one that breaks it is shown."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvmove import Action, Hit, Policy, PolicyError, Refused, StepState
from kvmove.kvpol.library import shipped
from kvmove.testing import (
    Situation,
    assert_always,
    assert_budget_respected,
    assert_equivalent,
    assert_monotone,
    situations,
)
from kvmove.testing import assertions as module
from kvmove.testing.claims import Asked, ask
from kvmove.testing.registration import register

SMALL = Policy.parse("@small sync if bytes <= 3MiB\nasync\n", name="small")
BUDGETED = Policy.load("budgeted")


def broken(call: Any, *args: Any, **named: Any) -> str:
    with pytest.raises(AssertionError) as caught:
        call(*args, **named)
    return str(caught.value)


def test_a_policy_that_ignores_the_budget_is_found_at_its_edge() -> None:
    """One byte more than is left; and the budgeted policy passes."""
    message = broken(assert_budget_respected, SMALL, "search")
    hit = re.search(r"bytes=(\S+?),.*\n.*budget_remaining=(\S+)", message)
    assert hit is not None, message
    assert_budget_respected(BUDGETED, "search", max_examples=300)


def test_monotone_shows_the_smaller_hit_first() -> None:
    """A policy that loads large hits only is not monotone; one that loads small ones is."""
    message = broken(assert_monotone, Policy.parse("sync if bytes >= 2KiB"), "search", max_examples=500)
    assert len(re.findall("hit:", message)) == 2
    assert message.index("asked: async") < message.index("asked: sync")
    assert_monotone(BUDGETED, "search", max_examples=300)


def test_equivalence_is_asked_where_it_is_asked() -> None:
    """Two policies that differ above a size are equivalent below it."""
    other = Policy.parse("sync if bytes <= 4MiB\nasync\n", name="other")
    message = broken(assert_equivalent, SMALL, other, method="search")
    assert "`small`: async" in message
    assert "`other`: sync" in message
    assert_equivalent(SMALL, other, "bytes <= 3MiB", "search", max_examples=200)
    assert_equivalent(SMALL, other, "bytes > 4MiB", "search", max_examples=200)


def test_equivalence_compares_the_blocks_too() -> None:
    """`at most` is not the same as all or nothing."""
    some = Policy.parse("sync at most budget_remaining\nasync\n")
    assert "blocks" in broken(assert_equivalent, BUDGETED, some, method="search")


def test_a_property_can_be_a_function() -> None:
    """It returns False or raises; a message of its own is shown."""

    def labelled(hit: Hit, step: StepState, asked: Asked) -> None:
        assert asked.label == "small", f"no label at {hit.bytes}"

    assert "no label at 3145729" in broken(assert_always, SMALL, labelled)
    assert_always(SMALL, lambda hit, step, asked: asked.action in (Action.SYNC, Action.ASYNC), max_examples=100)
    assert "lambda" in broken(assert_always, SMALL, lambda hit, step, asked: False, max_examples=10)
    with pytest.raises(Refused, match="three arguments"):
        assert_always(SMALL, lambda hit: True)  # type: ignore[arg-type, misc]


def test_what_cannot_be_asserted_is_refused() -> None:
    """A proof of a function, a method that there is none of, a claim with a mistake, two claims."""
    with pytest.raises(Refused, match="cannot be proved"):
        assert_always(SMALL, lambda hit, step, asked: True, "prove")
    with pytest.raises(Refused, match="`search`"):
        assert_always(SMALL, "sync or async", "guess")  # type: ignore[arg-type]
    for claim in ("bites < 3B", "sync implies", "sync\nassert async"):
        with pytest.raises(PolicyError):
            assert_always(SMALL, claim, "search")
    with pytest.raises(PolicyError):
        assert_equivalent(SMALL, BUDGETED, "sync", "search")


def test_claims_name_params_with_the_operators_values() -> None:
    """What holds for the file's value need not hold for another."""
    text = "param small: bytes = 1MiB\nsync if bytes <= small\n"
    claim = "sync implies bytes <= small and small == 1MiB"
    assert_always(Policy.parse(text), claim, "search", max_examples=200)
    assert "bytes=" in broken(assert_always, Policy.parse(text, params={"small": "2MiB"}), claim, "search")


PROPERTIES = ["sync implies load_bytes <= budget_remaining", "sync implies bytes <= 3MiB", "not defer", "sync or async"]


@pytest.mark.parametrize("claim", PROPERTIES)
def test_proof_and_search_agree(claim: str) -> None:
    """A claim that the search breaks is not proved, and one that is proved is not broken."""
    pytest.importorskip("z3")
    for policy in (SMALL, BUDGETED):
        outcomes = []
        for method in ("prove", "search"):
            try:
                assert_always(policy, claim, method, max_examples=150)  # type: ignore[arg-type]
                outcomes.append(True)
            except AssertionError:
                outcomes.append(False)
        assert outcomes[0] == outcomes[1]


def test_auto_proves_what_can_be_proved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then nothing is searched for; without z3 it is searched for, and `prove` says what to install."""
    pytest.importorskip("z3")
    searches: list[int] = []
    search = module._search
    monkeypatch.setattr(module, "_search", lambda *args: (searches.append(1), search(*args)))
    assert_always(SMALL, "sync implies bytes <= 3MiB", max_examples=50)
    assert_monotone(BUDGETED, max_examples=50)
    assert_equivalent(SMALL, SMALL, max_examples=50)
    assert searches == []
    assert "found by z3" in broken(assert_always, SMALL, "sync implies bytes < 3MiB")
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    assert_always(SMALL, "sync implies bytes <= 3MiB", max_examples=50)
    assert searches == [1]


@pytest.mark.parametrize("name", shipped())
def test_shipped_policies_keep_their_own_claims(name: str) -> None:
    """Each `assert` in a shipped policy holds."""
    policy = Policy.load(name)
    for claim in re.findall(r"^assert (.*)$", policy.text, flags=re.MULTILINE):
        assert_always(policy, claim, "search", max_examples=200)


@settings(max_examples=200)
@given(situations(policy=BUDGETED))
def test_drawn_situations_are_records(x: Situation) -> None:
    """Building one checks every range and invariant."""
    assert isinstance(x.hit, Hit)
    assert isinstance(x.step, StepState)


def test_hypothesis_draws_records_and_policies_by_their_types() -> None:
    """`from_type` draws what the schema admits; the entry point calls `register`."""
    register()

    @settings(max_examples=20, database=None)
    @given(st.from_type(Hit), st.from_type(StepState))
    def check(hit: Hit, step: StepState) -> None:
        assert ask(BUDGETED, hit, step).action in Action

    check()
