"""Amounts of a drawn policy: variables, constants and what is computed of them, each of a wanted unit."""

from __future__ import annotations

from fractions import Fraction
from itertools import permutations

from kvmove import schema
from kvmove.kvpol.units import OF_SCHEMA, UNITS, show
from kvmove.schema import Scope, Unit
from kvmove.testing import terms
from kvmove.testing.tape import Tape
from kvmove.testing.terms import Term, atom

READABLE = tuple(v for v in schema.VARIABLES if v.scope is not Scope.OUTCOME)
SMALLEST = {Unit.BYTES: "B", Unit.TOKENS: "tok", Unit.TIME: "ns", Unit.NUMBER: ""}
_ALL_UNITS = (Unit.BYTES, Unit.TOKENS, Unit.TIME, Unit.NUMBER)
_SUFFIXES = {
    Unit.BYTES: ("B", "KB", "MB", "GB", "KiB", "MiB", "GiB"),
    Unit.TOKENS: ("tok",),
    Unit.TIME: ("ns", "us", "ms", "s"),
    Unit.NUMBER: ("", "%"),
}
_EDGES = (1, 0, 2, 3, 7, 100, 255, 1 << 10, (1 << 16) - 1, 1 << 24, (1 << 31) - 1, (1 << 44) - 1, 1 << 46)
# Each is a whole number of the smaller unit in 1,000 and in 1,024.
_FRACTIONS = ("0.5", "1.5", "2.25", "0.125")
_DIVISIBLE = ("KB", "KiB", "MiB", "us", "s", "", "%")


def _variable(v: schema.Variable) -> Term:
    return atom(v.name, max(abs(v.low), abs(v.high)))


# A few variables for each policy: that the same one comes up again is what tests reading it once.
_POOLS = {
    unit: tuple(permutations([_variable(v) for v in READABLE if v.unit is unit], 3)) for unit in _ALL_UNITS
}  # at most 336 of them
_NEVER_ZERO = {unit: tuple(_variable(v) for v in READABLE if v.low > 0 and v.unit is unit) for unit in _ALL_UNITS}
_LEAST = {unit: tuple(atom(f"{n}{SMALLEST[unit]}", n) for n in (1, 3, 1000)) for unit in _ALL_UNITS}
_ZERO = {unit: atom(f"0{SMALLEST[unit]}") for unit in _ALL_UNITS}
_ONES = {
    (a, b): Term(terms.joined("/", (_LEAST[a][0], _LEAST[b][0]), terms.PRODUCT, terms.NEGATE), terms.PRODUCT, 1, 1)
    for a in _ALL_UNITS
    for b in _ALL_UNITS
}
_MINUS_SEVEN = terms.negative(atom("7", 7))
_FACTORS = (
    atom("2", 2), atom("3", 3), atom("50%", 1, 2), atom("1.5", 3, 2), terms.negative(atom("1", 1)), _MINUS_SEVEN,
)  # fmt: skip
_DIVISORS = (atom("2", 2), atom("3", 3), atom("0.5", 1, 2), _MINUS_SEVEN)
BUDGET_LEFT = _variable(schema.BY_NAME["budget_remaining"])
SIZES = {Unit.BYTES: _variable(schema.BY_NAME["bytes"]), Unit.TOKENS: _variable(schema.BY_NAME["tokens"])}


class Amounts:
    """Writes amounts, with the variables, params and lets that this policy has so far."""

    TAPE = 8  # bytes of the tape that choose the variables

    def __init__(self, tape: Tape) -> None:
        self._names: dict[Unit, list[Term]] = {}
        for unit, pools in _POOLS.items():
            self._names[unit] = list(pools[(tape.byte() | tape.byte() << 8) % len(pools)])
        self._written: dict[Unit, list[int]] = {unit: [] for unit in _ALL_UNITS}  # whole canonical units

    def define(self, unit: Unit, name: str, value: Term) -> None:
        """Let `name` stand for `value` from now on."""
        self._names[unit].append(atom(name, value.above, value.below))

    def name(self, tape: Tape, unit: Unit) -> Term:
        """A variable, a param or a let."""
        return tape.pick(self._names[unit])

    def quantity(self, tape: Tape, unit: Unit) -> Term:
        """A constant: often one that stands in the policy already, or one more or less."""
        how, written = tape.byte(), self._written[unit]
        if how % 4 == 1 and written:
            value = max(0, tape.pick(written) + (0, 1, -1)[how // 4 % 3])
            return atom(show(Fraction(value), OF_SCHEMA[unit]), value)
        suffix = _SUFFIXES[unit][how // 4 % len(_SUFFIXES[unit])]
        if how % 4 == 2 and suffix in _DIVISIBLE:
            digits = tape.pick(_FRACTIONS)
        elif how % 4 == 3:
            digits = str(tape.byte() * 20 + how // 4 % 20)
        else:
            digits = str(tape.pick(_EDGES))
        amount = Fraction(digits) * UNITS[suffix][1]
        if amount.denominator == 1:
            written.append(int(amount))
        return atom(digits + suffix, amount.numerator, amount.denominator)

    def leaf(self, tape: Tape, unit: Unit) -> Term:
        """A name or a constant."""
        return self.quantity(tape, unit) if tape.below(2) else self.name(tape, unit)

    def divisor(self, tape: Tape, unit: Unit) -> Term:
        """Something that cannot be zero."""
        how, plain = tape.byte(), _NEVER_ZERO[unit]
        if plain and how % 2 == 0:
            return plain[how // 2 % len(plain)]
        least = _LEAST[unit][how // 2 % 3]
        return terms.call("max", self.name(tape, unit), least) or least

    def ratio(self, tape: Tape, above: Unit, below: Unit, depth: int) -> Term:
        """One amount through another."""
        found = terms.quotient(self.amount(tape, above, depth), self.divisor(tape, below))
        return found or _ONES[above, below]

    def amount(self, tape: Tape, unit: Unit, depth: int) -> Term:
        """Any amount of `unit`. What could be too large for the checker is the part that it was made of."""
        how = tape.below(12)
        if depth <= 0 or how == 0:
            return self.leaf(tape, unit)
        a = self.amount(tape, unit, depth - 1)
        return self._made_of(tape, unit, depth, how, a) or a

    def _made_of(self, tape: Tape, unit: Unit, depth: int, how: int, a: Term) -> Term | None:  # noqa: PLR0911 - cases
        match how:
            case 1:
                return terms.total("+", (a, self.amount(tape, unit, depth - 1)))
            case 2:
                b = self.amount(tape, unit, depth - 1)
                return terms.total("-", (a, b)) if tape.below(2) else terms.total("-+", (a, b, self.leaf(tape, unit)))
            case 3:
                return terms.product(tape.pick(_FACTORS), a)
            case 4:
                return terms.quotient(a, tape.pick(_DIVISORS))
            case 5:
                return terms.negative(a)
            case 6:
                return terms.call("min", a, self.amount(tape, unit, depth - 1))
            case 7:
                return terms.call("max", a, self.amount(tape, unit, depth - 1), self.leaf(tape, unit))
            case 8:
                return terms.call("abs", a)
            case 9:
                return terms.call("clamp", a, _ZERO[unit], self.divisor(tape, unit))
            case 10:
                other = tape.pick(_ALL_UNITS)
                scale = terms.quotient(self.leaf(tape, other), self.divisor(tape, other))
                return None if scale is None else terms.product(a, scale)
        return terms.grouped(a)

    def limit(self, tape: Tape, unit: Unit, how: int, depth: int) -> Term:
        """What follows `at most`: the budget, a part of the hit, or anything."""
        size, made = SIZES[unit], None
        match how:
            case 0:
                return BUDGET_LEFT
            case 1:
                made = terms.quotient(size, _DIVISORS[0])
            case 2:
                made = terms.total("-", (size, _LEAST[unit][0]))
            case 3:
                ratio = self.ratio(tape, unit, unit, 1)
                made = terms.product(size, ratio) if tape.below(2) else self.amount(tape, unit, depth)
        return made or size
