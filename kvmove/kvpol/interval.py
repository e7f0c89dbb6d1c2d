"""Exact intervals: between which values an expression lies, whatever a hit and a step hold."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True, slots=True)
class Interval:
    """The closed interval [low, high]."""

    low: Fraction
    high: Fraction

    def __add__(self, other: Interval) -> Interval:
        return Interval(self.low + other.low, self.high + other.high)

    def __neg__(self) -> Interval:
        return Interval(-self.high, -self.low)

    def __mul__(self, other: Interval) -> Interval:
        ends = [a * b for a in (self.low, self.high) for b in (other.low, other.high)]
        return Interval(min(ends), max(ends))

    def __truediv__(self, other: Interval) -> Interval:
        """The quotients. `other` must not contain zero."""
        return self * Interval(1 / other.high, 1 / other.low)

    def __contains__(self, value: int) -> bool:
        return self.low <= value <= self.high

    def __abs__(self) -> Interval:
        if 0 in self:
            return Interval(Fraction(0), max(-self.low, self.high))
        return self if self.low > 0 else -self

    def least(self, other: Interval) -> Interval:
        """Where the smaller of two values lies."""
        return Interval(min(self.low, other.low), min(self.high, other.high))

    def most(self, other: Interval) -> Interval:
        """Where the larger of two values lies."""
        return Interval(max(self.low, other.low), max(self.high, other.high))


def between(low: int, high: int) -> Interval:
    """The interval of an integer that is at least `low` and at most `high`."""
    return Interval(Fraction(low), Fraction(high))
