"""Exact amounts: a ratio of two integer expressions, with the interval of its value.

The denominator is always positive, so that `a/b < c/d` is `a*d < c*b`: a decision never rounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, floor, gcd, lcm

from kvmove.kvpol import whole
from kvmove.kvpol.interval import Interval, between
from kvmove.kvpol.whole import ONE, Const, Whole
from kvmove.schema import Variable


class MayDivideByZero(Exception):
    """A divisor's interval contains zero."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """`numerator / denominator`; the denominator is at least 1, and the value lies in `range`."""

    numerator: Whole
    denominator: Whole
    range: Interval

    @property
    def is_constant(self) -> bool:
        """Whether the value is the same for every hit and step."""
        return isinstance(self.numerator, Const) and isinstance(self.denominator, Const)


def constant(value: Fraction) -> Ratio:
    """A constant."""
    return Ratio(whole.const(value.numerator), whole.const(value.denominator), Interval(value, value))


def variable(v: Variable) -> Ratio:
    """A variable within its range of the schema."""
    return Ratio(whole.read(v), ONE, between(v.low, v.high))


def let(index: int, value: Ratio) -> Ratio:
    """The value of let number `index`."""
    return Ratio(
        whole.local(index, value.numerator, denominator=False),
        whole.local(index, value.denominator, denominator=True),
        value.range,
    )


def add(plus: Sequence[Ratio], minus: Sequence[Ratio] = ()) -> Ratio:
    """The sum of `plus` less the sum of `minus`."""
    numerators, denominator = common([*plus, *minus])
    value = between(0, 0)
    for x in plus:
        value += x.range
    for x in minus:
        value += -x.range
    return _ratio(whole.total(numerators[: len(plus)], numerators[len(plus) :]), denominator, value)


def multiply(a: Ratio, b: Ratio) -> Ratio:
    """The product."""
    numerator = whole.times(a.numerator, b.numerator)
    return _ratio(numerator, whole.times(a.denominator, b.denominator), a.range * b.range)


def divide(a: Ratio, b: Ratio) -> Ratio:
    """The quotient.

    Raises:
        MayDivideByZero: the interval of `b` contains zero.
    """
    if 0 in b.range:
        raise MayDivideByZero
    if b.range.high < 0:
        a, b = add([], [a]), add([], [b])
    # The range of b knows better than its numerator's interval that it is positive.
    divisor = whole.tightened(b.numerator, 1, b.numerator.high)
    numerator = whole.times(a.numerator, b.denominator)
    return _ratio(numerator, whole.times(a.denominator, divisor), a.range / b.range)


def least(items: Sequence[Ratio]) -> Ratio:
    """The smallest of `items`."""
    numerators, denominator = common(items)
    value = items[0].range
    for x in items[1:]:
        value = value.least(x.range)
    return _ratio(whole.least(numerators), denominator, value)


def most(items: Sequence[Ratio]) -> Ratio:
    """The largest of `items`."""
    numerators, denominator = common(items)
    value = items[0].range
    for x in items[1:]:
        value = value.most(x.range)
    return _ratio(whole.most(numerators), denominator, value)


def magnitude(a: Ratio) -> Ratio:
    """The absolute value."""
    return _ratio(whole.magnitude(a.numerator), a.denominator, abs(a.range))


def common(items: Sequence[Ratio]) -> tuple[list[Whole], Whole]:
    """The numerators of `items` over one positive denominator, and that denominator."""
    fixed = lcm(*(x.denominator.low for x in items if isinstance(x.denominator, Const)))
    varying: list[Whole] = []
    for x in items:
        if not isinstance(x.denominator, Const) and x.denominator not in varying:
            varying.append(x.denominator)
    numerators = []
    for x in items:
        others = [d for d in varying if d != x.denominator]
        rest = fixed // x.denominator.low if isinstance(x.denominator, Const) else fixed
        numerators.append(whole.times(x.numerator, whole.const(rest), *others))
    return numerators, whole.times(whole.const(fixed), *varying)


def sides(a: Ratio, b: Ratio) -> tuple[Whole, Whole]:
    """Two integers that compare as `a` and `b` do: each numerator times the other's denominator."""
    # These are compared and thrown away, so they may be as large as a product of two bounded numbers.
    limit = whole.MAX_MAGNITUDE**2
    if a.denominator == b.denominator:
        return a.numerator, b.numerator
    if isinstance(a.denominator, Const) and isinstance(b.denominator, Const):
        shared = gcd(a.denominator.low, b.denominator.low)
        by_a, by_b = whole.const(b.denominator.low // shared), whole.const(a.denominator.low // shared)
        return whole.times(a.numerator, by_a, limit=limit), whole.times(b.numerator, by_b, limit=limit)
    return (
        whole.times(a.numerator, b.denominator, limit=limit),
        whole.times(b.numerator, a.denominator, limit=limit),
    )


def _ratio(numerator: Whole, denominator: Whole, value: Interval) -> Ratio:
    if isinstance(denominator, Const):
        shared = gcd(denominator.low, whole.content(numerator))
        if shared > 1:
            numerator = whole.divided(numerator, shared)
            denominator = whole.const(denominator.low // shared)
    low = value.low * (denominator.low if value.low >= 0 else denominator.high)
    high = value.high * (denominator.high if value.high >= 0 else denominator.low)
    return Ratio(whole.tightened(numerator, ceil(low), floor(high)), denominator, value)
