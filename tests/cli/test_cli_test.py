"""`kvmove test`: examples that hold or do not, why, which rules they exercise, and files that cannot be used."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from kvmove.cli import app
from kvmove.kvpol.library import shipped

POLICY = """\
policy "parts"

param cap: bytes = 2MiB

@fits   sync  if bytes <= budget_remaining
@part   sync  at most min(cap, budget_remaining) if waiting == 0
@later  defer if deferrals < 3
        async
"""
GOOD = """\
[[example]]
name = "a hit that fits"
hit = { bytes = "1MiB" }
expect = "sync"
rule = "@fits"

[[example]]
name = "a part of a larger one"
hit = { bytes = "8MiB", blocks = 8 }
step = { budget_remaining = "4MiB" }
expect = "sync"
blocks = 2

[[example]]
name = "later"
hit = { bytes = "8MiB" }
step = { budget_remaining = "4MiB", waiting = 1 }
expect = "defer"
"""
FAILING = """\
[[example]]
name = "too large a part"
hit = { bytes = "8MiB", blocks = 8 }
step = { budget_remaining = "4MiB" }
expect = "sync"
blocks = 3

[[example]]
name = "not deferred again"
hit = { bytes = "8MiB", deferrals = 2 }
step = { budget_remaining = "4MiB", waiting = 1 }
expect = "async"
rule = 4
"""

GOOD_REPORT = """\
p.kvpol
  ok    a hit that fits
  ok    a part of a larger one
  ok    later
  3 of 4 rules decide (75%)
    rule 4 (line 8) never decided: async
    rule 2 @part (line 6): `at most min(cap, budget_remaining)` was never false
    rule 3 @later (line 7): `deferrals < 3` was never false

3 passed
"""

FAILING_REPORT = """\
p.kvpol
  FAIL  too large a part (p.tests.toml:1)
        expected 3 blocks, got 2 of 8
          rule 1 @fits (line 5): does not match
              @fits sync if bytes <= budget_remaining
              false   bytes <= budget_remaining   [bytes = 8MiB, budget_remaining = 4MiB]
          rule 2 @part (line 6): decides
              @part sync at most min(cap, budget_remaining) if waiting == 0
              true    waiting == 0   [waiting = 0]
              at most min(cap, budget_remaining) = 2MiB: 2 of 8 blocks fit
  FAIL  not deferred again (p.tests.toml:8)
        expected async by rule 4 (line 8), got defer by rule 3 @later (line 7)
          rule 1 @fits (line 5): does not match
              @fits sync if bytes <= budget_remaining
              false   bytes <= budget_remaining   [bytes = 8MiB, budget_remaining = 4MiB]
          rule 2 @part (line 6): does not match
              @part sync at most min(cap, budget_remaining) if waiting == 0
              false   waiting == 0   [waiting = 1]
              at most min(cap, budget_remaining) = 2MiB: 2 of 8 blocks fit
          rule 3 @later (line 7): decides
              @later defer if deferrals < 3
              true    deferrals < 3   [deferrals = 2]
          rule 4 (line 8): matches, but comes too late
              async
  2 of 4 rules decide (50%)
    rule 1 @fits (line 5) never decided: @fits sync if bytes <= budget_remaining
    rule 4 (line 8) never decided: async
    rule 1 @fits (line 5): `bytes <= budget_remaining` was never true
    rule 2 @part (line 6): `at most min(cap, budget_remaining)` was never false
    rule 3 @later (line 7): `deferrals < 3` was never false

0 passed, 2 failed
"""


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["test", *(str(a) for a in arguments)])


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write("p.kvpol", POLICY)


def write(name: str, text: str) -> str:
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return name


def test_examples_that_hold_are_listed_with_what_they_do_not_exercise() -> None:
    """Status 0, and every rule and outcome of a condition that no example has is named."""
    write("p.tests.toml", GOOD)
    result = run("p.kvpol")
    assert (result.exit_code, result.stdout) == (0, GOOD_REPORT)


def test_an_example_that_does_not_hold_says_what_was_got_and_why() -> None:
    """Expected and got, by which rule, and what each rule made of the hit, with the line of the example."""
    write("p.tests.toml", FAILING)
    result = run("p.kvpol")
    assert (result.exit_code, result.stdout) == (1, FAILING_REPORT)


def test_the_failing_ones_do_not_hide_the_others() -> None:
    """Each example has its line, in the order of the file."""
    write("p.tests.toml", FAILING + "\n" + GOOD)
    result = run("p.kvpol")
    assert result.exit_code == 1
    assert re.findall(r"^  (ok  |FAIL)", result.stdout, re.MULTILINE) == ["FAIL", "FAIL", "ok  ", "ok  ", "ok  "]
    assert result.stdout.endswith("3 passed, 2 failed\n")


def test_unknown_fields_and_wrong_units_are_all_reported_with_their_lines() -> None:
    """Status 2: such a file says nothing about the policy, and nothing of it runs."""
    write(
        "p.tests.toml",
        '[[example]]\nname = "a"\nhit = { bytes = "3ms", tokns = "4tok" }\nexpect = "sync"\nexpects = "sync"\n'
        '[[example]]\nname = "b"\nhit.bytes = 3\nstep.budget = "3MiB"\nexpect = "synch"\n',
    )
    result = run("p.kvpol")
    assert (result.exit_code, result.stdout) == (2, "0 passed, 1 not tested\n")
    lines = result.stderr.splitlines()
    assert lines[0].startswith("error: p.tests.toml:3: hit: bytes is in bytes, such as `3MiB`, and `3ms` is in time")
    assert any("p.tests.toml:3: hit: there is no `tokns`; did you mean `tokens`?" in line for line in lines)
    assert any("p.tests.toml:5: an example has no `expects`; did you mean `expect`?" in line for line in lines)
    assert any("p.tests.toml:8: hit: bytes is in bytes" in line and "has no unit" in line for line in lines)
    assert any("p.tests.toml:10: `expect` is `synch`; did you mean `sync`?" in line for line in lines), lines
    assert all(line.startswith("error: p.tests.toml:") for line in lines)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[example\n", "error: p.tests.toml:1: not TOML: "),
        ("", "error: p.tests.toml:1: there is no example; each starts with `[[example]]`"),
        (None, "error: p.kvpol: no examples; write them to p.tests.toml"),
    ],
)
def test_examples_that_are_missing_or_no_toml_are_status_2(text: str | None, message: str) -> None:
    """The file that is wrong, or that is to be written, is named."""
    if text is not None:
        write("p.tests.toml", text)
    result = run("p.kvpol")
    assert result.exit_code == 2
    assert result.stderr.startswith(message)


def test_a_policy_with_a_mistake_is_status_2_with_the_finding() -> None:
    """Its examples do not run."""
    write("bad.kvpol", "sync if byts < 3B\n")
    write("bad.tests.toml", GOOD)
    result = run("bad.kvpol")
    assert result.exit_code == 2
    assert "error[KV101]: unknown name `byts`\n --> bad.kvpol:1:9" in result.stderr
    result = run("none.kvpol")
    assert result.exit_code == 2
    assert "none.kvpol: cannot be read: no such file" in result.stderr


def test_an_example_for_a_rule_or_param_that_there_is_not_fails() -> None:
    """The policy may have changed: it is the example that does not hold any more, not the file that is wrong."""
    write("p.tests.toml", GOOD.replace('"@fits"', '"@fit"') + 'params = { size = "3MiB" }\n')
    result = run("p.kvpol")
    assert result.exit_code == 1
    assert "the policy has no rule `@fit`; did you mean `@fits`?" in result.stdout
    assert "there is no param `size`\n          = help: the params are `cap` and `budget`\n" in result.stdout


def test_folders_are_searched_for_policies_and_each_has_its_report() -> None:
    """All policies are tested, those below and those after a failing one; hidden folders are left out."""
    write("p.tests.toml", GOOD)
    write("deep/er/q.kvpol", "async\n")
    write("deep/er/q.tests.toml", '[[example]]\nname = "x"\nexpect = "sync"\n')
    write("deep/lonely.kvpol", "async\n")
    write(".git/r.kvpol", "sync if\n")
    result = run(".")
    assert result.exit_code == 2
    assert re.findall(r"^(\S+\.kvpol)$", result.stdout, re.MULTILINE) == ["deep/er/q.kvpol", "p.kvpol"]
    assert result.stdout.endswith("3 passed, 1 failed, 1 not tested\n")
    assert result.stderr == "error: deep/lonely.kvpol: no examples; write them to deep/lonely.tests.toml\n"
    write("deep/lonely.tests.toml", '[[example]]\nname = "y"\nexpect = "async"\n')
    assert run(".").exit_code == 1
    assert run("p.kvpol", "deep/lonely.kvpol").exit_code == 0
    Path("empty").mkdir()
    result = run("empty")
    assert result.exit_code == 2
    assert "the folder `empty` has no .kvpol file" in result.output


def test_too_few_rules_that_decide_can_be_a_failure() -> None:
    """`--cov-fail-under` says what is enough, and the report what there is."""
    write("p.tests.toml", GOOD)
    assert run("p.kvpol", "--cov-fail-under", "75").exit_code == 0
    result = run("p.kvpol", "--cov-fail-under", "75.1")
    assert result.exit_code == 1
    assert "3 of 4 rules decide (75%, fewer than the 75.1% wanted)" in result.stdout
    assert run("p.kvpol", "--cov-fail-under", "101").exit_code == 2


def test_examples_of_another_file_and_params_can_be_given() -> None:
    """`--examples` goes with one policy; `--param` changes what is decided."""
    write("other.toml", GOOD)
    assert run("p.kvpol", "--examples", "other.toml").exit_code == 0
    result = run("p.kvpol", "--examples", "other.toml", "--param", "cap=1MiB")
    assert result.exit_code == 1
    assert "expected 2 blocks, got 1 of 8" in result.stdout
    assert run("p.kvpol", "--examples", "none.toml").exit_code == 2
    assert "it goes with one policy" in run("p.kvpol", "p2.kvpol", "--examples", "other.toml").output
    assert run("p.kvpol", "--param", "cpa=1MiB").exit_code == 2


def test_json_has_results_decisions_and_coverage() -> None:
    """One document; a policy that cannot be tested has its error in it, and status 2."""
    write("p.tests.toml", GOOD + FAILING)
    result = run("p.kvpol", "none.kvpol", "--json")
    assert result.exit_code == 2
    tested, missing = json.loads(result.stdout)
    assert (tested["policy"], tested["status"]) == ("p.kvpol", 1)
    assert [e["passed"] for e in tested["examples"]] == [True, True, True, False, False]
    assert tested["examples"][1]["decisions"] == [
        {
            "action": "sync", "asked": "sync", "demotion": None, "rule": 1, "label": "part", "blocks": 2,
            "bytes": 2 << 20,
        }
    ]  # fmt: skip
    assert tested["examples"][3]["problems"][0].startswith("expected 3 blocks, got 2 of 8\n")
    assert tested["coverage"]["percent"] == 75
    assert [rule["decided"] for rule in tested["coverage"]["rules"]] == [1, 2, 2, 0]
    assert (missing["policy"], missing["status"]) == ("none.kvpol", 2)
    assert "no such file" in missing["error"]


@pytest.mark.parametrize("name", shipped())
def test_the_examples_of_shipped_policies_hold_by_name(name: str) -> None:
    """`kvmove test NAME` finds the examples that come with the policy, and all of its rules decide."""
    result = run(name, "--cov-fail-under", "100")
    assert result.exit_code == 0, result.output
    assert re.search(r"^\d+ passed$", result.stdout, re.MULTILINE)


def test_terminal_codes_in_names_are_not_printed() -> None:
    """What a policy's file name holds reaches the terminal escaped."""
    name = write("a\x1b[31m.kvpol", POLICY)
    assert "\x1b" not in run(name).output
    write(name.replace(".kvpol", ".tests.toml"), GOOD)
    result = run(name)
    assert result.exit_code == 0
    assert "\x1b" not in result.output
