"""A hit and a step from the few values that somebody cares about; the others are assumed, and said to be.

Assumed values fit the given ones and the schema's invariants. Values that contradict each other are refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from kvmove import schema
from kvmove.errors import RecordError, Refused
from kvmove.kvpol.source import quoted
from kvmove.kvpol.suggest import did_you_mean
from kvmove.kvpol.units import CANONICAL, NUMBER, OF_SCHEMA, QuantityError, parse_quantity, show
from kvmove.records import Hit, StepState

BLOCK_TOKENS = 16  # assumed of a block
TOKEN_BYTES = 64 << 10  # assumed of a token
HIT_TOKENS = 1024  # assumed of a hit of which nothing is given
COMPUTE_TOKENS = 64  # assumed to be left to compute

Values = dict[str, int | None]


def hit_of(given: Mapping[str, object], request: str = "hit") -> tuple[Hit, tuple[str, ...]]:
    """The hit that has the `given` values by their names in the language, and the names that were assumed.

    A value is a text as a policy writes it (`"3MiB"`, `"-5ms"`, `"unknown"`), or an int for a plain number.

    Raises:
        Refused: a name or a unit is wrong, or the values contradict each other.
    """
    values = _read(given, schema.HIT, "hit")
    known = {name: value for name, value in values.items() if value is not None}
    tokens = _tokens(known)
    blocks = known.get("blocks", -(-tokens // BLOCK_TOKENS))
    num_bytes = known.get("bytes", min(tokens * TOKEN_BYTES, schema.MAX_BYTES))
    prompt, cached, compute = (known.get(n) for n in ("prompt_tokens", "cached_tokens", "compute_tokens"))
    if cached is None:
        cached = 0 if prompt is None or compute is None else prompt - tokens - compute
    if compute is None:
        compute = COMPUTE_TOKENS if prompt is None else prompt - cached - tokens
    if prompt is None:
        prompt = cached + tokens + compute
    if cached < 0 or compute < 0:
        raise Refused(
            f"hit: a prompt of {prompt}tok has no room for the hit's {tokens}tok and the rest; every token is cached, "
            "of the hit or left to compute"
        )
    counts = {
        "bytes": num_bytes, "tokens": tokens, "blocks": blocks, "prompt_tokens": prompt, "cached_tokens": cached,
        "compute_tokens": compute,
    }  # fmt: skip
    record = _built(Hit, schema.HIT, {**values, **counts}, request=request)
    return record, tuple(v.name for v in schema.HIT if v.name not in given)


def step_of(given: Mapping[str, object], budget_bytes: int | None) -> tuple[StepState, tuple[str, ...]]:
    """The step that has the `given` values, and the names that were assumed. `budget_bytes` is the policy's budget.

    Raises:
        Refused: as `hit_of`.
    """
    values = _read(given, schema.STEP, "step")
    default = schema.DEFAULT_BUDGET_BYTES if budget_bytes is None else budget_bytes
    remaining = values.get("budget_remaining")
    budget = values.get("budget", default if remaining is None else max(default, remaining))
    values |= {"budget": budget, "budget_remaining": budget if remaining is None else remaining}
    record = _built(StepState, schema.STEP, values)
    return record, tuple(v.name for v in schema.STEP if v.name not in given)


def _tokens(known: Mapping[str, int]) -> int:
    if "tokens" in known:
        return known["tokens"]
    if {"prompt_tokens", "cached_tokens", "compute_tokens"} <= known.keys():
        return known["prompt_tokens"] - known["cached_tokens"] - known["compute_tokens"]
    if "blocks" in known:
        return known["blocks"] * BLOCK_TOKENS
    if "bytes" in known:
        return max(1, -(-known["bytes"] // TOKEN_BYTES))
    if "prompt_tokens" in known:
        room = known["prompt_tokens"] - known.get("cached_tokens", 0) - known.get("compute_tokens", 1)
        return max(1, min(HIT_TOKENS, room))
    return HIT_TOKENS


def _read(given: Mapping[str, object], variables: tuple[schema.Variable, ...], what: str) -> Values:
    by_name = {v.name: v for v in variables}
    values: Values = {}
    for name, value in given.items():
        if name not in by_name:
            hint = did_you_mean(name, list(by_name))
            raise Refused(f"{what}: there is no {quoted(name)}" + (f"; {hint}" if hint else ""))
        values[name] = _value(by_name[name], value, what)
    return values


def _value(v: schema.Variable, value: object, what: str) -> int | None:
    who, dimension = f"{what}: {v.name}", OF_SCHEMA[v.unit]
    if value == "unknown" and v.optional:
        return None
    if isinstance(value, int) and not isinstance(value, bool) and (dimension == NUMBER or value == 0):
        return value
    if not isinstance(value, str) or len(value) > 64:
        example = f"`{value}{CANONICAL[dimension]}`" if isinstance(value, int) else "a text such as `3MiB`"
        raise Refused(f"{who} is {quoted(str(value))}, which has no unit; write it in {dimension}, as {example}")
    text = value.strip()
    try:
        amount, found = parse_quantity(text.removeprefix("-"))
    except QuantityError as e:
        raise Refused(f"{who}: {e.message}" + (f"; {e.help}" if e.help else "")) from None
    if found != dimension and not (found == NUMBER and amount == 0):
        raise Refused(f"{who} is in {dimension}, and {quoted(text)} is {'a number' if found == NUMBER else found}")
    if amount.denominator != 1:
        raise Refused(f"{who} is a whole number, and {quoted(text)} is not")
    return -int(amount) if text.startswith("-") else int(amount)


def _built(record: Any, variables: tuple[schema.Variable, ...], values: Values, **more: str) -> Any:
    fields = {v.attribute: values[v.name] for v in variables if v.name in values}
    try:
        return record(**fields, **more)
    except RecordError as e:
        raise Refused(str(e)) from None


def shown(v: schema.Variable, record: Hit | StepState) -> str:
    """The value of a variable as a policy would write it, or `unknown`."""
    value = getattr(record, v.attribute)
    return "unknown" if value is None else show(Fraction(value), OF_SCHEMA[v.unit])
