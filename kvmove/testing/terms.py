"""Expressions in the making: their tokens, how tightly they bind, and bounds of what the checker computes of them.

The checker takes an amount as a ratio of two integers, and refuses what could reach 2^128. The functions here keep
an upper bound of both integers, never below the checker's own, and give None where a bound would pass the limit. So
whatever they give is accepted, and nothing has to be parsed to know it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import prod
from typing import NamedTuple

from kvmove.kvpol.lexer import Token
from kvmove.kvpol.source import Span
from kvmove.kvpol.syntax import KEYWORDS
from kvmove.kvpol.whole import MAX_MAGNITUDE

OR, AND, NOT, COMPARE, SUM, PRODUCT, NEGATE, ATOM = range(8)  # how tightly each kind binds

_KINDS = {
    "<": "LT", "<=": "LE", ">": "GT", ">=": "GE", "==": "EQ", "!=": "NE", "+": "PLUS", "-": "MINUS", "*": "STAR",
    "/": "SLASH", "(": "LPAR", ")": "RPAR", ",": "COMMA", ":": "COLON", "=": "EQUAL",
}  # fmt: skip
_WORDS = frozenset(KEYWORDS)
_NOWHERE = Span(0, 0)


@cache
def token(text: str) -> Token:
    """The token that is written `text`."""
    if text in _WORDS:
        return Token(text.upper(), text, _NOWHERE)
    first = text[0]
    kind = "QUANTITY" if first.isdigit() else {"@": "LABEL", '"': "STRING"}.get(first) or _KINDS.get(text, "NAME")
    return Token(kind, text, _NOWHERE)


_OPEN, _CLOSE, _COMMA, _MINUS, _NOT = (token(t) for t in ("(", ")", ",", "-", "not"))


class Term(NamedTuple):
    """An amount or a condition. Of an amount, |numerator| <= `above` and 1 <= denominator <= `below`."""

    tokens: list[Token]
    binds: int
    above: int = 0
    below: int = 1


def within(term: Term, tightness: int) -> list[Token]:
    """The tokens of `term` where something at least so tight is needed."""
    return term.tokens if term.binds >= tightness else [_OPEN, *term.tokens, _CLOSE]


def atom(text: str, above: int = 0, below: int = 1) -> Term:
    """A name or a number."""
    return Term([token(text)], ATOM, above, below)


def grouped(term: Term) -> Term:
    """The same in parentheses that it does not need."""
    return Term([_OPEN, *term.tokens, _CLOSE], ATOM, term.above, term.below)


def joined(operators: Sequence[str], items: Sequence[Term], binds: int, tightness: int) -> list[Token]:
    """`items` with `operators` between them."""
    tokens = list(within(items[0], tightness))
    for operator, item in zip(operators, items[1:], strict=True):
        tokens.append(token(operator))
        tokens += within(item, tightness)
    return tokens


def total(operators: Sequence[str], items: Sequence[Term]) -> Term | None:
    """`a + b - c`."""
    below = prod(x.below for x in items)
    above = sum(x.above * (below // x.below) for x in items)
    return _bounded(joined(operators, items, SUM, PRODUCT), SUM, above, below)


def product(left: Term, right: Term) -> Term | None:
    """`a * b`."""
    tokens = joined("*", (left, right), PRODUCT, NEGATE)
    return _bounded(tokens, PRODUCT, left.above * right.above, left.below * right.below)


def quotient(left: Term, right: Term) -> Term | None:
    """`a / b`; that `b` is never zero is up to the caller."""
    tokens = joined("/", (left, right), PRODUCT, NEGATE)
    return _bounded(tokens, PRODUCT, left.above * right.below, left.below * max(1, right.above))


def negative(term: Term) -> Term:
    """`-a`."""
    return Term([_MINUS, *within(term, NEGATE)], NEGATE, term.above, term.below)


def call(function: str, *items: Term) -> Term | None:
    """`min`, `max`, `abs` or `clamp` of `items`."""
    below = prod(x.below for x in items)
    above = max(x.above * (below // x.below) for x in items)
    return _bounded(_call(function, items), ATOM, above, below)


def known(term: Term) -> Term:
    """`known(a)`."""
    return Term(_call("known", (term,)), ATOM)


def opposite(term: Term) -> Term:
    """`not a`."""
    return Term([_NOT, *within(term, NOT)], NOT)


def comparison(operators: Sequence[str], items: Sequence[Term]) -> Term:
    """`a < b`, or a chain."""
    return Term(joined(operators, items, COMPARE, SUM), COMPARE)


def every(items: Sequence[Term]) -> Term:
    """`a and b`."""
    return Term(joined(["and"] * (len(items) - 1), items, AND, NOT), AND)


def some(items: Sequence[Term]) -> Term:
    """`a or b`."""
    return Term(joined(["or"] * (len(items) - 1), items, OR, AND), OR)


def _call(function: str, items: Sequence[Term]) -> list[Token]:
    tokens = [token(function), _OPEN]
    for i, item in enumerate(items):
        if i:
            tokens.append(_COMMA)
        tokens += item.tokens
    tokens.append(_CLOSE)
    return tokens


def _bounded(tokens: list[Token], binds: int, above: int, below: int) -> Term | None:
    return Term(tokens, binds, above, below) if max(above, below) < MAX_MAGNITUDE else None
