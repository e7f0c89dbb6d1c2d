"""`kvmove decide`: what a policy does with one hit, and why."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvmove import schema
from kvmove.cli.quantities import parse_params
from kvmove.kvpol import Policy
from kvmove.kvpol.given import hit_of, shown, step_of
from kvmove.kvpol.source import printable, quoted
from kvmove.records import Decision, Demotion, Hit, StepState

if TYPE_CHECKING:
    from kvmove.kvpol.trace import Condition, RuleTrace, Trace

MAX_DEFERRALS = 16  # the scheduler's own default
_WHY = {
    Demotion.OVER_BUDGET: "more bytes than the step's budget has left",
    Demotion.NOTHING_TO_COMPUTE: "the step would have no token of it to compute",
    Demotion.DEFERRED_TOO_OFTEN: f"deferred {MAX_DEFERRALS} times already",
}


class Format(StrEnum):
    """How to print the decision."""

    PRETTY = "pretty"
    JSON = "json"


def decide(
    file: Annotated[str, typer.Argument(help="Policy file, or a policy that comes with kvmove.", metavar="FILE")],
    hit: Annotated[
        str, typer.Option(help="Values of the hit, such as bytes=3MiB,load_time=2ms.", metavar="NAME=VALUE,...")
    ] = "",
    step: Annotated[
        str, typer.Option(help="Values of the step, such as budget_remaining=1MiB.", metavar="NAME=VALUE,...")
    ] = "",
    param: Annotated[
        list[str] | None,
        typer.Option(help="Value for a param of the policy. Repeatable.", metavar="NAME=VALUE", show_default=False),
    ] = None,
    format: Annotated[Format, typer.Option(help="How to print it.")] = Format.PRETTY,
) -> None:
    """Say what a policy decides about one hit in one step, by which rule, and what made each rule match or not.

    Values that are not given are assumed so that they fit, and printed as assumed; estimates are unknown.

    Exit status 0: decided. 2: the policy or a value cannot be used.
    """
    from kvmove.kvpol.trace import trace
    from kvmove.schedule.guard_rails import decision_after_guard_rails
    from kvmove.schedule.ledger import Ledger
    from kvmove.schedule.policy import BoundPolicy

    policy = Policy.load(file, parse_params(param or []))
    the_hit, hit_assumed = hit_of(_pairs(hit, "--hit"))
    state, step_assumed = step_of(_pairs(step, "--step"), policy.budget_bytes)
    traced = trace(policy, the_hit, state)
    decision = decision_after_guard_rails(traced.verdict, the_hit, BoundPolicy(policy), Ledger(state), MAX_DEFERRALS)
    assumed = {*hit_assumed, *step_assumed}
    if format is Format.JSON:
        typer.echo(json.dumps(_as_json(policy, the_hit, state, assumed, traced, decision), indent=2))
        return
    typer.echo("\n".join(printable(line) for line in _pretty(the_hit, state, assumed, traced, decision)))


def _pairs(text: str, option: str) -> dict[str, object]:
    pairs: dict[str, object] = {}
    for setting in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = (part.strip() for part in setting.partition("="))
        if not (name and equals and value):
            raise typer.BadParameter(f"{quoted(setting)} is not written like `NAME=VALUE`", param_hint=option)
        if name in pairs:
            raise typer.BadParameter(f"{quoted(name)} is given twice", param_hint=option)
        pairs[name] = value
    return pairs


def _pretty(hit: Hit, step: StepState, assumed: set[str], traced: Trace, decision: Decision) -> list[str]:
    lines = [f"{decision.action}, {_loads(decision)}by {_named(traced.rule)}"]
    if decision.demotion is not None:
        lines.append(f"guard rail: {decision.asked} becomes {decision.action}: {_WHY[decision.demotion]}")
    lines.append("")
    for rule in traced.rules:
        state = "decides" if rule is traced.rule else "matches, comes too late" if rule.matches else "does not match"
        lines.append(f"{_named(rule)}: {state}")
        lines.append(f"  {rule.text}")
        if rule.condition is not None:
            lines += _reasons(rule.condition, 2)
        if rule.limit is not None:
            lines.append(f"    at most {rule.limit.text} = {rule.limit}: {rule.blocks} of {hit.blocks} blocks fit")
    if traced.lets:
        lines.append("")
        lines += [f"let {name} = {_let_value(value)}" for name, value in traced.lets]
    for title, record, variables in (("hit", hit, schema.HIT), ("step", step, schema.STEP)):
        lines += ["", f"{title}:"]
        lines += [f"  {v.name} = {shown(v, record)}{' (assumed)' * (v.name in assumed)}" for v in variables]
    return lines


def _loads(decision: Decision) -> str:
    return f"{decision.blocks} blocks ({decision.bytes} bytes), " if decision.blocks else ""


def _named(rule: RuleTrace) -> str:
    if rule.line is None:
        return "the implicit last rule"
    label = f" @{rule.label}" if rule.label else ""
    return f"rule {rule.index + 1}{label} (line {rule.line})"


def _reasons(condition: Condition, depth: int) -> list[str]:
    """The condition and its parts, each with its truth and the values that it was decided by."""
    values = ", ".join(f"{o.text} = {o}" for o in condition.operands if not o.is_constant)
    line = f"{'  ' * depth}{_truth(condition.truth):<7} {condition.text}"
    lines = [f"{line}  [{values}]" if values else line]
    for part in condition.parts:
        lines += _reasons(part, depth + 1)
    return lines


def _truth(truth: bool | None) -> str:
    return {True: "true", False: "false", None: "unknown"}[truth]


def _let_value(value: Any) -> str:
    return _truth(value.truth) if hasattr(value, "truth") else str(value)


def _as_json(
    policy: Policy, hit: Hit, step: StepState, assumed: set[str], traced: Trace, decision: Decision
) -> dict[str, object]:
    return {
        "policy": policy.name,
        "hash": policy.hash,
        "action": decision.action,
        "asked": decision.asked,
        "demotion": decision.demotion,
        "rule": decision.rule,
        "label": traced.rule.label,
        "blocks": decision.blocks,
        "bytes": decision.bytes,
        "rules": [
            {
                "index": r.index,
                "label": r.label,
                "line": r.line,
                "text": r.text,
                "matches": r.matches,
                "condition": None if r.condition is None else _condition_json(r.condition),
                "limit": None if r.limit is None else str(r.limit),
                "blocks": r.blocks,
            }
            for r in traced.rules
        ],
        "lets": {name: _let_value(value) for name, value in traced.lets},
        "hit": {v.name: getattr(hit, v.attribute) for v in schema.HIT},
        "step": {v.name: getattr(step, v.attribute) for v in schema.STEP},
        "assumed": sorted(assumed),
    }


def _condition_json(condition: Condition) -> dict[str, object]:
    return {
        "text": condition.text,
        "truth": condition.truth,
        "values": {o.text: str(o) for o in condition.operands},
        "parts": [_condition_json(part) for part in condition.parts],
    }
