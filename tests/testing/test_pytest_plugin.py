"""Policy files as tests, and the coverage of their rules, in runs of pytest inside this one."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest

from kvmove import Policy
from kvmove.kvpol.proof import prove
from kvmove.testing.coverage import RuleCoverage
from kvmove.testing.plugin import _SENT, _Coverage

pytest_plugins = ["pytester"]
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


def test_nothing_is_collected_unless_it_is_asked_for(
    pytester: pytest.Pytester, run: Callable[..., pytest.RunResult]
) -> None:
    """And no hook is registered."""
    write(pytester, good__kvpol=GOOD, test_a__py="def test_a(pytestconfig):\n    m = pytestconfig.pluginmanager\n"
          "    assert not m.has_plugin('kvmove-policies') and not m.has_plugin('kvmove-rule-coverage')\n")  # fmt: skip
    run().assert_outcomes(passed=1)


def test_a_good_policy_passes_each_of_its_items(
    pytester: pytest.Pytester, run: Callable[..., pytest.RunResult]
) -> None:
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


def test_a_bad_policy_fails_its_check_and_skips_the_rest(
    pytester: pytest.Pytester, run: Callable[..., pytest.RunResult]
) -> None:
    """The finding is shown, and no traceback."""
    write(pytester, bad__kvpol="sync if bites < 1MiB\n")
    result = run("--kvpol")
    result.assert_outcomes(failed=1, skipped=2)
    result.stdout.fnmatch_lines(["error*KV101*bites*"])
    result.stdout.no_fnmatch_line("*Traceback*")


def test_a_layout_that_is_off_is_shown_as_a_diff(
    pytester: pytest.Pytester, run: Callable[..., pytest.RunResult]
) -> None:
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


def test_examples_are_items_and_count_as_coverage(
    pytester: pytest.Pytester, run: Callable[..., pytest.RunResult]
) -> None:
    """One that does not hold fails with what was decided instead."""
    write(pytester, good__kvpol=GOOD, good__tests__toml=EXAMPLES)
    result = run("--kvpol", "--kvpol-cov", "-k", "example")
    result.assert_outcomes(passed=1, failed=1, deselected=3)
    result.stdout.fnmatch_lines(
        ["*expected sync*", "*good.kvpol  2 of 2 rules, 2 decisions", "total: 2 of 2 rules, 100%"]
    )


def test_examples_that_cannot_be_read_fail_alone(
    pytester: pytest.Pytester, run: Callable[..., pytest.RunResult]
) -> None:
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


def test_coverage_counts_every_decision_of_the_run(
    pytester: pytest.Pytester, run: Callable[..., pytest.RunResult]
) -> None:
    """One by one and in batches, of policies from files; a rule that never decided is named."""
    write(pytester, good__kvpol=GOOD, test_it__py=DECIDES)
    before = Policy.__init__
    result = run("--kvpol-cov")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(
        ["good.kvpol  1 of 2 rules, 3 decisions", "  line 2 never decided: async", "total: 1 of 2 rules, 50%"]
    )
    assert Policy.__init__ is before


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
    import tomllib

    root = Path(__file__).resolve().parents[2]
    points = tomllib.loads((root / "pyproject.toml").read_text())["project"]["entry-points"]
    for group in ("pytest11", "hypothesis"):
        for name, value in points[group].items():
            assert EntryPoint(name, value, group).load()
