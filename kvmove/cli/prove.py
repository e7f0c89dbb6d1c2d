"""`kvmove prove`: what holds of a policy for every hit and step."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from kvmove.cli.quantities import parse_params, parse_seconds
from kvmove.kvpol import Policy
from kvmove.kvpol.render import render
from kvmove.kvpol.source import printable

if TYPE_CHECKING:
    from kvmove.kvpol.proof.results import Example, Report, Verdict

PROVED, FALSE, UNKNOWN = 0, 1, 3  # 2: the policy or an option cannot be used


class Format(StrEnum):
    """How to print what was found."""

    PRETTY = "pretty"
    JSON = "json"


def prove(
    file: Annotated[str, typer.Argument(help="Policy file, or a policy that comes with kvmove.", metavar="FILE")],
    monotone: Annotated[
        bool,
        typer.Option("--monotone", help="Want a smaller hit to be sync wherever a larger one in the same step is."),
    ] = False,
    timeout: Annotated[str, typer.Option(help="Time for each question, such as 2s or 500ms.", metavar="TIME")] = "2s",
    param: Annotated[
        list[str] | None,
        typer.Option(help="Value for a param of the policy. Repeatable.", metavar="NAME=VALUE", show_default=False),
    ] = None,
    format: Annotated[Format, typer.Option(help="How to print it.")] = Format.PRETTY,
) -> None:
    """Prove that every rule of a policy can decide something, and that every assert holds of every hit and step.

    Where not, an example says so, as `kvmove decide` takes it. A rule that relies on the scheduler to keep to the
    step's budget is noted. Needs the extra `prove` (z3).

    Exit status 0: proved, perhaps with notes. 1: an assert is false, a rule is dead or, with --monotone, the policy
    is not monotone. 2: the policy or an option cannot be used. 3: nothing is false, and something is unknown.
    """
    from kvmove.kvpol.proof import prove as prove_policy
    from kvmove.kvpol.proof.results import Status

    policy = Policy.load(file, parse_params(param or []))
    report = prove_policy(policy, monotone=monotone, timeout_s=parse_seconds(timeout, "--timeout"))
    if format is Format.JSON:
        typer.echo(json.dumps(_as_json(report), indent=2))
    else:
        for finding in report.findings:
            typer.echo(render(finding, policy.analysis.source) + "\n")
        typer.echo(f"{printable(file)}: {_summary(report)}")
    status = {Status.PROVED: PROVED, Status.FALSE: FALSE, Status.UNKNOWN: UNKNOWN}[report.status]
    if status:
        raise typer.Exit(status)


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


def _as_json(report: Report) -> dict[str, object]:
    source = report.policy.analysis.source
    return {
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
