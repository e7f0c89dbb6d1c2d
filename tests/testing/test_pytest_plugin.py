"""Policy files as tests, and the coverage of their rules, in runs of pytest inside this one."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable
from importlib.metadata import EntryPoint
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest

from kvmove import Policy
from kvmove.kvpol.library import shipped
from kvmove.kvpol.proof import prove
from kvmove.testing.coverage import RuleCoverage
from kvmove.testing.plugin import _SENT, _Coverage

pytest_plugins = ["pytester"]
ROOT = Path(__file__).resolve().parents[2]
Run = Callable[..., pytest.RunResult]

GOOD = "@fits  sync if bytes <= budget_remaining\n       async\n"
EXAMPLES = """
[[example]]
name = "a small hit loads in the step"
hit = { bytes = "1MiB" }
expect = "sync"
rule = "@fits"

[[example]]
name = "a large one too"
hit = { bytes = "1GiB" }
expect = "sync"
"""


@pytest.fixture(scope="module", autouse=True)
def everything_is_imported() -> None:
    """A run inside this one drops what it was the first to import, and caches would keep halves of it."""
    importlib.import_module("kvmove.testing.items")
    policy = Policy.parse(GOOD)
    if find_spec("z3"):
        prove(policy)


@pytest.fixture
def run(pytester: pytest.Pytester) -> Run:
    # As the entry point would load it, and also where it does: pytest takes the second for the first.
    always = ["-p", "kvmove.testing.plugin", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
    return lambda *args: pytester.runpytest_inprocess(*always, *args)


def write(pytester: pytest.Pytester, **texts: str) -> None:
    for name, text in texts.items():
        (pytester.path / name.replace("__", ".")).write_text(text)


def test_nothing_is_collected_unless_it_is_asked_for(pytester: pytest.Pytester, run: Run) -> None:
    """And no hook is registered."""
    write(pytester, good__kvpol=GOOD, test_a__py="def test_a(pytestconfig):\n    m = pytestconfig.pluginmanager\n"
          "    assert not m.has_plugin('kvmove-policies') and not m.has_plugin('kvmove-rule-coverage')\n")  # fmt: skip
    run().assert_outcomes(passed=1)


def test_a_good_policy_passes_each_of_its_items(pytester: pytest.Pytester, run: Run) -> None:
    """Check, layout, proof."""
    pytest.importorskip("z3")
    write(pytester, good__kvpol=GOOD)
    result = run("--kvpol", "-v")
    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines(["*check PASSED*", "*fmt PASSED*", "*prove PASSED*"])


def test_a_setting_asks_for_it_too(pytester: pytest.Pytester, run: Run) -> None:
    """`kvpol = true` in pytest's configuration."""
    pytester.makeini("[pytest]\nkvpol = true\nkvpol_strict = true\n")
    write(pytester, lax__kvpol="sync if bytes <= budget_remaining\n")
    result = run("-k", "check")
    result.assert_outcomes(failed=1, deselected=2)
    result.stdout.fnmatch_lines(["warning*KV302*"])


def test_a_bad_policy_fails_its_check_and_skips_the_rest(pytester: pytest.Pytester, run: Run) -> None:
    """The finding is shown, and no traceback."""
    write(pytester, bad__kvpol="sync if bites < 1MiB\n")
    result = run("--kvpol")
    result.assert_outcomes(failed=1, skipped=2)
    result.stdout.fnmatch_lines(["error*KV101*bites*"])
    result.stdout.no_fnmatch_line("*Traceback*")


def test_a_layout_that_is_off_is_shown_as_a_diff(pytester: pytest.Pytester, run: Run) -> None:
    """With the command that repairs it."""
    write(pytester, wide__kvpol="sync   if bytes <= budget_remaining\nasync\n")
    result = run("--kvpol", "-k", "fmt")
    result.assert_outcomes(failed=1, deselected=2)
    result.stdout.fnmatch_lines(["run `kvmove fmt *wide.kvpol`:", "-sync   if *"])


def test_a_false_assert_fails_the_proof(pytester: pytest.Pytester, run: Run) -> None:
    """Its counterexample is shown."""
    pytest.importorskip("z3")
    write(pytester, false__kvpol="sync if bytes <= 2MiB\nasync\n\nassert sync implies bytes <= 1MiB\n")
    result = run("--kvpol", "-k", "prove")
    result.assert_outcomes(failed=1, deselected=2)
    result.stdout.fnmatch_lines(["error*KV401*"])


def test_the_policies_that_come_with_kvmove_pass(run: Run) -> None:
    """Strictly, proved, and every rule of every one decides an example."""
    pytest.importorskip("z3")
    result = run("--kvpol", "--kvpol-strict", "--kvpol-cov-fail-under=100", str(ROOT / "policies"))
    outcomes = result.parseoutcomes()
    assert outcomes.keys() == {"passed"}
    assert outcomes["passed"] > 3 * len(shipped())
    assert result.ret == 0


MESSAGES = {
    "check": (
        "sync if bites < 1MiB\n",
        """\
error[KV101]: unknown name `bites`
 --> {path}:1:9
  |
1 | sync if bites < 1MiB
  |         ^^^^^
  = help: did you mean `bytes`?""",
    ),
    "fmt": (
        "sync   if bytes <= budget_remaining\nasync\n",
        """\
run `kvmove fmt {path}`:
--- as it is
+++ formatted
@@ -1,2 +1,2 @@
-sync   if bytes <= budget_remaining
+sync if bytes <= budget_remaining
 async""",
    ),
    "prove": (
        "sync  if bytes <= 2MiB\nsync  if bytes <= 1MiB\nasync\n",
        """\
error[KV402]: this rule can never decide: rule 1 takes every hit that it matches
 --> {path}:2:1
  |
2 | sync  if bytes <= 1MiB
  | ^^^^^^^^^^^^^^^^^^^^^^
  = note: it is shadowed by this rule
 ::: {path}:1:1
  |
1 | sync  if bytes <= 2MiB
  | ^^^^^^^^^^^^^^^^^^^^^^
  = help: remove it, or move it above""",
    ),
    "example": (
        GOOD,
        """\
expected sync, got async by rule 2 (line 2)
  rule 1 @fits (line 1): does not match
      @fits sync if bytes <= budget_remaining
      false   bytes <= budget_remaining   [bytes = 1GiB, budget_remaining = 64MiB]
  rule 2 (line 2): decides
      async""",
    ),
}


@pytest.mark.parametrize("item", MESSAGES)
def test_the_message_of_a_failing_item(item: str, pytester: pytest.Pytester, run: Run) -> None:
    """What `kvmove` prints for the same mistake, and no traceback around it."""
    if item == "prove":
        pytest.importorskip("z3")
    text, expected = MESSAGES[item]
    write(pytester, p__kvpol=text)
    if item == "example":
        write(pytester, p__tests__toml=EXAMPLES)
    result = run("--kvpol", "-k", item)
    assert result.parseoutcomes()["failed"] == 1
    text = result.stdout.str()
    start = text.index(" FAILURES ")
    shown = text[text.index("\n", text.index("\n", start) + 1) + 1 : text.index("=====", start + 80)]
    assert shown.rstrip("\n") == expected.format(path=pytester.path / "p.kvpol")


def test_an_answer_that_is_unknown_is_no_failure(pytester: pytest.Pytester, run: Run) -> None:
    """It is skipped, with what was asked: a slow machine must not turn a good policy red."""
    pytest.importorskip("z3")
    cubes = " + ".join(f"{name} * {name} * {name}" for name in ("blocks", "running"))
    write(
        pytester,
        hard__kvpol=f"sync  if running > 0 and waiting > 0 and {cubes} == waiting * waiting * waiting\nasync\n",
    )
    result = run("--kvpol", "-k", "prove", "-rs")
    result.assert_outcomes(skipped=1, deselected=2)
    result.stdout.fnmatch_lines(["*not everything was answered in time*"])


def test_examples_are_items_and_count_as_coverage(pytester: pytest.Pytester, run: Run) -> None:
    """One that does not hold fails with what was decided instead."""
    write(pytester, good__kvpol=GOOD, good__tests__toml=EXAMPLES)
    result = run("--kvpol", "--kvpol-cov", "-k", "example")
    result.assert_outcomes(passed=1, failed=1, deselected=3)
    result.stdout.fnmatch_lines(
        ["*expected sync*", "*good.kvpol  2 of 2 rules, 2 decisions", "total: 2 of 2 rules, 100%"]
    )


def test_examples_that_cannot_be_read_fail_alone(pytester: pytest.Pytester, run: Run) -> None:
    """The rest of the policy is tested."""
    write(pytester, good__kvpol=GOOD, good__tests__toml="[[example]\n")
    result = run("--kvpol", "-k", "check or examples")
    result.assert_outcomes(passed=1, failed=1, deselected=2)
    result.stdout.fnmatch_lines(["*good.tests.toml:1: not TOML*"])


DECIDES = """
from kvmove import Hit, Policy, StepScheduler

def test_it():
    scheduler = StepScheduler(Policy.load("good.kvpol"))
    scheduler.begin_step()
    hit = dict(bytes=1, tokens=1, blocks=1, prompt_tokens=2, cached_tokens=0, compute_tokens=1)
    scheduler.decide(Hit(request="a", **hit))
    scheduler.decide_batch([Hit(request="b", **hit), Hit(request="c", **hit)])
    Policy.parse("async").decide(None, None)
"""


def test_coverage_counts_every_decision_of_the_run(pytester: pytest.Pytester, run: Run) -> None:
    """One by one and in batches, of policies from files; a rule that never decided is named."""
    write(pytester, good__kvpol=GOOD, test_it__py=DECIDES)
    before = Policy.__init__
    result = run("--kvpol-cov")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(
        ["good.kvpol  1 of 2 rules, 3 decisions", "  line 2 never decided: async", "total: 1 of 2 rules, 50%"]
    )
    assert Policy.__init__ is before


def test_a_file_is_one_however_its_path_is_written(pytester: pytest.Pytester, run: Run) -> None:
    """Collected by its whole path, loaded by a short one and through a link: one line of the report."""
    write(pytester, good__kvpol=GOOD, good__tests__toml=EXAMPLES.replace("1GiB", "2MiB"), test_it__py=DECIDES)
    (pytester.path / "link.kvpol").symlink_to("good.kvpol")
    write(pytester, test_link__py=DECIDES.replace("good.kvpol", "link.kvpol"))
    result = run("--kvpol", "--kvpol-cov", "-k", "test_it or example")
    assert [line for line in result.outlines if "decisions" in line] == ["good.kvpol  1 of 2 rules, 8 decisions"]
    result.stdout.fnmatch_lines(["total: 1 of 2 rules, 50%"])


def test_a_policy_file_that_is_followed_counts(pytester: pytest.Pytester, run: Run) -> None:
    """Each version that it loads by itself."""
    write(pytester, good__kvpol=GOOD, test_it__py="""
from pathlib import Path
from kvmove import PolicyFile, StepScheduler
from test_hit import HIT

def test_it():
    file = PolicyFile("good.kvpol", watch=False)
    for text in (None, "recompute if tokens > 3tok\\ndefer\\n"):
        if text:
            Path("good.kvpol").write_text(text)
            assert file.reload()
        scheduler = StepScheduler(file.current)
        scheduler.begin_step()
        scheduler.decide(HIT)
""".replace("\\\\", "\\"), test_hit__py="""
from kvmove import Hit
HIT = Hit(request="a", bytes=1, tokens=1, blocks=1, prompt_tokens=2, cached_tokens=0, compute_tokens=1)
""")  # fmt: skip
    result = run("--kvpol-cov")
    result.assert_outcomes(passed=1)
    decisions = [line.split("  ")[1] for line in result.outlines if "decisions" in line]
    assert decisions == ["1 of 2 rules, 1 decisions"] * 2
    result.stdout.fnmatch_lines(["total: 2 of 4 rules, 50%"])


def test_coverage_can_be_required(pytester: pytest.Pytester, run: Run) -> None:
    """Too little fails the run; an impossible percentage is a usage error."""
    write(pytester, good__kvpol=GOOD, test_it__py=DECIDES)
    assert run("--kvpol-cov-fail-under=50").ret == 0
    result = run("--kvpol-cov-fail-under=51")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["FAIL: 50% of the rules decided, 51% are required"])
    assert run("--kvpol-cov-fail-under=101").ret == pytest.ExitCode.USAGE_ERROR


def test_coverage_of_workers_is_added(tmp_path: Path) -> None:
    """As pytest-xdist sends it when a worker ends."""
    path = tmp_path / "good.kvpol"
    path.write_text(GOOD)
    parts = []
    for rule in (0, 1):
        worker = RuleCoverage()
        worker.know(Policy.load(path))[rule] += 5
        parts.append(worker.as_plain())
    total = RuleCoverage()
    hooks = _Coverage(total, None)
    for part in parts:
        hooks.pytest_testnodedown(SimpleNamespace(workeroutput={_SENT: part}), None)
    assert list(total.lines())[-1] == "total: 2 of 2 rules, 100%"


def test_importing_the_plugin_imports_nothing_heavy() -> None:
    """It is imported in every run of pytest where kvmove is installed."""
    heavy = ["torch", "numpy", "hypothesis", "lark", "z3", "rich", "kvmove.kvpol"]
    code = f"import sys, kvmove.testing.plugin; print(*[m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.split() == []


def test_the_entry_points_lead_to_what_they_name() -> None:
    """The package's metadata tells pytest and hypothesis of it."""
    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    for group in ("pytest11", "hypothesis"):
        for name, value in points[group].items():
            assert EntryPoint(name, value, group).load()


@pytest.fixture
def installed(tmp_path: Path) -> dict[str, str]:
    """The environment of a process that sees the package's entry points, whatever was installed here and when."""
    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    lines = [f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in points[group].items()) for group in points]
    metadata = tmp_path / "site" / "kvmove-0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: kvmove\nVersion: 0\n")
    (metadata / "entry_points.txt").write_text("\n".join(lines))
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(metadata.parent), str(ROOT)])}


def test_hypothesis_finds_the_strategies_by_itself(installed: dict[str, str], tmp_path: Path) -> None:
    """`from_type` works where nothing of `kvmove.testing` but its entry point was imported."""
    code = (
        "import sys, warnings; warnings.simplefilter('ignore')\n"
        "from kvmove import Hit, Policy, StepState\n"
        "from hypothesis import strategies as st\n"
        "assert 'kvmove.testing.records' not in sys.modules\n"
        "for kind in (Hit, StepState, Policy):\n"
        "    assert type(st.from_type(kind).example()) is kind\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env=installed, cwd=tmp_path)


def test_pytest_finds_the_plugin_by_itself(installed: dict[str, str], tmp_path: Path) -> None:
    """Its options are there."""
    (tmp_path / "good.kvpol").write_text(GOOD)
    command = [sys.executable, "-m", "pytest", "-q", "--kvpol", "-k", "fmt", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(command, check=False, env=installed, cwd=tmp_path, capture_output=True, text=True)
    assert "1 passed, 2 deselected" in done.stdout, done.stdout + done.stderr
