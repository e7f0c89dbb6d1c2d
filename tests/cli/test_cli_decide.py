"""`kvmove decide`: the decision, the reasons, and what it assumes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from kvmove import schema
from kvmove.cli import app
from kvmove.kvpol.given import BadValue, hit_of, step_of


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["decide", *(str(a) for a in arguments)])


OVER_BUDGET = """\
async: load all 256 blocks (3MiB) in the background
decided by rule 4 (line 29)

rule 1 @compute (line 24): does not match
    @compute recompute if may_compute and margin * recompute_time < load_time
    false   may_compute and margin * recompute_time < load_time
      false   may_compute
        false   waiting <= queue and known(recompute_time + async_cost)
          true    waiting <= queue   [waiting = 0, queue = 32]
          false   known(recompute_time + async_cost)   [unknown: async_delay, recompute_time]
      unknown margin * recompute_time < load_time   [margin * recompute_time = unknown (recompute_time), \
load_time = 2ms]
rule 2 @fits (line 26): does not match
    @fits sync if bytes <= budget_remaining
    false   bytes <= budget_remaining   [bytes = 3MiB, budget_remaining = 1MiB]
rule 3 @instead (line 28): does not match
    @instead recompute if may_compute and margin * recompute_time < async_cost
    false   may_compute and margin * recompute_time < async_cost
      false   may_compute
        false   waiting <= queue and known(recompute_time + async_cost)
          true    waiting <= queue   [waiting = 0, queue = 32]
          false   known(recompute_time + async_cost)   [unknown: async_delay, recompute_time]
      unknown margin * recompute_time < async_cost   [margin * recompute_time = unknown (recompute_time), async_cost = \
unknown (async_delay)]
rule 4 (line 29): decides
    async

lets
  async_cost = load_time + async_delay = unknown (async_delay)

hit
  given:   bytes = 3MiB, tokens = 4096tok, load_time = 2ms
  assumed: blocks = 256, prompt_tokens = 4160tok, cached_tokens = 0tok, compute_tokens = 64tok, waited = 0ns, \
deferrals = 0, priority = 0
  unknown: recompute_time, deadline_left
step
  given:   budget_remaining = 1MiB
  assumed: budget = 64MiB, inflight_bytes = 0B, inflight_loads = 0, running = 0, waiting = 0, free_slots = 0, \
sync_loads = 0
  unknown: drain_time, step_time, async_delay
"""

PART = """\
sync: load the first 1 of 4 blocks (1MiB) inside the step
decided by rule 2 @part (line 3)

rule 1 @quick (line 2): does not match
    @quick sync at most cost * (1B / 1ns)
    at most cost * (1B / 1ns): unknown (load_time), so no block fits
rule 2 @part (line 3): decides
    @part sync at most budget_remaining
    at most budget_remaining = 1MiB: 1 of 4 blocks fit
rule 3 (the implicit async): matches, but comes too late
    async

lets
  cost = load_time * 2 = unknown (load_time)
"""


def test_every_rule_is_shown_with_the_values_that_decided_it() -> None:
    """A hit over the budget falls through to the last rule; lets, unknown estimates and assumptions are said."""
    result = run("compute_aware", "--hit", "bytes=3MiB,tokens=4096tok", "--hit", "load_time=2ms",
                 "--step", "budget_remaining=1MiB")  # fmt: skip
    assert result.exit_code == 0, result.output
    assert result.stdout == OVER_BUDGET


def test_limits_show_what_fits(tmp_path: Path) -> None:
    """An `at most` says how many blocks fit, or which estimate is unknown."""
    path = tmp_path / "p.kvpol"
    path.write_text(
        "let cost = load_time * 2\n@quick sync at most cost * (1B / 1ns)\n@part sync at most budget_remaining\n"
    )
    result = run(path, "--hit", "bytes=4MiB,tokens=64tok,blocks=4", "--step", "budget_remaining=1MiB")
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith(PART)


def test_the_last_rule_that_nobody_wrote_can_decide(tmp_path: Path) -> None:
    """The decision, blocks and rules read well where there is one block, and no rule that matches."""
    path = tmp_path / "p.kvpol"
    path.write_text("defer if deferrals < 3 and not known(load_time)\nrecompute if waited > 1s")
    assert run(path).stdout.startswith(
        "defer: load nothing yet, ask again in the next step\ndecided by rule 1 (line 1)"
    )
    result = run(path, "--hit", "blocks=1,deferrals=3")
    assert result.stdout.startswith(
        "async: load its one block (1MiB) in the background\ndecided by rule 3 (the implicit"
    )


def test_a_guard_rail_is_named(tmp_path: Path) -> None:
    """A policy that asks too much gets less, and is told why."""
    path = tmp_path / "p.kvpol"
    path.write_text("sync")
    over = run(path, "--hit", "bytes=3MiB", "--step", "budget_remaining=1MiB")
    assert "guard rail: the policy asked for sync, but more bytes than the step's budget has left" in over.stdout
    result = run(path, "--hit", "compute_tokens=0tok", "--json")
    found = json.loads(result.stdout)
    assert (found["action"], found["asked"], found["demotion"]) == ("async", "sync", "nothing_to_compute")


def test_params_decide_too_and_json_has_plain_amounts() -> None:
    """`--param` changes the decision; JSON has bytes and the truth of each condition."""
    result = run("budgeted", "--hit", "bytes=3MiB", "--param", "budget=2MiB", "--json")
    found = json.loads(result.stdout)
    assert (found["action"], found["hit"]["bytes"], found["step"]["budget"]) == ("async", 3 << 20, 2 << 20)
    assert "budget_remaining" in found["assumed"]
    first = found["rules"][0]
    assert (first["label"], first["matches"], first["why_not"]) == ("fits", False, "bytes <= budget_remaining")
    assert first["condition"]["values"] == {"bytes": "3MiB", "budget_remaining": "2MiB"}
    assert run("budgeted", "--param", "bugdet=2MiB").exit_code == 2


def test_lets_that_double_are_shown_once_in_a_rule(tmp_path: Path) -> None:
    """Lets that each use the one before twice do not double the text."""
    lets = ["let b0 = load_time < 1ms"]
    lets += [f"let b{i} = (bytes < {i}B and b{i - 1}) or not b{i - 1}" for i in range(1, 45)]
    path = tmp_path / "p.kvpol"
    path.write_text("\n".join([*lets, "sync if b44"]))
    assert len(run(path).stdout.splitlines()) < 350


@pytest.mark.parametrize(
    ("hit", "message"),
    [
        ("byts=3MiB", "there is no `byts`; did you mean `bytes`"),
        ("running=3", "there is no `running`; it is a value of the step"),
        ("bytes=3ms", "bytes is in bytes, such as `3MiB`, and `3ms` is in time"),
        ("bytes=3", "bytes is in bytes, such as `3MiB`, and `3` has no unit"),
        ("load_time=3", "load_time is in time, such as `2ms`"),
        ("deferrals=3tok", "deferrals is in plain numbers, such as `3`"),
        ("bytes=3mb", "unknown unit `mb`; write `3MB` or `3MiB`"),
        ("bytes=0B", "bytes is 0B, outside 1B to 16384GiB"),
        ("tokens=unknown", "tokens is always known"),
        ("deferrals=1.5", "deferrals is a whole number"),
        ("bytes", "not written like `NAME=VALUE`"),
        ("bytes=1B,bytes=2B", "`bytes` is given twice"),
        ("tokens=100tok,prompt_tokens=50tok", "no room for the hit's 100tok"),
        ("tokens=1tok,blocks=2", "2 blocks for 1 tokens"),
    ],
)
def test_wrong_or_contradictory_values_are_refused(hit: str, message: str) -> None:
    """The message names the value and what is wrong with it; the status is 2."""
    result = run("budgeted", "--hit", hit)
    assert result.exit_code == 2
    assert message in result.output


@pytest.mark.parametrize(
    ("step", "message"),
    [
        ("budgt=3MiB", "step: there is no `budgt`; did you mean `budget`?"),
        ("bytes=3MiB", "step: there is no `bytes`; it is a value of the hit"),
        ("budget=3tok", "budget is in bytes, such as `3MiB`, and `3tok` is in tokens"),
        ("step_time=3MiB", "step_time is in time, such as `2ms`, and `3MiB` is in bytes"),
        ("async_delay=1.5", "async_delay is in time, such as `2ms`, and `1.5` has no unit"),
        ("running=3s", "running is in plain numbers, such as `3`, and `3s` is in time"),
        ("budget=1MiB,budget_remaining=2MiB", "budget"),
        ("running=unknown", "running is always known"),
        ("waiting=-1", "waiting is -1, outside 0 to 16777216"),
    ],
)
def test_values_of_the_step_are_checked_too(step: str, message: str) -> None:
    """A value that is not of a step, or not in its unit, is refused with status 2."""
    result = run("budgeted", "--step", step)
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none.kvpol"], "error: none.kvpol: cannot be read: no such file"),
        (["budgetd"], "budgetd"),
        ([], "FILE"),
        (["budgeted", "--param", "budget"], "not written like `NAME=VALUE`"),
        (["budgeted", "--param", "budget=3tok"], "budget"),
    ],
)
def test_a_policy_or_option_that_cannot_be_used_is_status_2(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message names it; nothing is printed as if it had been decided."""
    monkeypatch.chdir(tmp_path)
    result = run(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.output


def test_a_policy_with_mistakes_shows_all_of_them(tmp_path: Path) -> None:
    """As `kvmove check` does."""
    path = tmp_path / "p.kvpol"
    path.write_text("sync if byts < 3B\ndefer if bytes < 3ms\n")
    result = run(path)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "error[KV101]: unknown name `byts`" in result.stderr
    assert "error[KV201]: cannot compare bytes with time" in result.stderr


NAMES = ("tokens", "prompt_tokens", "cached_tokens", "compute_tokens")


@settings(max_examples=100)
@given(
    st.dictionaries(st.sampled_from(NAMES), st.integers(1, 5000) | st.integers(1, schema.MAX_COUNT // 4), max_size=4),
    st.none() | st.integers(1, schema.MAX_BYTES),
    st.integers(0, 1 << 30),
)
def test_what_is_given_is_kept_and_the_rest_fits(
    given_tokens: dict[str, int], num_bytes: int | None, remaining: int
) -> None:
    """Whatever is given is in the hit, or refused; the records' own checks see that the rest adds up."""
    step, _ = step_of({"budget_remaining": f"{remaining}B"}, None)
    assert step.budget_remaining_bytes == remaining
    values = {name: f"{value}tok" for name, value in given_tokens.items()}
    values |= {} if num_bytes is None else {"bytes": f"{num_bytes}B"}
    try:
        hit, assumed = hit_of(values)
    except BadValue:
        # Only what was given can be wrong: a prompt without room, or more bytes than so many tokens can have.
        assert "prompt_tokens" in given_tokens or (num_bytes is not None and "tokens" in given_tokens)
        return
    assert all(getattr(hit, name) == value for name, value in given_tokens.items())
    assert num_bytes in (None, hit.bytes)
    assert not set(assumed) & values.keys()
