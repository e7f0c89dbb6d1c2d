"""`kvmove prove`: what it prints, its exit statuses, and that every example it prints is one."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from kvmove.cli import app
from kvmove.kvpol.codes import CODES
from kvmove.kvpol.library import shipped
from kvmove.kvpol.pages import page
from kvmove.kvpol.proof.session import load_z3

POLICIES = Path(__file__).parents[2] / "policies"

# No bound on natural numbers helps here: Fermat's theorem for cubes. Among real numbers there are solutions.
UNDECIDABLE = """\
let cubes = running * running * running + waiting * waiting * waiting
@odd  defer if running > 0 and waiting > 0 and cubes == free_slots * free_slots * free_slots
      async
"""

DEAD = """\
@fits   sync      if bytes <= budget_remaining
@small  sync      if tokens < 64tok and bytes <= 1MiB and bytes <= budget_remaining
@never  recompute if waited > 2s and waited < 1s
@rest   async     if bytes > budget_remaining or waiting == 0
        async
"""

DEAD_REPORT = """\
error[KV402]: this rule can never decide: rule 1 @fits takes every hit that it matches
 --> dead.kvpol:2:1
  |
2 | @small  sync      if tokens < 64tok and bytes <= 1MiB and bytes <= budget_remaining
  | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  = note: it is shadowed by this rule
 ::: dead.kvpol:1:1
  |
1 | @fits   sync      if bytes <= budget_remaining
  | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  = help: remove it, or move it above

error[KV402]: this rule can never decide: its condition holds for no hit and step
 --> dead.kvpol:3:1
  |
3 | @never  recompute if waited > 2s and waited < 1s
  | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  = help: remove it

error[KV402]: this rule can never decide: rule 1 @fits and rule 4 @rest together take every hit that it matches
 --> dead.kvpol:5:9
  |
5 |         async
  |         ^^^^^
  = note: it is shadowed by this rule
 ::: dead.kvpol:1:1
  |
1 | @fits   sync      if bytes <= budget_remaining
  | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  = note: it is shadowed by this rule
 ::: dead.kvpol:4:1
  |
4 | @rest   async     if bytes > budget_remaining or waiting == 0
  | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  = help: remove it, and the condition of rule 4 @rest, which is the last then

dead.kvpol: false: 2 of 5 rules can decide
"""

NOT_MONOTONE = """\
error[KV403]: a larger hit is `sync` here, where for a smaller one rule 2 decides
 --> p.kvpol:1:1
  |
1 | @middle sync if 1MiB <= bytes <= budget_remaining
  | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  = note: the smaller hit, `async`: --hit bytes=1B,tokens=1tok,blocks=1,cached_tokens=0tok,compute_tokens=1tok \
--step budget=1MiB,budget_remaining=1MiB
  = note: the larger hit, `sync`: --hit bytes=1MiB,tokens=1tok,blocks=1,cached_tokens=0tok,compute_tokens=1tok \
--step budget=1MiB,budget_remaining=1MiB

p.kvpol: false: 2 of 2 rules can decide, not monotone
"""


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(a) for a in arguments])


def prove(*arguments: object) -> Result:
    """A long time for each question, so that a busy machine does not change an example."""
    return run("prove", "--timeout", "60s", *arguments)


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write(text: str, name: str = "p.kvpol") -> str:
    Path(name).write_text(text, encoding="utf-8")
    return name


def examples_in(output: str) -> list[tuple[str, str]]:
    """The `--hit` and `--step` of every example in a report."""
    return re.findall(r"--hit (\S+) --step (\S+)", output)


def decided(policy: str, example: tuple[str, str]) -> dict[str, object]:
    """What `kvmove decide` says of an example, as pasted from a report."""
    result = run("decide", policy, "--hit", example[0], "--step", example[1], "--json")
    assert result.exit_code == 0, result.output
    return dict(json.loads(result.stdout))


@pytest.mark.parametrize("name", shipped())
def test_shipped_policies_are_proved(name: str) -> None:
    """Every rule can decide and every assert holds; only `always_sync`, as it says, relies on the scheduler."""
    result = prove(name)
    assert result.exit_code == 0, result.output
    assert re.fullmatch(rf"{name}: proved: (\d+) of \1 rules? can decide(, (\d+) of \3 asserts? proved)?\n",
                        result.stdout.rpartition("\n\n")[2])  # fmt: skip
    relies = set(re.findall(r"KV4\d\d", (POLICIES / f"{name}.kvpol").read_text(encoding="utf-8")))
    assert set(re.findall(r"\[(KV\d+)\]", result.stdout)) == relies


@pytest.mark.parametrize("name", shipped())
def test_shipped_policies_but_those_that_split_are_monotone(name: str) -> None:
    """Where blocks are cut off, a hit of fewer blocks can be too coarse to cut."""
    cuts = "at most" in re.sub("#.*", "", (POLICIES / f"{name}.kvpol").read_text(encoding="utf-8"))
    result = prove("--monotone", name)
    assert (result.exit_code, result.stdout.rstrip().endswith(", monotone")) == ((1, False) if cuts else (0, True))


def test_dead_rules_are_found_with_what_shadows_them() -> None:
    """A rule under another, one that contradicts itself, and one that two others leave nothing to."""
    result = prove(write(DEAD, "dead.kvpol"))
    assert (result.exit_code, result.stdout) == (1, DEAD_REPORT)


def test_a_false_assert_comes_with_a_hit_for_which_it_is_false() -> None:
    """The example is the smallest, and `kvmove decide` takes it as it is printed."""
    policy = write("@fits sync if bytes <= budget_remaining\nasync\nassert sync implies tokens < 100tok\n")
    result = prove(policy)
    assert result.exit_code == 1
    assert "error[KV401]: this assert is false where rule 1 @fits decides\n --> p.kvpol:3:1\n" in result.stdout
    assert result.stdout.endswith("p.kvpol: false: 2 of 2 rules can decide, 0 of 1 assert proved\n")
    (example,) = examples_in(result.stdout)
    found = decided(policy, example)
    hit = found["hit"]
    assert isinstance(hit, dict)
    assert (found["action"], hit["tokens"], hit["bytes"]) == ("sync", 100, 1)


def test_monotone_is_asked_for_and_shows_two_hits() -> None:
    """Without the option nothing is said; with it the smaller and the larger hit are there, and decide so."""
    policy = write("@middle sync if 1MiB <= bytes <= budget_remaining\nasync\n")
    assert prove(policy).stdout == "p.kvpol: proved: 2 of 2 rules can decide\n"
    result = prove(policy, "--monotone")
    assert (result.exit_code, result.stdout) == (1, NOT_MONOTONE)
    small, large = (decided(policy, example) for example in examples_in(result.stdout))
    assert (small["action"], large["action"]) == ("async", "sync")
    assert prove(write("sync if bytes <= budget_remaining\nasync"), "--monotone").stdout.endswith(", monotone\n")


def test_a_rule_that_relies_on_the_budgets_guard_rail_is_noted() -> None:
    """The note has an example that the scheduler demotes, and is no failure."""
    policy = write("@small sync if tokens < 512tok\nasync\n")
    result = prove(policy)
    assert result.exit_code == 0
    assert result.stdout.startswith("warning[KV404]: this rule asks for `sync` with more bytes than the step's budget")
    (example,) = examples_in(result.stdout)
    found = decided(policy, example)
    assert (found["asked"], found["action"], found["demotion"]) == ("sync", "async", "over_budget")


def test_a_part_that_keeps_to_the_budget_is_not_noted() -> None:
    """`sync at most budget_remaining` never relies on it, and twice as much does."""
    assert prove(write("sync at most budget_remaining\nasync")).stdout == "p.kvpol: proved: 2 of 2 rules can decide\n"
    policy = write("sync at most 2 * budget_remaining\nasync")
    result = prove(policy)
    assert "KV404" in result.stdout
    (example,) = examples_in(result.stdout)
    assert decided(policy, example)["demotion"] == "over_budget"


def test_a_rule_for_hits_of_many_blocks_is_reached() -> None:
    """A cut that only a hit of a hundred blocks and more can have is found all the same."""
    policy = write("sync at most budget_remaining if bytes >= 100 * budget_remaining and budget_remaining > 0B\nasync")
    assert prove(policy).stdout == "p.kvpol: proved: 2 of 2 rules can decide\n"


@pytest.mark.parametrize("timeout", ["1ns", "500ms"])
def test_what_is_unknown_is_said_to_be_and_is_status_3(timeout: str) -> None:
    """A question without an answer in the time that is given is no proof."""
    result = run("prove", "--monotone", "--timeout", timeout, write(UNDECIDABLE + "assert sync implies bytes > 1B"))
    assert result.exit_code == 3, result.output
    assert re.search(r"warning\[KV405\]: whether this rule can decide is unknown: no answer within \S+ s; products and"
                     r" quotients of variables are hard to decide\n --> p\.kvpol:2:1\n", result.stdout)  # fmt: skip
    assert "= help: give it more time with `--timeout`, or simplify what it is about\n" in result.stdout
    assert result.stdout.splitlines()[-1].startswith("p.kvpol: unknown: ")
    assert "2 of 2" not in result.stdout


def test_rules_beside_one_that_is_unknown_are_decided() -> None:
    """The last rule can decide, whatever the cubes are: with zeros, for example."""
    result = run("prove", "--timeout", "2s", write(UNDECIDABLE))
    assert result.stdout.endswith("p.kvpol: unknown: 1 of 2 rules can decide\n")


def test_what_is_false_outweighs_what_is_unknown() -> None:
    """Status 1, not 3, where both are found."""
    text = UNDECIDABLE.replace("      async", "sync if tokens < 0tok + 1tok\nasync")
    assert run("prove", "--timeout", "200ms", write(text)).exit_code == 1


def test_params_are_what_is_proved_about() -> None:
    """Another value of a param makes a rule dead."""
    policy = write("param cap: bytes = 4MiB\nsync if bytes <= cap and bytes <= budget_remaining\nasync")
    assert prove(policy).exit_code == 0
    result = prove(policy, "--param", "cap=0B")
    assert result.exit_code == 1
    assert "its condition holds for no hit and step" in result.stdout
    assert prove(policy, "--param", "cpa=1B").exit_code == 2


def test_folders_and_several_files_are_proved_in_one_go() -> None:
    """Each has its line; one that cannot be used is said on standard error, and the status is that of the worst."""
    Path("policies/more").mkdir(parents=True)
    write("async\n", "policies/a.kvpol")
    write("sync if tokens < 1tok\nasync\n", "policies/more/b.kvpol")
    result = prove("policies")
    assert result.exit_code == 1
    assert result.stdout.startswith("policies/a.kvpol: proved: 1 of 1 rule can decide\nerror[KV402]")
    assert result.stdout.endswith("policies/more/b.kvpol: false: 1 of 2 rules can decide\n")
    write("sync if byts < 3B\n", "policies/c.kvpol")
    result = prove("policies", "policies/a.kvpol")
    assert result.exit_code == 2
    assert "error[KV101]: unknown name `byts`\n --> policies/c.kvpol:1:9" in result.stderr
    assert result.stdout.count(": proved:") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none.kvpol"], "error: none.kvpol: cannot be read: no such file"),
        (["."], "the folder `.` has no .kvpol file"),
        (["budgeted", "--timeout", "2"], "`2` is not in time; write `2s` or `2ms`"),
        (["budgeted", "--timeout", "0s"], "`0s` is not between 1ns and 3600s"),
        (["budgeted", "--param", "budget"], "`budget` is not written like `NAME=VALUE`"),
        ([], "FILES"),
    ],
)
def test_what_cannot_be_used_is_status_2(arguments: list[str], message: str) -> None:
    """The message names the value and what to write."""
    result = run("prove", *arguments)
    assert result.exit_code == 2
    assert message in re.sub(r"\s+", " ", result.output)


def test_json_has_the_verdicts_and_the_examples() -> None:
    """One document for all files, in which an example has the units that `kvmove decide` takes."""
    write("@fits sync if bytes <= budget_remaining\n@dup sync if bytes < budget_remaining\nasync\nassert not sync\n")
    write("sync if byts < 3B", "bad.kvpol")
    result = prove("--format", "json", "--monotone", "p.kvpol", "bad.kvpol")
    assert result.exit_code == 2
    found, bad = json.loads(result.stdout)
    assert (found["file"], found["status"]) == ("p.kvpol", "false")
    assert [(r["label"], r["line"], r["status"], r["shadowed_by"], r["beyond_budget"]) for r in found["rules"]] == [
        ("fits", 1, "proved", [], False), ("dup", 2, "false", [0], None), (None, 3, "proved", [], None),
    ]  # fmt: skip
    (claim,) = found["asserts"]
    assert (claim["claim"], claim["status"]) == ("not sync", "false")
    (example,) = claim["examples"]
    hit, step = (",".join(f"{k}={v}" for k, v in example[part].items()) for part in ("hit", "step"))
    assert decided("p.kvpol", (hit, step))["action"] == "sync"
    assert found["monotone"]["status"] == "proved"
    assert [(f["code"], f["line"]) for f in found["findings"]] == [("KV402", 2), ("KV401", 4)]
    assert (bad["file"], bad["status"]) == ("bad.kvpol", "unusable")
    assert "unknown name `byts`" in bad["error"]


PROVEN = sorted(name for name in CODES if name >= "KV400")


@pytest.mark.parametrize("name", PROVEN)
def test_the_examples_of_the_pages_on_proofs_are_right(name: str) -> None:
    """The wrong example of a page gives its code, beside which only KV404 may be noted; the right one gives none."""
    wrong, right = re.findall(r"^```kvpol(?: wrong)?\n(.*?)^```$", page(CODES[name]), re.MULTILINE | re.DOTALL)
    options = ["--monotone"] if name == "KV403" else []
    timeout = "300ms" if name == "KV405" else "60s"
    result = run("prove", *options, "--timeout", timeout, write(wrong))
    assert {name} <= set(re.findall(r"\[(KV\d+)\]", result.stdout)) <= {name, "KV404"}
    assert result.exit_code == (1 if CODES[name].severity.value == "error" else 3 if name == "KV405" else 0)
    result = prove(*options, write(right))
    assert (result.exit_code, "KV" in result.stdout) == (0, False), result.stdout


def test_an_interrupt_ends_a_proof() -> None:
    """Status 130 and no report: what was interrupted is no question without an answer."""
    stop = threading.Timer(1, lambda: os.kill(os.getpid(), signal.SIGINT))
    stop.start()
    result = run("prove", "--timeout", "60s", write(UNDECIDABLE))
    stop.join()
    assert (result.exit_code, result.stdout) == (130, "")


@pytest.fixture
def without_z3(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An installation without the extra `prove`: importing z3 fails."""
    load_z3.cache_clear()
    for module in [m for m in sys.modules if m == "z3" or m.startswith("z3.")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "z3", None)
    yield
    load_z3.cache_clear()


@pytest.mark.usefixtures("without_z3")
@pytest.mark.parametrize("command", [["prove", "budgeted"], ["diff", "budgeted", "split"]])
def test_without_z3_the_extra_to_install_is_named(command: list[str]) -> None:
    """Status 2 and one line, no traceback."""
    result = run(*command)
    assert result.exit_code == 2
    assert result.stderr == (
        "error: proofs need z3, which is not installed; install it with: pip install 'kvmove[prove]'\n"
    )


@pytest.mark.usefixtures("without_z3")
def test_without_z3_the_other_commands_work() -> None:
    """Only proofs need it."""
    write("sync if bytes <= budget_remaining\nasync\n")
    assert run("check", "p.kvpol").exit_code == 0
    assert run("fmt", "--check", "p.kvpol").exit_code in (0, 1)
    assert run("decide", "p.kvpol").exit_code == 0
