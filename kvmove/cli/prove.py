"""`kvmove prove`: what holds of a policy for every hit and step."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from kvmove.cli.policy_files import policy_files
from kvmove.cli.quantities import parse_params, parse_seconds
from kvmove.errors import PolicyError
from kvmove.kvpol import Policy
from kvmove.kvpol.render import render
from kvmove.kvpol.source import printable

if TYPE_CHECKING:
    from kvmove.kvpol.proof.results import Example, Report, Verdict

PROVED, FALSE, UNUSABLE, UNKNOWN = 0, 1, 2, 3
_WORST_LAST = (PROVED, UNKNOWN, FALSE, UNUSABLE)


class Format(StrEnum):
    """How to print what was found."""

    PRETTY = "pretty"
    JSON = "json"


def prove(
    files: Annotated[
        list[str],
        typer.Argument(
            help="Policy files, folders of them, or policies that come with kvmove.",
            metavar="FILES...",
            show_default=False,
        ),
    ],
    monotone: Annotated[
        bool,
        typer.Option("--monotone", help="Want a smaller hit to be sync wherever a larger one in the same step is."),
    ] = False,
    timeout: Annotated[str, typer.Option(help="Time for each question, such as 2s or 500ms.", metavar="TIME")] = "2s",
    param: Annotated[
        list[str] | None,
        typer.Option(help="Value for a param of the policies. Repeatable.", metavar="NAME=VALUE", show_default=False),
    ] = None,
    format: Annotated[Format, typer.Option(help="How to print it.")] = Format.PRETTY,
) -> None:
    """Prove that every rule of a policy can decide something, and that every assert holds of every hit and step.

    Where not, an example says so, as `kvmove decide` takes it. A rule that relies on the scheduler to keep to the
    step's budget is noted. Needs the extra `prove` (z3).

    Exit status 0: proved, perhaps with notes. 1: an assert is false, a rule is dead or, with --monotone, a policy
    is not monotone. 2: a policy or an option cannot be used. 3: nothing is false, and something is unknown.
    """
    timeout_s, params = parse_seconds(timeout, "--timeout"), parse_params(param or [])
    found = [_prove(name, params, monotone, timeout_s) for name in policy_files(files)]
    if format is Format.JSON:
        typer.echo(json.dumps([_as_json(each) for each in found], indent=2))
    else:
        for each in found:
            _print(each)
    worst = max((each.exit_status for each in found), key=_WORST_LAST.index)
    if worst:
        raise typer.Exit(worst)


@dataclass(frozen=True, slots=True)
class _Proved:
    """One policy that was named, with its report, or why there is none."""

    name: str
    report: Report | None
    error: str | None = None

    @property
    def exit_status(self) -> int:
        if self.report is None:
            return UNUSABLE
        return {"proved": PROVED, "false": FALSE, "unknown": UNKNOWN}[self.report.status]


def _prove(name: str, params: dict[str, str], monotone: bool, timeout_s: float) -> _Proved:
    from kvmove.kvpol.proof import prove as prove_policy

    try:
        policy = Policy.load(name, params)
    except PolicyError as e:
        return _Proved(name, None, str(e) if e.findings else f"error: {e}")
    return _Proved(name, prove_policy(policy, monotone=monotone, timeout_s=timeout_s))


def _print(proved: _Proved) -> None:
    if proved.report is None:
        typer.echo(proved.error, err=True)
        return
    for finding in proved.report.findings:
        typer.echo(render(finding, proved.report.policy.analysis.source) + "\n")
    typer.echo(f"{printable(proved.name)}: {_summary(proved.report)}")


def _summary(report: Report) -> str:
    def counted(proved: list[bool], what: str, verb: str) -> str:
        return f"{sum(proved)} of {len(proved)} {what}{'' if len(proved) == 1 else 's'} {verb}"

    parts = [counted([r.status == "proved" for r in report.rules], "rule", "can decide")]
    if report.asserts:
        parts.append(counted([a.status == "proved" for a in report.asserts], "assert", "proved"))
    if report.monotone is not None:
        words = {"proved": "monotone", "false": "not monotone", "unknown": "perhaps monotone"}
        parts.append(words[report.monotone.status])
    return f"{report.status}: {', '.join(parts)}"


def _as_json(proved: _Proved) -> dict[str, object]:
    if proved.report is None:
        return {"file": proved.name, "status": "unusable", "error": proved.error}
    report, source = proved.report, proved.report.policy.analysis.source
    return {
        "file": proved.name,
        "policy": report.policy.name,
        "hash": report.policy.hash,
        "status": report.status,
        "rules": [
            {
                "index": r.rule.index,
                "label": r.rule.label,
                "line": r.rule.line,
                "status": r.status,
                "shadowed_by": None if r.shadowed_by is None else [s.index for s in r.shadowed_by],
                "beyond_budget": r.beyond_budget,
                "beyond_budget_example": None
                if r.beyond_budget_example is None
                else example_json(r.beyond_budget_example),
                "reason": r.reason,
            }
            for r in report.rules
        ],
        "asserts": [verdict_json(a) for a in report.asserts],
        "monotone": None if report.monotone is None else verdict_json(report.monotone),
        "findings": [
            {
                "code": f.code,
                "severity": f.severity,
                "message": f.message,
                "line": source.line_of(f.span.start),
                "column": source.column_of(f.span.start),
                "notes": [n.message for n in f.notes],
                "help": f.help,
            }
            for f in report.findings
        ],
    }


def verdict_json(verdict: Verdict) -> dict[str, object]:
    """A verdict as JSON values."""
    return {
        "claim": verdict.claim,
        "status": verdict.status,
        "examples": [example_json(e) for e in verdict.examples],
        "reason": verdict.reason,
    }


def example_json(example: Example) -> dict[str, object]:
    """An example as JSON values, with units as `kvmove decide` takes them."""
    from kvmove.kvpol.proof.describe import hit_values, step_values

    return {"hit": hit_values(example.hit), "step": step_values(example.step)}
