"""Units and types: a type is `bool`, or a vector of powers of the three base units.

`bytes * bytes / time` is (2, 0, -1). Amounts are exact fractions in the canonical unit of each base unit:
bytes, tokens, nanoseconds. A number has all powers zero.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from kvmove import schema
from kvmove.kvpol import codes
from kvmove.kvpol.codes import Code


@dataclass(frozen=True, slots=True)
class Dimension:
    """Powers of bytes, tokens and time."""

    bytes: int = 0
    tokens: int = 0
    time: int = 0

    def __mul__(self, other: Dimension) -> Dimension:
        return Dimension(self.bytes + other.bytes, self.tokens + other.tokens, self.time + other.time)

    def __truediv__(self, other: Dimension) -> Dimension:
        return Dimension(self.bytes - other.bytes, self.tokens - other.tokens, self.time - other.time)

    def __str__(self) -> str:
        powers = (("bytes", self.bytes), ("tokens", self.tokens), ("time", self.time))
        above = [name if n == 1 else f"{name}^{n}" for name, n in powers if n > 0]
        below = [name if n == -1 else f"{name}^{-n}" for name, n in powers if n < 0]
        return "/".join(["*".join(above) or ("1" if below else "number"), *below])


BYTES, TOKENS, TIME, NUMBER = Dimension(bytes=1), Dimension(tokens=1), Dimension(time=1), Dimension()

OF_SCHEMA = {
    schema.Unit.BYTES: BYTES,
    schema.Unit.TOKENS: TOKENS,
    schema.Unit.TIME: TIME,
    schema.Unit.NUMBER: NUMBER,
}

# The types that a param can have; `bool` is the one that is no dimension.
TYPES: dict[str, Dimension | None] = {"bytes": BYTES, "tokens": TOKENS, "time": TIME, "number": NUMBER, "bool": None}

UNITS: dict[str, tuple[Dimension, Fraction]] = {
    "B": (BYTES, Fraction(1)),
    "KB": (BYTES, Fraction(10**3)),
    "MB": (BYTES, Fraction(10**6)),
    "GB": (BYTES, Fraction(10**9)),
    "KiB": (BYTES, Fraction(1 << 10)),
    "MiB": (BYTES, Fraction(1 << 20)),
    "GiB": (BYTES, Fraction(1 << 30)),
    "tok": (TOKENS, Fraction(1)),
    "ns": (TIME, Fraction(1)),
    "us": (TIME, Fraction(10**3)),
    "ms": (TIME, Fraction(10**6)),
    "s": (TIME, Fraction(10**9)),
    "%": (NUMBER, Fraction(1, 100)),
    "": (NUMBER, Fraction(1)),
}

# The unit in which a dimension's amounts are whole numbers.
CANONICAL = {BYTES: "B", TOKENS: "tok", TIME: "ns", NUMBER: ""}

# What people write instead of a unit, and what to say. Looked up without case, after the exact names above.
_MEANT: dict[str, tuple[str, ...]] = {
    "b": ("B",), "byte": ("B",), "bytes": ("B",),
    "k": ("KB", "KiB"), "kb": ("KB", "KiB"), "kib": ("KiB",), "ki": ("KiB",),
    "m": ("MB", "MiB"), "mb": ("MB", "MiB"), "mib": ("MiB",), "mi": ("MiB",),
    "g": ("GB", "GiB"), "gb": ("GB", "GiB"), "gib": ("GiB",), "gi": ("GiB",),
    "t": ("tok",), "tk": ("tok",), "toks": ("tok",), "token": ("tok",), "tokens": ("tok",),
    "nsec": ("ns",), "nanoseconds": ("ns",), "usec": ("us",), "microseconds": ("us",), "µs": ("us",),
    "msec": ("ms",), "millis": ("ms",), "milliseconds": ("ms",),
    "sec": ("s",), "secs": ("s",), "second": ("s",), "seconds": ("s",),
    "percent": ("%",), "pct": ("%",),
}  # fmt: skip

_QUANTITY = re.compile(r"([0-9][0-9_]*(?:\.[0-9]+)?)(.*)", re.DOTALL)
_EXPONENT = re.compile(r"[eE]([0-9]{0,2})")


class QuantityError(Exception):
    """A quantity that cannot be read. `help` says what to write; `replacement` is that text when it is certain."""

    def __init__(self, code: Code, message: str, help: str | None = None, replacement: str | None = None) -> None:
        super().__init__(message)
        self.code, self.message, self.help, self.replacement = code, message, help, replacement


def split_quantity(text: str) -> tuple[str, str]:
    """`64MiB` as `64` and `MiB`."""
    found = _QUANTITY.fullmatch(text)
    if found is None:
        raise QuantityError(
            codes.UNEXPECTED, "a number is needed", "write it like `64MiB`, `4096tok`, `1.5ms`, `50%` or `3`"
        )
    return found[1], found[2]


def parse_quantity(text: str) -> tuple[Fraction, Dimension]:
    """The exact amount and the dimension of a quantity such as `64MiB`.

    Raises:
        QuantityError: the unit is unknown, or the amount is not a whole number of canonical units.
    """
    digits, unit = split_quantity(text)
    if unit not in UNITS:
        raise _unknown_unit(digits, unit)
    dimension, factor = UNITS[unit]
    amount = Fraction(digits.replace("_", "")) * factor
    if dimension != NUMBER and amount.denominator != 1:
        name = CANONICAL[dimension]
        below, above = int(amount), int(amount) + 1
        raise QuantityError(
            codes.INEXACT,
            f"`{text}` is not a whole number of `{name}`",
            f"amounts are exact: write `{below}{name}` or `{above}{name}`",
        )
    return amount, dimension


def is_like_unit(word: str) -> bool:
    """Whether `word` is a unit, or what people write instead of one."""
    return word in UNITS or word.lower() in _MEANT


def _unknown_unit(digits: str, unit: str) -> QuantityError:
    if unit.strip() in UNITS:  # an operator's text; in a policy, white space ends a token
        joined = digits + unit.strip()
        return QuantityError(
            codes.SPACED_UNIT,
            f"a space between `{digits}` and its unit",
            f"a number and its unit are one word: write `{joined}`",
            joined,
        )
    unit = unit.strip()
    exponent = _EXPONENT.fullmatch(unit)
    if exponent is not None and exponent[1]:
        written = Fraction(digits.replace("_", "")) * 10 ** int(exponent[1])
        if written.denominator == 1 and len(str(written)) <= 30:
            return QuantityError(
                codes.EXPONENT,
                f"`{digits}{unit}` is no number: there is no exponent notation",
                f"write `{written}`",
                str(written),
            )
    if exponent is not None:
        return QuantityError(
            codes.EXPONENT, f"`{digits}{unit}` is no number: there is no exponent notation", "write all its digits"
        )
    meant = _MEANT.get(unit.lower())
    if meant is None:
        every = ", ".join(f"`{u}`" for u in UNITS if u)
        return QuantityError(codes.UNKNOWN_UNIT, f"unknown unit `{unit[:40]}`", f"the units are {every}")
    choices = " or ".join(f"`{digits}{u}`" for u in meant)
    sizes = " (10^n and 2^n bytes)" if len(meant) == 2 else ""
    return QuantityError(
        codes.UNKNOWN_UNIT,
        f"unknown unit `{unit}`",
        f"write {choices}{sizes}",
        f"{digits}{meant[0]}" if len(meant) == 1 else None,
    )


def show(amount: Fraction | bool, dimension: Dimension | None) -> str:
    """An amount as a policy would write it, in the largest unit that leaves a whole number: `64MiB`; or `2/3B`."""
    if isinstance(amount, bool):
        return "true" if amount else "false"
    if dimension is None or dimension not in CANONICAL:
        return str(amount)
    if amount.denominator != 1:
        return f"{amount}{CANONICAL[dimension]}"
    best = CANONICAL[dimension]
    for unit in ("GiB", "MiB", "KiB", "s", "ms", "us"):
        unit_dimension, factor = UNITS[unit]
        if unit_dimension == dimension and amount and (amount / factor).denominator == 1:
            best = unit
            break
    return f"{amount / UNITS[best][1]}{best}"
