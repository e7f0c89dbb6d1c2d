"""`kvmove decide`: the decision, the reasons, and what it assumes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from kvmove.cli import app
from kvmove.errors import Refused
from kvmove.kvpol.given import hit_of, step_of


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["decide", *(str(a) for a in arguments)])


def test_the_decision_its_rule_and_the_values_are_shown() -> None:
    """A hit over the budget falls through to the last rule, and the comparison shows both values."""
    result = run("budgeted", "--hit", "bytes=3MiB,tokens=4096tok", "--step", "budget_remaining=1MiB")
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("async, 256 blocks (3145728 bytes), by rule 2")
    assert "false   bytes <= budget_remaining  [bytes = 3MiB, budget_remaining = 1MiB]" in result.stdout
    assert "  blocks = 256 (assumed)" in result.stdout
    assert "  load_time = unknown (assumed)" in result.stdout


def test_a_guard_rail_is_named(tmp_path: Path) -> None:
    """A policy that asks too much gets less, and is told why."""
    path = tmp_path / "p.kvpol"
    path.write_text("sync")
    over = run(path, "--hit", "bytes=3MiB", "--step", "budget_remaining=1MiB")
    assert "guard rail: sync becomes async: more bytes than the step's budget has left" in over.stdout
    result = run(path, "--hit", "compute_tokens=0tok", "--format", "json")
    found = json.loads(result.stdout)
    assert (found["action"], found["asked"], found["demotion"]) == ("async", "sync", "nothing_to_compute")


def test_limits_lets_and_unknown_estimates_are_shown(tmp_path: Path) -> None:
    """An `at most` says what fits; a let that reads an unknown estimate is unknown."""
    path = tmp_path / "p.kvpol"
    path.write_text("let cost = load_time * 2\n@quick sync if cost < 1ms\n@part sync at most budget_remaining\nasync")
    result = run(path, "--hit", "bytes=4MiB,tokens=64tok,blocks=4", "--step", "budget_remaining=1MiB")
    assert "unknown cost < 1ms  [cost = unknown]" in result.stdout
    assert "at most budget_remaining = 1MiB: 1 of 4 blocks fit" in result.stdout
    assert "let cost = unknown" in result.stdout
    assert result.stdout.startswith("sync, 1 blocks (1048576 bytes), by rule 2 @part")


@pytest.mark.parametrize(
    ("hit", "message"),
    [
        ("byts=3MiB", "did you mean `bytes`"),
        ("bytes=3ms", "bytes is in bytes"),
        ("bytes=3mb", "unknown unit"),
        ("tokens=100tok,prompt_tokens=50tok", "no room for the hit's 100tok"),
        ("tokens=1tok,blocks=2", "2 blocks for 1 tokens"),
    ],
)
def test_wrong_or_contradictory_values_are_refused(hit: str, message: str) -> None:
    """The message names the value and what is wrong with it; the status is 2."""
    result = run("budgeted", "--hit", hit)
    assert result.exit_code == 2
    assert message in result.output


NAMES = ("tokens", "prompt_tokens", "cached_tokens", "compute_tokens")


@settings(max_examples=100)
@given(st.dictionaries(st.sampled_from(NAMES), st.integers(1, 5000), max_size=4), st.integers(0, 1 << 30))
def test_what_is_given_is_kept_and_the_rest_fits(given_tokens: dict[str, int], remaining: int) -> None:
    """Whatever is given is in the hit, or refused; the records' own checks see that the rest adds up."""
    step, _ = step_of({"budget_remaining": f"{remaining}B"}, None)
    assert step.budget_remaining_bytes == remaining
    try:
        hit, assumed = hit_of({name: f"{value}tok" for name, value in given_tokens.items()})
    except Refused:
        assert "prompt_tokens" in given_tokens
        return
    assert all(getattr(hit, name) == value for name, value in given_tokens.items())
    assert not set(assumed) & given_tokens.keys()
