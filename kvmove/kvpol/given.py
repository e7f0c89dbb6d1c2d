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
from kvmove.kvpol.suggest import did_you_mean, listed
from kvmove.kvpol.units import (
    BYTES,
    NUMBER,
    OF_SCHEMA,
    TIME,
    TOKENS,
    Dimension,
    QuantityError,
    parse_quantity,
    show,
)
from kvmove.records import Hit, StepState

BLOCK_TOKENS = 16  # assumed of a block
TOKEN_BYTES = 64 << 10  # assumed of a token
HIT_TOKENS = 1024  # assumed of a hit of which nothing is given
COMPUTE_TOKENS = 64  # assumed to be left to compute
_MAX_CHARACTERS = 64  # of one value

# How a value of each unit is written.
_EXAMPLES = {BYTES: "3MiB", TOKENS: "4096tok", TIME: "2ms", NUMBER: "3"}

Values = dict[str, int | None]


class BadValue(Refused):
    """A value cannot be used. `name` is the variable that it is for, or None where several do not go together."""

    def __init__(self, message: str, name: str | None = None) -> None:
        super().__init__(message)
        self.name = name


def hit_of(given: Mapping[str, object], request: str = "hit") -> tuple[Hit, tuple[str, ...]]:
    """The hit that has the `given` values by their names in the language, and the names that were assumed.

    A value is a text as a policy writes it (`"3MiB"`, `"-5ms"`), `"unknown"` for an estimate, or for a plain number
    an int too.

    Raises:
        BadValue: a name or a unit is wrong, a value is out of range, or the values contradict each other.
    """
    values = _read(given, schema.HIT, "hit")
    known = {name: value for name, value in values.items() if value is not None}
    tokens = _tokens(known)
    blocks = known.get("blocks", -(-tokens // BLOCK_TOKENS))
    num_bytes = known.get("bytes", tokens * TOKEN_BYTES)
    prompt, cached, compute = (known.get(n) for n in ("prompt_tokens", "cached_tokens", "compute_tokens"))
    if cached is None:
        cached = 0 if prompt is None or compute is None else prompt - tokens - compute
    if compute is None:
        room = (schema.MAX_COUNT if prompt is None else prompt) - cached - tokens
        compute = min(COMPUTE_TOKENS, max(0, room)) if prompt is None else room
    if prompt is None:
        prompt = cached + tokens + compute
    if cached < 0 or compute < 0:
        raise BadValue(
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
        BadValue: as `hit_of`.
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
    least = 1  # what blocks and bytes need
    if "bytes" in known:
        least = -(-known["bytes"] // schema.MAX_BYTES_PER_TOKEN)
    if "blocks" in known:
        least = max(least, known["blocks"])
        wanted = known["blocks"] * BLOCK_TOKENS
    else:
        wanted = -(-known["bytes"] // TOKEN_BYTES) if "bytes" in known else HIT_TOKENS
    to_compute = 1 if "prompt_tokens" in known else COMPUTE_TOKENS
    room = known.get("prompt_tokens", schema.MAX_COUNT)
    room -= known.get("cached_tokens", 0) + known.get("compute_tokens", to_compute)
    return max(least, min(wanted, room))


def _read(given: Mapping[str, object], variables: tuple[schema.Variable, ...], what: str) -> Values:
    by_name = {v.name: v for v in variables}
    values: Values = {}
    for name, value in given.items():
        if name not in by_name:
            raise BadValue(f"{what}: {_no_such(name, by_name)}", name)
        values[name] = _value(by_name[name], value, what)
    return values


def _no_such(name: str, known: Mapping[str, schema.Variable]) -> str:
    unknown = f"there is no {quoted(name)}"
    elsewhere = schema.BY_NAME.get(name)
    if elsewhere is not None and elsewhere.scope is not schema.Scope.OUTCOME:
        return f"{unknown}; it is a value of the {elsewhere.scope.value}"
    hint = did_you_mean(name, list(known))
    return f"{unknown}; {hint or 'the values are ' + listed(known)}"


def _value(v: schema.Variable, value: object, what: str) -> int | None:
    """The value in canonical units; None is an unknown estimate."""
    who, dimension = f"{what}: {v.name}", OF_SCHEMA[v.unit]
    if value == "unknown":
        if v.optional:
            return None
        raise BadValue(f"{who} is always known; give it in {_unit(dimension)}", v.name)
    text = str(value).strip() if isinstance(value, str | int | float) and not isinstance(value, bool) else None
    if text is None or len(text) > _MAX_CHARACTERS:
        raise BadValue(f"{who} is {quoted(str(value))}; it is given in {_unit(dimension)}", v.name)
    try:
        amount, found = parse_quantity(text.removeprefix("-"))
    except QuantityError as e:
        help = f"; {e.help}" if e.help else ""
        raise BadValue(f"{who} is in {_unit(dimension)}; {quoted(text)}: {e.message}{help}", v.name) from None
    if found != dimension and not (found == NUMBER and amount == 0):
        instead = "has no unit" if found == NUMBER else f"is in {found}"
        raise BadValue(f"{who} is in {_unit(dimension)}, and {quoted(text)} {instead}", v.name)
    if amount.denominator != 1:
        raise BadValue(f"{who} is a whole number, and {quoted(text)} is not", v.name)
    amount = -amount if text.startswith("-") else amount
    if not v.low <= amount <= v.high:
        low, high = (show(Fraction(bound), dimension) for bound in (v.low, v.high))
        raise BadValue(f"{who} is {show(amount, dimension)}, outside {low} to {high}: {v.doc}", v.name)
    return int(amount)


def _unit(dimension: Dimension) -> str:
    return f"{'plain numbers' if dimension == NUMBER else dimension}, such as `{_EXAMPLES[dimension]}`"


def _built(record: Any, variables: tuple[schema.Variable, ...], values: Values, **more: str) -> Any:
    fields = {v.attribute: values[v.name] for v in variables if v.name in values}
    try:
        return record(**fields, **more)
    except RecordError as e:
        raise BadValue(str(e)) from None


def shown(v: schema.Variable, record: Hit | StepState) -> str:
    """The value of a variable as a policy would write it, or `unknown`."""
    value = getattr(record, v.attribute)
    return "unknown" if value is None else show(Fraction(value), OF_SCHEMA[v.unit])
