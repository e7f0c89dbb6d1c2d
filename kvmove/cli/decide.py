"""`kvmove decide`: what a policy does with one hit, and why."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated

import typer

from kvmove import schema
from kvmove.cli.quantities import parse_params
from kvmove.kvpol import Policy
from kvmove.kvpol.source import printable, quoted
from kvmove.records import Action, Hit, StepState

if TYPE_CHECKING:
    from kvmove.kvpol.dry_run import DryDecision
    from kvmove.kvpol.trace import Condition, RuleTrace

_DOES = {
    Action.SYNC: "inside the step",
    Action.ASYNC: "in the background",
    Action.RECOMPUTE: "load nothing, compute the hit's tokens again",
    Action.DEFER: "load nothing yet, ask again in the next step",
}


def decide(
    file: Annotated[str, typer.Argument(help="Policy file, or a policy that comes with kvmove.", metavar="FILE")],
    hit: Annotated[
        list[str] | None,
        typer.Option(
            help="Values of the hit, such as bytes=3MiB,load_time=2ms. Repeatable.",
            metavar="NAME=VALUE,...",
            show_default=False,
        ),
    ] = None,
    step: Annotated[
        list[str] | None,
        typer.Option(
            help="Values of the step, such as budget_remaining=1MiB. Repeatable.",
            metavar="NAME=VALUE,...",
            show_default=False,
        ),
    ] = None,
    param: Annotated[
        list[str] | None,
        typer.Option(help="Value for a param of the policy. Repeatable.", metavar="NAME=VALUE", show_default=False),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON; amounts in bytes, tokens and ns.")] = False,
) -> None:
    """Say what a policy decides about one hit in one step, by which rule, and what made each rule match or not.

    Values that are not given are assumed so that they fit, and printed as assumed; estimates are unknown.

    Exit status 0: decided. 2: the policy or a value cannot be used.
    """
    from kvmove.kvpol.dry_run import DryRun
    from kvmove.kvpol.given import hit_of, step_of

    policy = Policy.load(file, parse_params(param or []))
    the_hit, hit_assumed = hit_of(_pairs(hit or [], "--hit"))
    state, step_assumed = step_of(_pairs(step or [], "--step"), policy.budget_bytes)
    found = DryRun(policy, state).decide(the_hit)
    assumed = {*hit_assumed, *step_assumed}
    if as_json:
        typer.echo(json.dumps(_as_json(policy, state, assumed, found), indent=2))
        return
    for line in _pretty(state, assumed, found):
        typer.echo(printable(line))


def _pairs(settings: list[str], option: str) -> dict[str, object]:
    pairs: dict[str, object] = {}
    for setting in filter(None, (part.strip() for text in settings for part in text.split(","))):
        name, equals, value = (part.strip() for part in setting.partition("="))
        if not (name and equals and value):
            raise typer.BadParameter(f"{quoted(setting)} is not written like `NAME=VALUE`", param_hint=option)
        if name in pairs:
            raise typer.BadParameter(f"{quoted(name)} is given twice", param_hint=option)
        pairs[name] = value
    return pairs


def _pretty(step: StepState, assumed: Collection[str], found: DryDecision) -> Iterator[str]:
    from kvmove.kvpol.dry_run import WHY
    from kvmove.kvpol.reasons import lets_text, rule_name, rules_text

    decision = found.decision
    yield f"{decision.action}: {_does(found)}"
    yield f"decided by {rule_name(found.trace.rule)}"
    if decision.demotion is not None:
        yield f"guard rail: the policy asked for {decision.asked}, but {WHY[decision.demotion]}"
    yield ""
    yield from rules_text(found.trace, found.hit.blocks)
    lets = list(lets_text(found.trace))
    if lets:
        yield ""
        yield "lets"
        yield from (f"  {line}" for line in lets)
    yield ""
    yield from _values("hit", found.hit, schema.HIT, assumed)
    yield from _values("step", step, schema.STEP, assumed)


def _does(found: DryDecision) -> str:
    from kvmove.kvpol.units import BYTES, show

    decision = found.decision
    if not decision.blocks:
        return _DOES[decision.action]
    if decision.blocks < found.hit.blocks:
        blocks = f"the first {decision.blocks} of {found.hit.blocks} blocks"
    else:
        blocks = "its one block" if decision.blocks == 1 else f"all {decision.blocks} blocks"
    return f"load {blocks} ({show(Fraction(decision.bytes), BYTES)}) {_DOES[decision.action]}"


def _values(
    title: str, record: Hit | StepState, variables: tuple[schema.Variable, ...], assumed: Collection[str]
) -> Iterator[str]:
    """The values of the hit or the step: those that were given, those assumed, and the estimates that are unknown."""
    from kvmove.kvpol.given import shown

    yield title
    groups: dict[str, list[str]] = {"given": [], "assumed": [], "unknown": []}
    for v in variables:
        if getattr(record, v.attribute) is None:
            groups["unknown"].append(v.name)
        else:
            groups["assumed" if v.name in assumed else "given"].append(f"{v.name} = {shown(v, record)}")
    for group, texts in groups.items():
        if texts:
            yield f"  {group + ':':<8} {', '.join(texts)}"


def _as_json(policy: Policy, step: StepState, assumed: Collection[str], found: DryDecision) -> dict[str, object]:
    from kvmove.kvpol.reasons import lets_text

    decision = found.decision
    return {
        "policy": policy.name,
        "hash": policy.hash,
        "action": decision.action,
        "asked": decision.asked,
        "demotion": decision.demotion,
        "rule": decision.rule,
        "label": found.trace.rule.label,
        "blocks": decision.blocks,
        "bytes": decision.bytes,
        "partial": decision.partial,
        "rules": [_rule_json(rule) for rule in found.trace.rules],
        "lets": list(lets_text(found.trace)),
        "hit": {v.name: getattr(found.hit, v.attribute) for v in schema.HIT},
        "step": {v.name: getattr(step, v.attribute) for v in schema.STEP},
        "assumed": [v.name for v in schema.VARIABLES if v.name in assumed],
    }


def _rule_json(rule: RuleTrace) -> dict[str, object]:
    return {
        "index": rule.index,
        "label": rule.label,
        "line": rule.line,
        "text": rule.text,
        "matches": rule.matches,
        "why_not": rule.why_not(),
        "condition": None if rule.condition is None else _condition_json(rule.condition),
        "limit": None if rule.limit is None else str(rule.limit),
        "blocks": rule.blocks,
    }


def _condition_json(condition: Condition) -> dict[str, object]:
    return {
        "text": condition.text,
        "truth": condition.truth,
        "unknown": condition.unknown,
        "values": {o.text: str(o) for o in condition.operands},
        "parts": [_condition_json(part) for part in condition.parts],
    }
