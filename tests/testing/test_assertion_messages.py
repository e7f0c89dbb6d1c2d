"""What is shown where an assertion about a policy fails: the simplest hit and step, with units, and who decided."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from kvmove import Hit, Policy, Refused, StepState
from kvmove.kvpol import proof
from kvmove.kvpol.given import hit_of, step_of
from kvmove.kvpol.proof import session
from kvmove.testing import assert_always, assert_budget_respected, assert_equivalent, assert_monotone
from kvmove.testing import assertions as module
from kvmove.testing.claims import Asked

SMALL = Policy.parse("@small sync if bytes <= 3MiB\nasync\n", name="small")
OTHER = Policy.parse("sync if bytes <= 4MiB\nasync\n", name="other")
LARGE = Policy.parse("sync if bytes >= 2KiB", name="large")
PART = Policy.parse("sync at most budget_remaining\nasync\n", name="part")
TIMELY = Policy.parse("sync if waited > 2s and load_time < step_time\ndefer", name="timely")
# Whether a sum of two cubes is a cube: no solver answers that.
CUBES = " + ".join(f"{name} * {name} * {name}" for name in ("blocks", "running"))
HARD = Policy.parse(f"sync if running > 0 and waiting > 0 and {CUBES} == waiting * waiting * waiting\nasync\n")

SEARCHED = "\n\n  (found among at most 1000 drawn situations)"
MESSAGES: dict[str, tuple[Callable[[], None], str]] = {
    "always": (
        lambda: assert_always(SMALL, "sync implies bytes < 3MiB", "search"),
        """\
`sync implies bytes < 3MiB` does not hold of every decision of policy `small`

  hit:   bytes=3MiB,tokens=1tok,blocks=1,prompt_tokens=2tok,compute_tokens=1tok
  step:  budget=64MiB,budget_remaining=64MiB
  asked: sync 1 of 1 block, 3MiB, by line 1: @small sync if bytes <= 3MiB"""
        + SEARCHED,
    ),
    "always, of several variables": (
        lambda: assert_always(TIMELY, "sync implies deferrals < 3", "search"),
        """\
`sync implies deferrals < 3` does not hold of every decision of policy `timely`

  hit:   bytes=1B,tokens=1tok,blocks=1,prompt_tokens=2tok,compute_tokens=1tok,\
load_time=0ns,waited=2000000001ns,deferrals=3
  step:  budget=64MiB,budget_remaining=64MiB,step_time=1ns
  asked: sync 1 of 1 block, 1B, by line 1: sync if waited > 2s and load_time < step_time"""
        + SEARCHED,
    ),
    "always, proved false": (
        lambda: assert_always(SMALL, "sync implies bytes < 3MiB", "prove"),
        """\
`sync implies bytes < 3MiB` does not hold of every decision of policy `small`

  hit:   bytes=3MiB,tokens=1tok,blocks=1,prompt_tokens=2tok,compute_tokens=1tok
  step:  budget_remaining=0B
  asked: sync 1 of 1 block, 3MiB, by line 1: @small sync if bytes <= 3MiB

  (found by z3)""",
    ),
    "budget": (
        lambda: assert_budget_respected(SMALL, "search"),
        """\
`sync implies load_bytes <= budget_remaining` does not hold of every decision of policy `small`

  hit:   bytes=1B,tokens=1tok,blocks=1,prompt_tokens=2tok,compute_tokens=1tok
  step:  budget=64MiB,budget_remaining=0B
  asked: sync 1 of 1 block, 1B, by line 1: @small sync if bytes <= 3MiB"""
        + SEARCHED,
    ),
    "monotone": (
        lambda: assert_monotone(LARGE, "search"),
        """\
policy `large` is not monotone: the larger hit is sync, the smaller one is not

  hit:   bytes=2046B,tokens=1tok,blocks=1,prompt_tokens=2tok,compute_tokens=1tok
  step:  budget=64MiB,budget_remaining=64MiB
  asked: async 1 of 1 block, 2046B, by the implicit last rule

  hit:   bytes=2KiB,tokens=1tok,blocks=1,prompt_tokens=2tok,compute_tokens=1tok
  step:  budget=64MiB,budget_remaining=64MiB
  asked: sync 1 of 1 block, 2KiB, by line 1: sync if bytes >= 2KiB"""
        + SEARCHED,
    ),
    "equivalent": (
        lambda: assert_equivalent(SMALL, OTHER, method="search"),
        """\
policies `small` and `other` are not equivalent

  hit:   bytes=3145729B,tokens=1tok,blocks=1,prompt_tokens=2tok,compute_tokens=1tok
  step:  budget=64MiB,budget_remaining=64MiB
  `small`: async 1 of 1 block, 3145729B, by line 2: async
  `other`: sync 1 of 1 block, 3145729B, by line 1: sync if bytes <= 4MiB"""
        + SEARCHED,
    ),
    "equivalent, where": (
        lambda: assert_equivalent(SMALL, OTHER, "bytes < 4MiB and tokens > 7tok", "search"),
        """\
policies `small` and `other` are not equivalent where `bytes < 4MiB and tokens > 7tok`

  hit:   bytes=3145729B,tokens=8tok,blocks=1,prompt_tokens=9tok,compute_tokens=1tok
  step:  budget=64MiB,budget_remaining=64MiB
  `small`: async 1 of 1 block, 3145729B, by line 2: async
  `other`: sync 1 of 1 block, 3145729B, by line 1: sync if bytes <= 4MiB"""
        + SEARCHED,
    ),
}


def broken(call: Callable[[], None]) -> str:
    with pytest.raises(AssertionError) as caught:
        call()
    return str(caught.value)


@pytest.mark.parametrize("name", MESSAGES)
def test_the_message(name: str) -> None:
    """It is the same every time, and has nothing that does not matter."""
    if "proved" in name:
        pytest.importorskip("z3")
    call, expected = MESSAGES[name]
    assert broken(call) == expected


def test_a_part_of_a_hit_is_shown_as_one() -> None:
    """With the blocks that it has, of how many."""
    assert re.search(
        r"`part`: sync 1 of 2 blocks, \d+\w+, by",
        broken(partial(assert_equivalent, Policy.load("budgeted"), PART, None, "search")),
    )


def fields(shown: str) -> dict[str, str]:
    return dict(field.split("=") for field in shown.split(","))  # type: ignore[misc]


def test_parts_of_a_hit_that_matter_are_shown() -> None:
    """A window, whose whole hit weighs less than one block less; and places where a hit cannot be cut."""

    def weighs_no_more_in_part(hit: Hit, step: StepState, asked: Asked) -> bool:
        return asked.bytes <= hit.bytes

    message = broken(lambda: assert_always(Policy.parse("sync at most 3tok\nasync"), weighs_no_more_in_part))
    assert re.search(r"hit: .*\n +with \d+tok a block, \d+\w+ a block and \d+\w+ a block, at most \d+\w+\n", message)
    part = broken(lambda: assert_always(PART, lambda hit, step, asked: hit.cuts is None or asked.blocks != 2))
    assert re.search(r"\n +which can be cut after [\d, ]+ blocks\n", part), part


@pytest.mark.parametrize("name", MESSAGES)
def test_the_hit_and_step_can_be_tried(name: str) -> None:
    """As `kvmove decide` reads them; the policies then ask for what the message says."""
    if "proved" in name:
        pytest.importorskip("z3")
    message = broken(MESSAGES[name][0])
    policies = {p.name: p for p in (SMALL, OTHER, LARGE, TIMELY)}
    for hit, step, rest in re.findall(r"hit: +(\S+)\n  step: +(\S+)\n((?:  \S+: .*\n)+)", message):
        for who, action in re.findall(r"(\S+): (\w+)", re.sub(r", by .*", "", rest)):
            named = re.findall(r"`(\w+)`", who if who != "asked" else message.splitlines()[0])
            policy = policies[named[-1]]
            verdict = policy.decide(hit_of(fields(hit))[0], step_of(fields(step), None)[0])
            assert policy.rules[verdict & 255].action == action


def no_answer(*args: Any, **named: Any) -> None:
    raise AssertionError("it was not to be searched for")


def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let proofs give up sooner."""
    for name in ("always", "monotone", "equivalent"):
        monkeypatch.setattr(proof, name, partial(getattr(proof, name), timeout_s=0.2))


def test_what_is_not_proved_fails_a_proof_and_is_searched_for_by_auto(monkeypatch: pytest.MonkeyPatch) -> None:
    """`unknown` is not `proved`, and the message does not say that the claim is false."""
    pytest.importorskip("z3")
    quick(monkeypatch)
    message = broken(lambda: assert_always(HARD, "not sync", "prove"))
    assert re.fullmatch(r"`not sync`: not proved: no answer within 0.2 s.*", message), message
    searched: list[int] = []
    search = module._search
    monkeypatch.setattr(module, "_search", lambda *args: (searched.append(1), search(*args)))
    assert_always(HARD, "not sync", max_examples=100)
    assert searched == [1]


@pytest.mark.parametrize("method", ["auto", "prove"])
def test_a_proof_is_not_followed_by_a_search(method: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of any of the assertions."""
    pytest.importorskip("z3")
    monkeypatch.setattr(module, "_search", no_answer)
    assert_always(SMALL, "sync implies bytes <= 3MiB", method)
    assert_budget_respected(Policy.load("budgeted"), method)
    assert_monotone(SMALL, method)
    assert_equivalent(SMALL, OTHER, "bytes <= 3MiB", method)


def test_a_search_asks_no_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is z3 imported for it."""
    monkeypatch.setattr(module, "_proof", no_answer)
    assert_always(SMALL, "sync implies bytes <= 3MiB", "search", max_examples=50)
    assert_monotone(SMALL, "search", max_examples=50)
    assert_equivalent(SMALL, SMALL, method="search", max_examples=50)


@pytest.fixture
def no_z3(monkeypatch: pytest.MonkeyPatch) -> Any:
    """As on a machine where it is not installed."""
    monkeypatch.setitem(sys.modules, "z3", None)
    session.load_z3.cache_clear()
    yield
    session.load_z3.cache_clear()


@pytest.mark.usefixtures("no_z3")
def test_without_z3_auto_searches_and_prove_names_the_extra() -> None:
    """Each of the assertions."""
    assert "3145729B" in broken(lambda: assert_equivalent(SMALL, OTHER))
    assert_always(SMALL, "sync implies bytes <= 3MiB", max_examples=50)
    assert_budget_respected(Policy.load("budgeted"), max_examples=50)
    assert_monotone(SMALL, max_examples=50)
    for call in (
        partial(assert_always, SMALL, "sync or async"),
        partial(assert_budget_respected, SMALL),
        partial(assert_monotone, SMALL),
        partial(assert_equivalent, SMALL, OTHER, None),
    ):
        with pytest.raises(Refused, match=r"kvmove\[prove\]"):
            call("prove")


def test_a_property_that_raises_something_else_is_not_hidden() -> None:
    """A mistake in the test is no counterexample."""

    def wrong(hit: Hit, step: StepState, asked: Asked) -> bool:
        return bool(1 / (hit.bytes - hit.bytes))

    with pytest.raises(ZeroDivisionError):
        assert_always(SMALL, wrong, max_examples=20)


def test_estimates_that_are_unknown_are_tried() -> None:
    """A claim about every decision has to hold without them too."""
    policy = Policy.parse("sync if not known(load_time)\nasync")
    message = broken(lambda: assert_always(policy, "not sync", "search"))
    assert "load_time=unknown" in message
