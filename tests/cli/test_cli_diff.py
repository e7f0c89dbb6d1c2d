"""`kvmove diff`: equivalent or not, the hit and step that show it, and which policy is sync more often."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from kvmove.cli import app
from kvmove.kvpol.library import shipped

FEW = """\
param cap: bytes = 4MiB
@few  sync if bytes <= budget_remaining and bytes <= cap
      async
"""
SAME = """\
# The same, said differently.
@few    sync if not (bytes > min(budget_remaining, 4096KiB))
@later  async
"""
MORE = """\
param cap: bytes = 8MiB
@few   sync  if bytes <= budget_remaining and bytes <= cap
@busy  defer if waiting > 8
       async
"""
LONG = """\
sync if bytes <= budget_remaining and tokens > 100tok
async
"""

LESS_OR_MORE = """\
different: few.kvpol and more.kvpol

  hit   bytes = 1B, tokens = 1tok, blocks = 1, cached_tokens = 0tok, compute_tokens = 1tok
  step  budget = 0B, budget_remaining = 0B, waiting = 9
  few.kvpol: async, its one block (1B)
    does not match @few sync if bytes <= budget_remaining and bytes <= cap  (line 2)
                   [bytes = 1B, budget_remaining = 0B, cap = 4MiB]
    decides        async  (line 3)
  more.kvpol: defer
    does not match @few sync if bytes <= budget_remaining and bytes <= cap  (line 2)
                   [bytes = 1B, budget_remaining = 0B, cap = 8MiB]
    decides        @busy defer if waiting > 8  (line 3)
                   [waiting = 9]

sync: more.kvpol is more permissive: it asks for it wherever few.kvpol does, and more often

sync with more.kvpol alone:
  hit   bytes = 8MiB, tokens = 1tok, blocks = 1, cached_tokens = 0tok, compute_tokens = 1tok
  step  budget = 8MiB, budget_remaining = 8MiB
  few.kvpol: async, its one block (8MiB)
    does not match @few sync if bytes <= budget_remaining and bytes <= cap  (line 2)
                   [bytes = 8MiB, budget_remaining = 8MiB, cap = 4MiB]
    decides        async  (line 3)
  more.kvpol: sync, its one block (8MiB)
    decides        @few sync if bytes <= budget_remaining and bytes <= cap  (line 2)
                   [bytes = 8MiB, budget_remaining = 8MiB, cap = 8MiB]
"""

NEITHER = """\
different: few.kvpol and long.kvpol

  hit   bytes = 1B, tokens = 1tok, blocks = 1, cached_tokens = 0tok, compute_tokens = 1tok
  step  budget = 1B, budget_remaining = 1B
  few.kvpol: sync, its one block (1B)
    decides        @few sync if bytes <= budget_remaining and bytes <= cap  (line 2)
                   [bytes = 1B, budget_remaining = 1B, cap = 4MiB]
  long.kvpol: async, its one block (1B)
    does not match sync if bytes <= budget_remaining and tokens > 100tok  (line 1)
                   [bytes = 1B, budget_remaining = 1B, tokens = 1tok]
    decides        async  (line 2)

sync: neither is more permissive, each asks for it where the other does not

sync with few.kvpol alone: the hit and the step above

sync with long.kvpol alone:
  hit   bytes = 8MiB, tokens = 101tok, blocks = 1, cached_tokens = 0tok, compute_tokens = 1tok
  step  budget = 8MiB, budget_remaining = 8MiB
"""

PARTS = """\
different: a.kvpol and b.kvpol

  hit   bytes = 2B, tokens = 2tok, blocks = 2, cached_tokens = 0tok, compute_tokens = 1tok
  step  budget = 1B, budget_remaining = 1B
  a.kvpol: sync, the first 1 of 2 blocks (1B)
    decides        sync at most budget_remaining  (line 1)
                   [budget_remaining = 1B]
  b.kvpol: async, all 2 blocks (2B)
    does not match sync if bytes <= budget_remaining  (line 1)
                   [bytes = 2B, budget_remaining = 1B]
    decides        async  (line 2)

sync: a.kvpol is more permissive: it asks for it wherever b.kvpol does, and more often

sync with a.kvpol alone: the hit and the step above
"""


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(a) for a in arguments])


def diff(*arguments: object) -> Result:
    """A long time for each question, so that a busy machine does not change an example."""
    return run("diff", "--timeout", "60s", *arguments)


@pytest.fixture(autouse=True)
def _in_a_folder_of_policies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in {"few": FEW, "same": SAME, "more": MORE, "long": LONG}.items():
        Path(f"{name}.kvpol").write_text(text, encoding="utf-8")


def write(name: str, text: str) -> str:
    Path(name).write_text(text, encoding="utf-8")
    return name


def test_different_texts_that_mean_the_same_are_equivalent() -> None:
    """Rules that say it differently, comments and labels are no difference."""
    result = diff("few.kvpol", "same.kvpol")
    assert result.exit_code == 0
    assert result.stdout == "equivalent: few.kvpol and same.kvpol ask for the same of every hit in every step\n"


def test_a_more_permissive_policy_is_named_with_a_hit() -> None:
    """The smallest hit and step that differ are shown with both traces, and one that is sync with one alone."""
    result = diff("few.kvpol", "more.kvpol")
    assert (result.exit_code, result.stdout) == (1, LESS_OR_MORE)
    turned = diff("more.kvpol", "few.kvpol")
    assert "sync: more.kvpol is more permissive: it asks for it wherever few.kvpol does" in turned.stdout


def test_neither_may_be_more_permissive() -> None:
    """Then there is a hit for each; the one that was shown is not shown again."""
    result = diff("few.kvpol", "long.kvpol")
    assert result.exit_code == 1
    assert result.stdout.startswith(NEITHER)


def test_parts_of_a_hit_are_a_difference() -> None:
    """A policy that loads a part where the other loads in the background, or another part."""
    a, b = (
        write("a.kvpol", "sync at most budget_remaining"),
        write("b.kvpol", "sync if bytes <= budget_remaining\nasync"),
    )
    result = diff(a, b)
    assert (result.exit_code, result.stdout) == (1, PARTS)
    half = write("half.kvpol", "async at most bytes / 2\ndefer")
    third = write("third.kvpol", "async at most bytes / 3\ndefer")
    result = diff(half, third, "--where", "bytes >= 4B and blocks > 3")
    assert result.exit_code == 1
    assert re.search(r"half.kvpol: async, the first 2 of 4 blocks", result.stdout)
    assert re.search(r"third.kvpol: async, the first 1 of 4 blocks", result.stdout)
    assert "sync: half.kvpol and third.kvpol ask for it for the same hits" in result.stdout


def test_where_narrows_what_is_compared() -> None:
    """Outside the condition the policies may differ as they like."""
    result = diff("few.kvpol", "more.kvpol", "--where", "bytes <= 4MiB and waiting <= 8")
    assert result.exit_code == 0
    assert result.stdout.endswith("in every step, where bytes <= 4MiB and waiting <= 8\n")
    result = diff("few.kvpol", "more.kvpol", "--where", "bytes > 5MiB and waiting == 0")
    assert result.exit_code == 1
    assert "hit   bytes = 8MiB" in result.stdout
    result = run("diff", "few.kvpol", "more.kvpol", "--where", "bytes <= 3")
    assert result.exit_code == 2
    assert "give `3` its unit, such as `3B`" in result.stderr
    result = run("diff", "few.kvpol", "more.kvpol", "--where", "waiting > 0\nsync")
    assert result.exit_code == 2
    assert "is not one condition" in result.stderr


def test_params_count_for_both() -> None:
    """With the same cap, only the deferral is left."""
    result = diff("few.kvpol", "more.kvpol", "--param", "cap=4MiB", "--where", "waiting < 9")
    assert result.exit_code == 0
    assert diff("few.kvpol", "more.kvpol", "--param", "cpa=4MiB").exit_code == 2


def test_a_policy_with_itself_is_equivalent() -> None:
    """The two names are told apart."""
    assert diff("few.kvpol", "few.kvpol").stdout.startswith("equivalent: few.kvpol (A) and few.kvpol (B) ask")


CUBES = "running * running * running + waiting * waiting * waiting == free_slots * free_slots * free_slots"


def test_what_is_unknown_is_never_called_equivalent() -> None:
    """Status 3, and neither `equivalent` nor `different` is said."""
    odd = write("odd.kvpol", f"sync if running > 0 and waiting > 0 and {CUBES}\ndefer")
    never = write("never.kvpol", "defer")
    result = run("diff", odd, never, "--timeout", "300ms")
    assert result.exit_code == 3
    assert result.stdout.splitlines() == [
        "unknown: whether odd.kvpol and never.kvpol are equivalent: no answer within 0.3 s; products and quotients of "
        "variables are hard to decide",
        "sync: unknown which is more permissive",
    ]
    found = json.loads(run("diff", odd, never, "--timeout", "300ms", "--format", "json").stdout)
    assert (found["equivalent"]["status"], found["sync"]) == ("unknown", "unknown")
    assert found["equivalent"]["examples"] == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["few.kvpol", "none.kvpol"], "error: none.kvpol: cannot be read: no such file"),
        (["few.kvpol"], "B"),
        (["few.kvpol", "same.kvpol", "--timeout", "soon"], "`soon`"),
        (["few.kvpol", "bad.kvpol"], "error[KV101]: unknown name `byts`"),
    ],
)
def test_what_cannot_be_used_is_status_2(arguments: list[str], message: str) -> None:
    """A missing or broken policy, or a wrong option."""
    write("bad.kvpol", "sync if byts < 3B")
    result = run("diff", *arguments)
    assert result.exit_code == 2
    assert message in result.output


@pytest.mark.parametrize("other", [name for name in shipped() if name != "budgeted"])
def test_shipped_policies_differ_from_budgeted_by_hits_that_decide_so(other: str) -> None:
    """Each pair has a hit, and `kvmove decide` asks for what the report says of it."""
    result = diff("budgeted", other, "--format", "json")
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    shown: list[dict[str, Any]] = [
        {**example, "decisions": decisions}
        for example, decisions in zip(found["equivalent"]["examples"], found["equivalent"]["decisions"], strict=True)
    ]
    shown += [witness for witness in (found["only_first"], found["only_second"]) if witness]
    for witness in shown:
        values = [",".join(f"{k}={v}" for k, v in witness[part].items()) for part in ("hit", "step")]
        assert witness["decisions"][0] != witness["decisions"][1]
        for policy, said in zip(("budgeted", other), witness["decisions"], strict=True):
            decided = json.loads(run("decide", policy, "--hit", values[0], "--step", values[1], "--json").stdout)
            assert (decided["asked"], decided["rule"]) == (said["action"], said["rule"])
