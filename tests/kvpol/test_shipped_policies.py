"""Every policy that comes with kvmove passes its own tools, and does what its comment promises."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from typer.testing import CliRunner, Result

import kvmove
from kvmove import Action, Policy
from kvmove.cli import app
from kvmove.kvpol.library import shipped
from kvmove.testing import Situation, situations

FOLDER = Path(kvmove.__file__).with_name("policies")
FILES = [FOLDER / f"{name}.kvpol" for name in shipped()]
# What `prove` notes and does not hold against a policy: this one relies on the scheduler, on purpose.
NOTED = {"always_sync": ["KV404"]}


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(a) for a in arguments])


def test_what_comes_with_kvmove() -> None:
    """Nothing is left out of the walks below."""
    assert shipped() == ["always_async", "always_sync", "budgeted", "compute_aware", "deadline", "split"]
    assert sorted(FOLDER.glob("*.kvpol")) == FILES


@pytest.mark.parametrize("command", [("check", "--strict"), ("fmt", "--check"), ("test",)], ids=" ".join)
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_it_passes(path: Path, command: tuple[str, ...]) -> None:
    """`kvmove check --strict`, `fmt --check` and `test`."""
    result = run(*command, path)
    assert result.exit_code == 0, result.output
    assert "warning" not in result.output


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_it_is_proved(path: Path) -> None:
    """Every rule can decide, every assert holds, nothing is left unknown; what is noted is meant."""
    pytest.importorskip("z3")
    result = run("prove", path)
    assert result.exit_code == 0, result.output
    rules = len(Policy.load(path).rules)
    assert f"{path}: proved: {rules} of {rules} rule" in result.output
    assert re.findall(r"KV\d+", result.output) == NOTED.get(path.stem, [])


def decided(policy: Policy, x: Situation) -> tuple[Action, int, int]:
    """The action, the rule, and the bytes of what is to load."""
    verdict = policy.decide(x.hit, x.step)
    rule = policy.rules[verdict & 255]
    return rule.action, rule.index, x.hit.prefix_bytes(verdict >> 8 or x.hit.blocks)


DEADLINE, SPLIT, ALWAYS_SYNC = (Policy.load(name) for name in ("deadline", "split", "always_sync"))


@settings(max_examples=200)
@given(situations(policy=DEADLINE))
def test_deadline_spends_the_budget_on_those_who_are_short_of_time(x: Situation) -> None:
    """Said another way than the policy says it."""
    action, _, num_bytes = decided(DEADLINE, x)
    delay_ns = 1_000_000_000 if x.step.async_delay_ns is None else x.step.async_delay_ns
    if x.hit.deadline_left_ns is None:
        short = x.hit.waited_ns >= 2_000_000_000
    else:
        short = x.hit.deadline_left_ns < delay_ns + 300_000_000
    assert action is (Action.SYNC if short and num_bytes <= x.step.budget_remaining_bytes else Action.ASYNC)


@settings(max_examples=200)
@given(situations(policy=SPLIT))
def test_split_never_asks_for_more_than_is_left(x: Situation) -> None:
    """A part is as many blocks as fit, and the next block would not."""
    action, rule, num_bytes = decided(SPLIT, x)
    left = x.step.budget_remaining_bytes
    if action is Action.SYNC:
        assert num_bytes <= left
    if rule == 1:
        blocks = SPLIT.decide(x.hit, x.step) >> 8
        assert 1 <= blocks < x.hit.blocks
        assert x.hit.prefix_bytes(blocks + 1) > left
        assert x.hit.recompute_time_ns is not None
        assert x.step.async_delay_ns is not None
        rest = x.hit.bytes - left
        assert x.hit.recompute_time_ns * rest < x.step.async_delay_ns * x.hit.bytes


@settings(max_examples=50)
@given(situations(policy=ALWAYS_SYNC))
def test_always_sync_asks_for_nothing_else(x: Situation) -> None:
    """Whatever the hit and the step."""
    assert decided(ALWAYS_SYNC, x) == (Action.SYNC, 0, x.hit.bytes)
    assert ALWAYS_SYNC.budget_bytes == kvmove.schema.MAX_BYTES
