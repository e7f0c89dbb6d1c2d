"""The simplest situation that still breaks a claim, from one that hypothesis has shrunk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from kvmove import schema
from kvmove.errors import RecordError
from kvmove.records import Hit
from kvmove.testing.edges import Edges
from kvmove.testing.records import SIMPLEST, Situation


def simplified(drawn: list[Situation], is_broken: Callable[[list[Situation]], bool], edges: Edges) -> list[Situation]:
    """What was drawn, with every variable at the simplest value for which `is_broken` stays true.

    Hypothesis shrinks each value by itself, so it cannot free a value that was tied to another's, nor move between
    the ways in which one is drawn. Here each variable is put at its simplest value, else, for one situation alone,
    at the edge nearest to zero.
    """
    groups = [("budget", "budget_remaining"), *((v.name,) for v in (*schema.STEP, *schema.HIT))]
    while True:
        before = drawn
        drawn = _if_broken([Situation(replace(x.hit, sizes=None, cuts=None), x.step) for x in drawn], drawn, is_broken)
        for group in groups:
            values = {name: SIMPLEST[name] for name in group}
            drawn = _if_broken([_with(x, values) for x in drawn], drawn, is_broken)
            if len(drawn) == 1 and len(group) == 1:
                drawn = _nearer_zero(drawn, schema.BY_NAME[group[0]], is_broken, edges)
        if drawn == before:
            return drawn


def _nearer_zero(
    drawn: list[Situation], v: schema.Variable, is_broken: Callable[[list[Situation]], bool], edges: Edges
) -> list[Situation]:
    (x,) = drawn
    now = getattr(x.step if v.scope is schema.Scope.STEP else x.hit, v.attribute)
    if now is None or now == SIMPLEST[v.name]:
        return drawn
    for amount in edges.of(v, v.high):
        if abs(amount) >= abs(now):
            break
        found = _if_broken([_with(x, {v.name: amount})], drawn, is_broken)
        if found is not drawn:
            return found
    return drawn


def _if_broken(
    simpler: Sequence[Situation | None], drawn: list[Situation], is_broken: Callable[[list[Situation]], bool]
) -> list[Situation]:
    """The simpler ones, if there are such and they are broken too; else those that were drawn."""
    built = [x for x in simpler if x is not None]
    return built if len(built) == len(drawn) and built != drawn and is_broken(built) else drawn


def _with(x: Situation, values: dict[str, int | None]) -> Situation | None:
    """The situation with other values of a hit or of a step; None where an invariant forbids it."""
    hit, step = x
    changes: dict[str, Any] = {schema.BY_NAME[name].attribute: value for name, value in values.items()}
    try:
        if schema.BY_NAME[next(iter(values))].scope is schema.Scope.STEP:
            return Situation(hit, replace(step, **changes))
        changes.pop("prompt_tokens", None)
        new: dict[str, Any] = {v.attribute: getattr(hit, v.attribute) for v in schema.HIT} | changes
        new["prompt_tokens"] = new["cached_tokens"] + new["tokens"] + new["compute_tokens"]
        return Situation(Hit(request=hit.request, sizes=hit.sizes, cuts=hit.cuts, **new), step)
    except RecordError:
        return None
