"""The constants of a policy: what the file says, and what an operator says instead."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from kvmove import schema
from kvmove.kvpol.source import quoted
from kvmove.kvpol.units import BYTES, CANONICAL, NUMBER, TYPES, Dimension, QuantityError, parse_quantity, show
from kvmove.kvpol.whole import MAX_MAGNITUDE

Override = int | str | bool | Fraction
Overrides = Mapping[str, Override]
Value = Fraction | bool


class BadOverride(Exception):
    """A value given for a param cannot be used; the text says why and what to give."""


def override_value(name: str, given: Any, type_name: str) -> Value:
    """The value of param `name`, of type `type_name`, that an operator gave.

    An int counts in the canonical unit (bytes, tokens, nanoseconds); a text is read as in a policy.

    Raises:
        BadOverride: the value has another type or unit.
    """
    dimension = TYPES[type_name]
    if isinstance(given, str):
        return _from_text(name, given.strip(), type_name, dimension)
    if dimension is None:
        if isinstance(given, bool):
            return given
        raise BadOverride(f"param `{name}` is true or false, not {_shown(given)}")
    if isinstance(given, bool) or not isinstance(given, int | Fraction):
        example = f"{4096}{CANONICAL[dimension]}"
        raise BadOverride(
            f"param `{name}` is {_a(type_name)}, and {_shown(given)} is no exact amount; "
            f'give it as an int, or as text such as "{example}"'
        )
    return _bounded(name, Fraction(given), type_name, dimension)


def _from_text(name: str, text: str, type_name: str, dimension: Dimension | None) -> Value:
    if dimension is None or text in ("true", "false"):
        if dimension is None and text in ("true", "false"):
            return text == "true"
        raise BadOverride(f"param `{name}` is {_a(type_name)}, not {_shown(text)}")
    digits = text.removeprefix("-").lstrip()
    if len(digits) > 64:
        raise BadOverride(f"param `{name}`: {_shown(text)} is too long for a number")
    try:
        amount, given = parse_quantity(digits)
    except QuantityError as e:
        raise BadOverride(f"param `{name}`: {e.message}" + (f"; {e.help}" if e.help else "")) from None
    if given != dimension:
        is_number = "is a number" if given == NUMBER else f"is in {given}"
        unit = CANONICAL[dimension]
        help = f"; write it like `{digits}{unit}`" if unit and given == NUMBER and text[-1:] != "%" else ""
        raise BadOverride(f"param `{name}` is {_a(type_name)}, but {_shown(text)} {is_number}{help}")
    return _bounded(name, -amount if text.startswith("-") else amount, type_name, dimension)


def _bounded(name: str, amount: Fraction, type_name: str, dimension: Dimension) -> Fraction:
    if type_name != "number" and amount.denominator != 1:
        raise BadOverride(f"param `{name}` is a whole number of {CANONICAL[dimension]}, not {amount}")
    if max(abs(amount.numerator), amount.denominator) >= MAX_MAGNITUDE:
        raise BadOverride(f"param `{name}`: {_shown(amount)} is too large, amounts stay below 2^128")
    if name == "budget":
        problem = budget_problem(amount)
        if problem is not None:
            raise BadOverride(f"param `budget`: {problem}")
    return amount


def budget_problem(amount: Fraction) -> str | None:
    """Why `amount` bytes cannot be a step's budget, or None when it can."""
    if 0 <= amount <= schema.MAX_BYTES:
        return None
    return f"a budget lies between 0B and {show(Fraction(schema.MAX_BYTES), BYTES)}, and this is {show(amount, BYTES)}"


def _a(type_name: str) -> str:
    return {"bool": "true or false", "number": "a number"}.get(type_name, f"in {type_name}")


def _shown(given: object) -> str:
    return quoted(str(given))
