"""A Hypothesis strategy for policies: random texts that are typed, bounded, laid out, and accepted by the checker.

They use every operator, function and unit, lets that build on lets, conditions under `not`, ratios with denominators
that vary, and constants at the edges of ranges and words, beside each other and beside what is left of the budget.
Nothing is parsed, and nothing drawn is thrown away.
"""

from __future__ import annotations

from functools import partial

from hypothesis import strategies as st

from kvmove.errors import Refused
from kvmove.kvpol.format import lay_out
from kvmove.kvpol.lexer import Token
from kvmove.schema import Unit
from kvmove.testing.amounts import Amounts
from kvmove.testing.conditions import Conditions
from kvmove.testing.tape import Tape
from kvmove.testing.terms import Term, token

_ACTIONS = ("sync", "async", "recompute", "defer")
_TYPES = (Unit.BYTES, Unit.TOKENS, Unit.TIME, Unit.NUMBER)
_MAX_PARAMS, _MAX_LETS = 2, 3
_PARAM, _LET, _RULE, _ASSERT = 6, 24, 30, 16  # bytes of the tape for one statement of depth 3


def policies(*, max_rules: int = 5, max_depth: int = 3) -> st.SearchStrategy[str]:
    """Draw the text of a policy that parses, checks and compiles. It shrinks to few rules with plain conditions.

    Args:
        max_rules: rules with a condition, at most; one without may follow.
        max_depth: how deep conditions and amounts nest, about.

    Raises:
        Refused: `max_rules` is not in [0, 100] or `max_depth` not in [0, 8].
    """
    if not (0 <= max_rules <= 100 and 0 <= max_depth <= 8):
        raise Refused(f"max_rules is {max_rules} and max_depth {max_depth}; [0, 100] and [0, 8] are possible")
    size = Amounts.TAPE + 3 + _MAX_PARAMS * _PARAM + _MAX_LETS * _part(_LET, max_depth)
    size += max_rules * _part(_RULE, max_depth) + _ASSERT
    return st.binary(min_size=size, max_size=size).map(partial(_written, max_rules, max_depth))


def _part(length: int, max_depth: int) -> int:
    """Bytes of a statement: it has more of them to choose from where it may nest deeper."""
    return max(8, length * max_depth // 3)


def _written(max_rules: int, max_depth: int, data: bytes) -> str:
    tape = Tape(data)
    writer = _Writer(Amounts(tape.part(Amounts.TAPE)), max_depth)
    statements: list[list[Token]] = []
    last, has_budget, has_title = tape.byte(), tape.below(2), tape.below(2)
    if has_title:
        statements.append([token("policy"), token('"drawn"')])
    if has_budget:
        statements.append([token(t) for t in ("param", "budget", ":", "bytes", "=", "64MiB")])
    for _ in range(_MAX_PARAMS):
        statements += writer.param(tape.part(_PARAM))
    for _ in range(_MAX_LETS):
        statements += writer.let(tape.part(_part(_LET, max_depth)))
    for _ in range(max_rules):
        statements += writer.rule(tape.part(_part(_RULE, max_depth)))
    if last % 2 == 0:
        statements.append([token(_ACTIONS[(last // 2 + 1) % 4])])
    statements += writer.assertion(tape.part(_ASSERT))
    return lay_out(statements)


class _Writer:
    """Writes statements, each from a part of the tape, and none where that part says so."""

    def __init__(self, amounts: Amounts, max_depth: int) -> None:
        self.amounts, self.conditions, self.max_depth = amounts, Conditions(amounts), max_depth
        self.num_params = self.num_lets = self.num_rules = 0

    def param(self, tape: Tape) -> list[list[Token]]:
        """`param p0: bytes = 3MiB`."""
        how = tape.byte()
        if how % 2 == 0:
            return []
        name, kind = f"p{self.num_params}", how // 2 % 6
        self.num_params += 1
        start = [token("param"), token(name), token(":")]
        if kind >= 4:
            self.conditions.names.append(name)
            return [[*start, token("bool"), token("="), token(tape.pick(("true", "false")))]]
        unit = _TYPES[kind]
        value = self.amounts.quantity(tape, unit)
        sign = [token("-")] if tape.below(4) == 3 else []
        self.amounts.define(unit, name, value)
        return [[*start, token(unit.value), token("="), *sign, *value.tokens]]

    def let(self, tape: Tape) -> list[list[Token]]:
        """`let x0 = load_time + step_time`."""
        how = tape.byte()
        if how % 2 == 0:
            return []
        name, kind = f"x{self.num_lets}", how // 2 % 8
        self.num_lets += 1
        if kind >= 4:
            value = self.conditions.condition(tape, self.max_depth)
            self.conditions.names.append(name)
        else:
            value = self.amounts.amount(tape, _TYPES[kind], self.max_depth)
            self.amounts.define(_TYPES[kind], name, value)
        return [[token("let"), token(name), token("="), *value.tokens]]

    def rule(self, tape: Tape) -> list[list[Token]]:
        """`@r0 sync at most budget_remaining if bytes > 1MiB`."""
        how = tape.byte()
        if how % 2 == 0:
            return []
        action, kind = _ACTIONS[how // 2 % 4], how // 8
        label = [token(f"@r{self.num_rules}")] if kind % 2 else []
        self.num_rules += 1
        limit: list[Token] = []
        if action in ("sync", "async") and kind // 2 % 3 == 2:
            limit = [token("at"), token("most"), *self._limit(tape).tokens]
        condition = self.conditions.condition(tape, self.max_depth)
        return [[*label, token(action), *limit, token("if"), *condition.tokens]]

    def _limit(self, tape: Tape) -> Term:
        how = tape.byte()
        unit = (Unit.BYTES, Unit.TOKENS)[how % 2]
        return self.amounts.limit(tape, unit, how // 2 % 4, self.max_depth)

    def assertion(self, tape: Tape) -> list[list[Token]]:
        """`assert sync implies load_bytes <= budget_remaining`, or a claim about the outcome alone."""
        how = tape.byte()
        if how % 2 == 0:
            return []
        outcome = [token(_ACTIONS[how // 2 % 4])]
        if how // 8 % 4 == 1:
            outcome.insert(0, token("not"))
        elif how // 8 % 4 == 2:
            outcome += [token("or"), token(tape.pick(_ACTIONS))]
        claim = self.conditions.claim(tape)
        match how // 32 % 4:
            case 3:
                return [[token("assert"), *outcome]]
            case 2:
                return [[token("assert"), *claim.tokens, token("implies"), *outcome]]
        return [[token("assert"), *outcome, token("implies"), *claim.tokens]]
