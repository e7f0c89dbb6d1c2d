"""Quantities on the command line, written as in a policy."""

from __future__ import annotations

from fractions import Fraction

import typer

from kvmove import schema
from kvmove.kvpol.source import quoted
from kvmove.kvpol.units import BYTES, NUMBER, TIME, Dimension, QuantityError, parse_quantity

_MAX_CHARACTERS = 64


def _amount(text: str, option: str, what: str) -> tuple[str, Fraction, Dimension]:
    """`text` without the spaces around it, its exact amount, and what it is an amount of."""
    text = text.strip()
    if len(text) > _MAX_CHARACTERS:
        raise typer.BadParameter(f"{quoted(text)} is too long for a {what}", param_hint=option)
    try:
        amount, dimension = parse_quantity(text)
    except QuantityError as e:
        help = f"; {e.help}" if e.help else ""
        raise typer.BadParameter(f"{quoted(text)}: {e.message}{help}", param_hint=option) from None
    return text, amount, dimension


def parse_bytes(text: str, option: str) -> int:
    """The bytes that `text` names for `option`: a policy's `64MiB`, or a bare 0, which needs no unit.

    Raises:
        typer.BadParameter: it is no size; the message says what to write.
    """
    text, amount, dimension = _amount(text, option, "size")
    if dimension != BYTES and not (dimension == NUMBER and amount == 0 and text.isdigit()):
        unit = f"; write {quoted(text + 'B')} or {quoted(text + 'MiB')}" if text.isdigit() else ""
        raise typer.BadParameter(f"{quoted(text)} is not in bytes{unit}", param_hint=option)
    if amount > schema.MAX_BYTES:
        raise typer.BadParameter(f"{quoted(text)} is more than 16TiB, the most that is possible", param_hint=option)
    return int(amount)


def parse_seconds(text: str, option: str) -> float:
    """The seconds that `text` names for `option`: a policy's `2s` or `500ms`, at most an hour.

    Raises:
        typer.BadParameter: it is no time; the message says what to write.
    """
    text, amount, dimension = _amount(text, option, "time")
    if dimension != TIME:
        unit = f"; write {quoted(text + 's')} or {quoted(text + 'ms')}" if text.isdigit() else ""
        raise typer.BadParameter(f"{quoted(text)} is not in time{unit}", param_hint=option)
    if not 0 < amount <= 3600 * 10**9:
        raise typer.BadParameter(f"{quoted(text)} is not between 1ns and 3600s", param_hint=option)
    return float(amount) / 1e9


def parse_params(settings: list[str]) -> dict[str, str]:
    """The values by name that several `NAME=VALUE` give.

    Raises:
        typer.BadParameter: one of them has no name or no value, or a name is given twice.
    """
    params: dict[str, str] = {}
    for setting in settings:
        name, equals, value = (part.strip() for part in setting.partition("="))
        if not (name and equals and value):
            raise typer.BadParameter(f"{quoted(setting)} is not written like `NAME=VALUE`", param_hint="--param")
        if name in params:
            raise typer.BadParameter(f"{quoted(name)} is given twice", param_hint="--param")
        params[name] = value
    return params
