"""Integer expressions with bounds: what a checked policy computes when it runs.

Every node knows the interval [low, high] of its value, its `size` (nodes when written out) and its `depth`
(through the lets it reads). Constants are folded as nodes are made; anything that could grow past a limit is
refused there, which bounds the cost of a decision.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from kvmove.schema import Variable

MAX_MAGNITUDE = 1 << 128  # no subexpression reaches it, so that arithmetic takes a few machine words
MAX_SIZE = 10_000
MAX_DEPTH = 160  # the compiler and CPython's own compiler recurse over nodes


class TooLarge(Exception):
    """A value could reach 2**128 in magnitude. `bits` says how large."""

    def __init__(self, bits: int) -> None:
        super().__init__(f"reaches 2**{bits}")
        self.bits = bits


class TooComplex(Exception):
    """An expression has too many operations, or builds on too many levels of lets."""


@dataclass(frozen=True, slots=True)
class Whole:
    """An integer expression. Use the functions below to make one."""

    low: int
    high: int
    size: int
    depth: int


@dataclass(frozen=True, slots=True)
class Const(Whole):
    """A constant; `low` is its value."""


@dataclass(frozen=True, slots=True)
class Read(Whole):
    """A variable of the hit or the step."""

    variable: Variable


@dataclass(frozen=True, slots=True)
class Local(Whole):
    """A let: the numerator or the denominator of its value."""

    let: int  # index into the program's lets
    denominator: bool


@dataclass(frozen=True, slots=True)
class Total(Whole):
    """The sum of `plus` and `constant` less the sum of `minus`."""

    plus: tuple[Whole, ...]
    minus: tuple[Whole, ...]
    constant: int


@dataclass(frozen=True, slots=True)
class Times(Whole):
    """The product of `factors` and `constant`."""

    factors: tuple[Whole, ...]
    constant: int


@dataclass(frozen=True, slots=True)
class Least(Whole):
    """The smallest of `items`."""

    items: tuple[Whole, ...]


@dataclass(frozen=True, slots=True)
class Most(Whole):
    """The largest of `items`."""

    items: tuple[Whole, ...]


@dataclass(frozen=True, slots=True)
class Magnitude(Whole):
    """The absolute value of `item`."""

    item: Whole


def const(value: int) -> Whole:
    """A constant."""
    _bound(value, value)
    return Const(value, value, 1, 1)


def read(variable: Variable) -> Whole:
    """A variable, within its range."""
    return Read(variable.low, variable.high, 1, 1, variable)


def local(let: int, value: Whole, *, denominator: bool) -> Whole:
    """A let's value, computed once and read from then on."""
    if isinstance(value, Const | Read | Local):
        return value
    if value.depth >= MAX_DEPTH:
        raise TooComplex
    return Local(value.low, value.high, 1, value.depth + 1, let, denominator)


def total(plus: Iterable[Whole], minus: Iterable[Whole] = ()) -> Whole:
    """The sum of `plus` less the sum of `minus`."""
    plus, minus = list(plus), list(minus)
    constant = sum(x.low for x in plus if isinstance(x, Const)) - sum(x.low for x in minus if isinstance(x, Const))
    plus = [x for x in plus if not isinstance(x, Const)]
    minus = [x for x in minus if not isinstance(x, Const)]
    if not plus and not minus:
        return const(constant)
    if len(plus) == 1 and not minus and not constant:
        return plus[0]
    low = sum(x.low for x in plus) - sum(x.high for x in minus) + constant
    high = sum(x.high for x in plus) - sum(x.low for x in minus) + constant
    _bound(low, high)
    return Total(low, high, *_shape(plus + minus), tuple(plus), tuple(minus), constant)


def times(*factors: Whole, limit: int = MAX_MAGNITUDE) -> Whole:
    """The product of `factors`."""
    constant = 1
    rest: list[Whole] = []
    for f in factors:
        if isinstance(f, Const):
            constant *= f.low
        elif isinstance(f, Times):
            constant *= f.constant
            rest += f.factors
        else:
            rest.append(f)
    if not rest or constant == 0:
        return const(constant)
    if len(rest) == 1 and constant == 1:
        return rest[0]
    low, high = constant, constant
    for f in rest:
        ends = (low * f.low, low * f.high, high * f.low, high * f.high)
        low, high = min(ends), max(ends)
        # Checked at every factor: a thousand factors must not make numbers of a hundred thousand bits.
        _bound(low, high, limit)
    return Times(low, high, *_shape(rest), tuple(rest), constant)


def least(items: Sequence[Whole]) -> Whole:
    """The smallest of `items`."""
    low, high = min(x.low for x in items), min(x.high for x in items)
    return const(low) if _all_const(items) else Least(low, high, *_shape(items), tuple(items))


def most(items: Sequence[Whole]) -> Whole:
    """The largest of `items`."""
    low, high = max(x.low for x in items), max(x.high for x in items)
    return const(high) if _all_const(items) else Most(low, high, *_shape(items), tuple(items))


def magnitude(item: Whole) -> Whole:
    """The absolute value of `item`."""
    if item.low >= 0:
        return item
    if item.high <= 0:
        return total([], [item])
    return Magnitude(0, max(-item.low, item.high), *_shape([item]), item)


def tightened(x: Whole, low: int, high: int) -> Whole:
    """`x`, when its value is known to lie in [low, high] as well."""
    low, high = max(low, x.low), min(high, x.high)
    if isinstance(x, Const) or (low, high) == (x.low, x.high):
        return x
    return replace(x, low=low, high=high)


def content(x: Whole) -> int:
    """A positive integer that divides every value of `x`, as far as constants show it."""
    if isinstance(x, Const):
        return abs(x.low) or 1
    return abs(x.constant) if isinstance(x, Times) else 1


def divided(x: Whole, by: int) -> Whole:
    """`x` divided by a divisor of `content(x)`."""
    if by == 1:
        return x
    if isinstance(x, Const):
        return const(x.low // by)
    assert isinstance(x, Times)
    return times(const(x.constant // by), *x.factors)


def _all_const(items: Sequence[Whole]) -> bool:
    return all(isinstance(x, Const) for x in items)


def _bound(low: int, high: int, limit: int = MAX_MAGNITUDE) -> None:
    largest = max(abs(low), abs(high))
    if largest >= limit:
        raise TooLarge(largest.bit_length() - 1)


def _shape(items: Sequence[Whole]) -> tuple[int, int]:
    """(size, depth) of a node over `items`. Wide nodes are computed as balanced trees, hence the logarithm."""
    size = 1 + sum(x.size for x in items)
    depth = max(x.depth for x in items) + max(1, (len(items) - 1).bit_length())
    if size > MAX_SIZE or depth > MAX_DEPTH:
        raise TooComplex
    return size, depth


ONE = const(1)
