"""Tokens to the nodes of `kvmove.kvpol.tree`, by the tables that lark makes of the grammar.

Lark's own loop would make a generic tree first, with lines and columns in every node, which takes as long as all that
comes after it. This one has lark's rules for what a node keeps: a name that starts with `_` is no node of its own, and
a word or sign that the grammar writes in quotes is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from kvmove.kvpol.build import BUILDERS, Builder
from kvmove.kvpol.grammar import grammar
from kvmove.kvpol.lexer import Token
from kvmove.kvpol.source import Span

_END = "$END"  # lark's name for what follows the last token


@dataclass(frozen=True, slots=True, eq=False)
class _Rule:
    """One way to write `origin`: `size` symbols, of which `kept` are what the node is made of.

    Of those, `spliced` are lists of nodes rather than nodes. `build` is None where the origin is no node.
    """

    origin: str
    size: int
    kept: tuple[tuple[int, bool], ...]  # (index, spliced)
    build: Builder | None
    renames: bool  # the value stays what it is, and is only called otherwise


@dataclass(frozen=True, slots=True, eq=False)
class _Tables:
    """For each state: the state after a symbol, or the rule that ends before it. The parser starts and ends in two."""

    rows: dict[int, dict[str, int | _Rule]]
    start: int
    end: int


def read(tokens: Sequence[Token]) -> list[Any] | int:
    """The nodes of `tokens`, a header or statements; or the index of the first token that cannot follow.

    That is their number where the end comes too early.
    """
    tables = _tables()
    rows = tables.rows
    states = [tables.start]
    values: list[Any] = []
    starts: list[int] = []  # for each value, the offset of its first character
    end = 0  # the offset after the last token that was taken

    def reduce(rule: _Rule) -> None:
        nonlocal states, values, starts
        size = rule.size
        if rule.renames:
            states[-1] = rows[states[-2]][rule.origin]  # type: ignore[assignment]
            return
        children, start = (values[-size:], starts[-size]) if size else ([], end)
        if size:
            del states[-size:], values[-size:], starts[-size:]
        kept: list[Any] = []
        for index, spliced in rule.kept:
            if not spliced:
                kept.append(children[index])
            elif kept:
                kept += children[index]
            else:
                kept = children[index]  # nothing else has this list
        values.append(kept if rule.build is None else rule.build(kept, Span(start, end)))
        starts.append(start)
        states.append(rows[states[-1]][rule.origin])  # type: ignore[arg-type]

    for at, token in enumerate(tokens):
        while True:
            action = rows[states[-1]].get(token.kind)
            if action is None:
                return at
            if isinstance(action, int):
                break
            reduce(action)
        states.append(action)
        values.append(token)
        starts.append(token.span.start)
        end = token.span.end
    while states[-1] != tables.end:
        action = rows[states[-1]].get(_END)
        if action is None:
            return len(tokens)
        assert isinstance(action, _Rule)
        reduce(action)
    nodes: list[Any] = values[-1]
    return nodes


@cache
def _tables() -> _Tables:
    """Lark's tables, with what is to be done at each rule worked out."""
    parser: Any = grammar().parse_interactive()
    configuration = parser.parser_state.parse_conf
    rules: dict[Any, _Rule] = {}

    def action(kind: Any, target: Any) -> int | _Rule:
        if isinstance(target, int):
            return target
        if target not in rules:
            rules[target] = _rule(target)
        return rules[target]

    rows = {
        state: {str(symbol): action(*entry) for symbol, entry in row.items()}
        for state, row in configuration.states.items()
    }
    return _Tables(rows, configuration.start_state, configuration.end_state)


def _rule(rule: Any) -> _Rule:
    origin = str(rule.origin.name)
    kept = tuple(
        (i, not symbol.is_term and symbol.name.startswith("_"))
        for i, symbol in enumerate(rule.expansion)
        if not (symbol.is_term and symbol.filter_out)
    )
    build = None if origin.startswith("_") else BUILDERS[origin]
    size = len(rule.expansion)
    return _Rule(origin, size, kept, build, build is None and size == 1 and kept == ((0, True),))
