"""`kvmove test`: run the examples that are kept beside policies."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from importlib.resources import files as package_files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvmove.cli.policy_files import policy_files
from kvmove.cli.quantities import parse_params
from kvmove.errors import ExamplesError, PolicyError
from kvmove.kvpol import Policy
from kvmove.kvpol.library import shipped
from kvmove.kvpol.source import printable

if TYPE_CHECKING:
    from kvmove.kvpol.examples_coverage import Coverage
    from kvmove.kvpol.examples_run import ExampleResult, Report

OK, FAILED, UNUSABLE = 0, 1, 2


@dataclass(slots=True)
class _Tested:
    """One policy that was named, with its report, or why there is none."""

    name: str
    report: Report | None
    error: str | None = None


def run_tests(
    files: Annotated[
        list[str],
        typer.Argument(
            help="Policy files, folders of them, or policies that come with kvmove.",
            metavar="FILES...",
            show_default=False,
        ),
    ],
    examples: Annotated[
        Path | None,
        typer.Option(help="Examples to run, instead of those beside the one FILE.", metavar="PATH", show_default=False),
    ] = None,
    param: Annotated[
        list[str] | None,
        typer.Option(help="Value for a param of the policies. Repeatable.", metavar="NAME=VALUE", show_default=False),
    ] = None,
    cov_fail_under: Annotated[
        float,
        typer.Option(
            "--cov-fail-under",
            help="Fail where fewer percent of a policy's rules decide.",
            min=0,
            max=100,
            metavar="PERCENT",
            show_default=False,
        ),
    ] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Run the examples beside policies: those of FILE.kvpol are in FILE.tests.toml.

    Prints what does not hold, with the reasons, and which rules and conditions no example exercises.

    Exit status 0: every example holds. 1: one does not, or too few rules decide. 2: a policy or its examples cannot be
    used, or there are none.
    """  # fmt: skip
    names = policy_files(files)
    if examples is not None and len(names) != 1:
        raise typer.BadParameter("it goes with one policy", param_hint="--examples")
    params = parse_params(param or [])
    tested = [_test(name, examples, params) for name in names]
    if as_json:
        typer.echo(json.dumps([_as_json(each, cov_fail_under) for each in tested], indent=2))
    else:
        _print(tested, cov_fail_under)
    worst = max((_status(each, cov_fail_under) for each in tested), default=OK)
    if worst:
        raise typer.Exit(worst)


def _test(name: str, examples: Path | None, params: dict[str, str]) -> _Tested:
    from kvmove.kvpol.examples import load_examples, run_examples

    try:
        policy = Policy.load(name, params)
        beside = examples or _beside(name)
        if examples is None and not beside.exists():
            return _Tested(name, None, f"error: {printable(name)}: no examples; write them to {printable(str(beside))}")
        return _Tested(name, run_examples(policy, load_examples(beside)))
    except ExamplesError as e:
        return _Tested(name, None, f"error: {e}")
    except PolicyError as e:
        return _Tested(name, None, str(e) if e.findings else f"error: {e}")


def _beside(name: str) -> Path:
    """Where the examples of a policy file are, or of one that comes with kvmove."""
    from kvmove.kvpol.examples import SUFFIX, examples_path

    if os.path.dirname(name) or name not in shipped():
        return examples_path(name)
    return Path(str(package_files("kvmove.policies").joinpath(name + SUFFIX)))


def _status(tested: _Tested, cov_fail_under: float) -> int:
    if tested.report is None:
        return UNUSABLE
    too_few = tested.report.coverage.percent < cov_fail_under
    return FAILED if too_few or not tested.report.passed else OK


def _print(tested: list[_Tested], cov_fail_under: float) -> None:
    passed = failed = 0
    for each in tested:
        if each.report is None:
            typer.echo(each.error, err=True)
            continue
        results = each.report.results
        failed += len(each.report.failed)
        passed += len(results) - len(each.report.failed)
        typer.echo(printable(each.name))
        for result in results:
            _print_result(result)
        _print_coverage(each.report.coverage, cov_fail_under)
        typer.echo("")
    unusable = sum(each.report is None for each in tested)
    counts = ((passed, "passed"), (failed, "failed"), (unusable, "not tested"))
    typer.echo(", ".join(f"{n} {word}" for n, word in counts if n or word == "passed"))


def _print_result(result: ExampleResult) -> None:
    if result.passed:
        typer.echo(f"  ok    {result.example.name}")
        return
    typer.echo(f"  FAIL  {result.example.name} ({result.example.file}:{result.example.line})")
    for problem in result.problems:
        for line in problem.split("\n"):
            typer.echo(f"        {printable(line)}")


def _print_coverage(coverage: Coverage, cov_fail_under: float) -> None:
    rules = coverage.rules
    decided = sum(bool(rule.decided) for rule in rules)
    wanted = f", fewer than the {cov_fail_under:g}% wanted" if coverage.percent < cov_fail_under else ""
    typer.echo(f"  {decided} of {len(rules)} rules decide ({_percent(coverage.percent)}%{wanted})")
    for line in coverage.never():
        typer.echo(f"    {printable(line)}")


def _percent(percent: float) -> str:
    """Rounded down: 100 is said of all only."""
    return str(int(percent))


def _as_json(tested: _Tested, cov_fail_under: float) -> dict[str, object]:
    if tested.report is None:
        return {"policy": tested.name, "status": UNUSABLE, "error": tested.error}
    return {
        "policy": tested.name,
        "status": _status(tested, cov_fail_under),
        "hash": tested.report.policy.hash,
        "examples": [
            {
                "name": r.example.name,
                "file": r.example.file,
                "line": r.example.line,
                "passed": r.passed,
                "problems": r.problems,
                "decisions": [
                    {
                        "action": d.decision.action,
                        "asked": d.decision.asked,
                        "demotion": d.decision.demotion,
                        "rule": d.decision.rule,
                        "label": d.trace.rule.label,
                        "blocks": d.decision.blocks,
                        "bytes": d.decision.bytes,
                    }
                    for d in r.decisions
                ],
            }
            for r in tested.report.results
        ],
        "coverage": tested.report.coverage.as_json(),
    }
