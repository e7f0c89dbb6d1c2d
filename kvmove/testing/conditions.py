"""Conditions of a drawn policy; the simplest compares the hit with what is left of the budget."""

from __future__ import annotations

from kvmove import schema
from kvmove.schema import Unit
from kvmove.testing import terms
from kvmove.testing.amounts import BUDGET_LEFT, READABLE, SIZES, Amounts
from kvmove.testing.tape import Tape
from kvmove.testing.terms import Term, atom

_UNITS = (Unit.BYTES, Unit.TIME, Unit.TOKENS, Unit.NUMBER)
_OPERATORS = ("<=", "<", ">", ">=", "==", "!=")
_ESTIMATES = tuple(atom(v.name, v.high) for v in READABLE if v.optional)
_ONE_BYTE = atom("1B", 1)
_BYTES = SIZES[Unit.BYTES]
_ADMITTED = {
    Unit.BYTES: atom("load_bytes", schema.MAX_BYTES),
    Unit.TOKENS: atom("load_tokens", schema.MAX_COUNT),
}
# Beside the budget, and one byte off on either side.
_AT_BUDGET = (
    (_BYTES, BUDGET_LEFT),
    (terms.total("+", (_BYTES, _ONE_BYTE)) or _BYTES, BUDGET_LEFT),
    (_BYTES, terms.total("+", (BUDGET_LEFT, _ONE_BYTE)) or BUDGET_LEFT),
)
_PLAIN = ("budget", "constant", "amounts", "chain", "ratios", "known", "unknown", "name")
_NESTED = (*_PLAIN, "constant", "amounts", "not", "and", "or", "and", "or", "literal")


class Conditions:
    """Writes conditions over `amounts`. `names` are the params and lets that are conditions."""

    def __init__(self, amounts: Amounts) -> None:
        self.amounts = amounts
        self.names: list[str] = []

    def condition(self, tape: Tape, depth: int) -> Term:
        """Any condition but a bare `true` or `false`, which would end the policy."""
        how = tape.pick(_NESTED) if depth > 0 else tape.pick(_PLAIN)
        match how:
            case "not":
                return terms.opposite(self.condition(tape, depth - 1))
            case "and":
                return terms.every((self.condition(tape, depth - 1), self.condition(tape, depth - 1)))
            case "or":
                items = [self.condition(tape, depth - 1), self.condition(tape, depth - 1)]
                if tape.below(2):
                    items.append(self._plain(tape, tape.pick(_PLAIN), 0))
                return terms.some(items)
            case "literal":
                literal = atom(tape.pick(("true", "false")))
                join = terms.every if tape.below(2) else terms.some
                return join((self.condition(tape, depth - 1), literal))
        return self._plain(tape, how, depth)

    def claim(self, tape: Tape) -> Term:
        """A condition that an assert can make: often about what was admitted."""
        how = tape.below(4)
        if how == 0:
            return terms.comparison(("<=",), (_ADMITTED[Unit.BYTES], BUDGET_LEFT))
        if how == 3:
            return self.condition(tape, 1)
        unit = (Unit.BYTES, Unit.TOKENS)[how % 2]
        return terms.comparison((tape.pick(_OPERATORS),), (_ADMITTED[unit], self.amounts.leaf(tape, unit)))

    def _plain(self, tape: Tape, how: str, depth: int) -> Term:  # noqa: PLR0911 - one return for each kind
        """One comparison, or one question."""
        amounts = self.amounts
        depth = min(depth, 2)
        match how:
            case "budget":
                off = tape.byte()
                return terms.comparison((_OPERATORS[off // 3 % 2],), _AT_BUDGET[off % 3])
            case "known":
                return terms.known(tape.pick(_ESTIMATES))
            case "unknown":
                estimate, time = tape.pick(_ESTIMATES), amounts.name(tape, Unit.TIME)
                return terms.opposite(terms.known(terms.total("-", (estimate, time)) or estimate))
            case "name" if self.names:
                return atom(tape.pick(self.names))
        what = tape.byte()
        unit, operator = _UNITS[what % 4], _OPERATORS[what // 4 % 6]
        match how:
            case "amounts":
                return terms.comparison(
                    (operator,), (amounts.amount(tape, unit, depth), amounts.amount(tape, unit, depth))
                )
            case "chain":
                one_way = ("<", "<=") if what // 4 % 2 else (">", ">=")
                operators = (one_way[what // 8 % 2], one_way[what // 16 % 2])
                parts = amounts.leaf(tape, unit), amounts.amount(tape, unit, depth), amounts.leaf(tape, unit)
                return terms.comparison(operators, parts)
            case "ratios":
                below = _UNITS[what // 32 % 4]
                sides = amounts.ratio(tape, unit, below, depth), amounts.ratio(tape, unit, below, 0)
                return terms.comparison((operator,), sides)
        return terms.comparison((operator,), (amounts.name(tape, unit), amounts.quantity(tape, unit)))
