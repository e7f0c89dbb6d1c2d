"""`kvmove diff`: how two policies differ, for every hit and step."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from kvmove.cli.prove import Format, example_json, verdict_json
from kvmove.cli.quantities import parse_params, parse_seconds
from kvmove.kvpol import Policy
from kvmove.kvpol.source import printable

if TYPE_CHECKING:
    from kvmove.kvpol.proof.results import Comparison, Example

SAME, DIFFERENT, UNKNOWN = 0, 1, 3  # 2: a policy or an option cannot be used


def diff(
    first: Annotated[str, typer.Argument(help="Policy file, or a policy that comes with kvmove.", metavar="A")],
    second: Annotated[str, typer.Argument(help="The policy to compare it with.", metavar="B")],
    where: Annotated[
        str | None,
        typer.Option(help="Compare for these hits and steps only, such as 'waiting > 0'.", metavar="CONDITION"),
    ] = None,
    timeout: Annotated[str, typer.Option(help="Time for each question, such as 2s or 500ms.", metavar="TIME")] = "2s",
    param: Annotated[
        list[str] | None,
        typer.Option(help="Value for a param that both have. Repeatable.", metavar="NAME=VALUE", show_default=False),
    ] = None,
    format: Annotated[Format, typer.Option(help="How to print it.")] = Format.PRETTY,
) -> None:
    """Say whether two policies ask for the same of every hit in every step, and which of them is sync more often.

    Where they differ, a small hit and step show it, with what each rule of both policies makes of them. Guard rails
    come after policies and are left out. Needs the extra `prove` (z3).

    Exit status 0: they are equivalent. 1: they differ. 2: a policy or an option cannot be used. 3: unknown.
    """
    from kvmove.kvpol.proof import compare
    from kvmove.kvpol.proof.results import Status

    params = parse_params(param or [])
    policies = Policy.load(first, params), Policy.load(second, params)
    found = compare(*policies, where, timeout_s=parse_seconds(timeout, "--timeout"))
    if format is Format.JSON:
        typer.echo(json.dumps(_as_json(found), indent=2))
    else:
        typer.echo("\n".join(printable(line) for line in _pretty(found, _names(first, second))))
    status = {Status.PROVED: SAME, Status.FALSE: DIFFERENT, Status.UNKNOWN: UNKNOWN}[found.equivalent.status]
    if status:
        raise typer.Exit(status)


def _names(first: str, second: str) -> tuple[str, str]:
    return (first, second) if first != second else (f"{first} (A)", f"{second} (B)")


def _pretty(found: Comparison, names: tuple[str, str]) -> list[str]:
    a, b = names
    where = "" if found.where is None else f", where {found.where}"
    if found.equivalent.status == "proved":
        return [f"equivalent: {a} and {b} ask for the same of every hit in every step{where}"]
    if found.equivalent.status == "unknown":
        lines = [f"unknown: whether {a} and {b} are equivalent{where}: {found.equivalent.reason}"]
    else:
        lines = [f"different: {a} and {b}{where}", "", *_shown(found.equivalent.examples[0], found, names), ""]
    lines.append(
        {
            "same": f"sync: {a} and {b} ask for it for the same hits",
            "first within second": f"sync: {b} is more permissive: it asks for it wherever {a} does, and more often",
            "second within first": f"sync: {a} is more permissive: it asks for it wherever {b} does, and more often",
            "neither": "sync: neither is more permissive, each asks for it where the other does not",
            "unknown": "sync: unknown which is more permissive",
        }[found.sync]
    )
    for name, witness in zip(names, (found.only_first, found.only_second), strict=True):
        if witness is not None and witness in found.equivalent.examples:
            lines += ["", f"sync with {name} alone: the hit and the step above"]
        elif witness is not None:
            lines += ["", f"sync with {name} alone:", *_shown(witness, found, names)]
    return lines


def _shown(example: Example, found: Comparison, names: tuple[str, str]) -> list[str]:
    """A hit and a step, and what each policy makes of them."""
    from kvmove.kvpol.proof.describe import hit_values, step_values, traced

    lines = []
    for title, values in (("hit", hit_values(example.hit)), ("step", step_values(example.step))):
        lines.append(f"  {title:<5} " + ", ".join(f"{name} = {value}" for name, value in values.items()))
    for name, policy in zip(names, (found.first, found.second), strict=True):
        lines += [f"  {line}" for line in traced(name, policy, example)]
    return lines


def _as_json(found: Comparison) -> dict[str, object]:
    from kvmove.kvpol.proof.confirm import outcome

    def decided(example: Example) -> list[dict[str, object]]:
        outcomes = [outcome(policy, example) for policy in (found.first, found.second)]
        return [{"rule": o.rule, "action": o.action, "blocks": o.blocks, "bytes": o.bytes} for o in outcomes]

    def witness(example: Example | None) -> dict[str, object] | None:
        return None if example is None else {**example_json(example), "decisions": decided(example)}

    return {
        "first": {"policy": found.first.name, "hash": found.first.hash},
        "second": {"policy": found.second.name, "hash": found.second.hash},
        "where": found.where,
        "equivalent": {
            **verdict_json(found.equivalent),
            "decisions": [decided(e) for e in found.equivalent.examples],
        },
        "sync": found.sync,
        "only_first": witness(found.only_first),
        "only_second": witness(found.only_second),
    }
