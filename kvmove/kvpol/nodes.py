"""Small `ast` nodes that the compiler puts together."""

from __future__ import annotations

import ast
from functools import cache
from typing import Any


def load(name: str) -> ast.expr:
    """The value of a local."""
    return ast.Name(name, ast.Load())


def again(node: ast.expr, name: str) -> ast.expr:
    """The value of `node` once more: from the local that keeps it, or a constant itself."""
    return load(name) if name else node


def is_none(node: ast.expr, *, negated: bool) -> ast.expr:
    """Whether a value is unknown; with `negated`, whether it is known."""
    return ast.Compare(node, [ast.IsNot() if negated else ast.Is()], [ast.Constant(None)])


def joined(operator: ast.boolop, nodes: list[ast.expr]) -> ast.expr:
    """`nodes` joined by `and` or `or`."""
    return nodes[0] if len(nodes) == 1 else ast.BoolOp(operator, nodes)


def balanced(operator: ast.operator, nodes: list[ast.expr]) -> ast.expr:
    """`nodes` joined as a balanced tree, in order: CPython's compiler recurses, and 900 operands are allowed."""
    while len(nodes) > 1:
        paired: list[ast.expr] = [ast.BinOp(nodes[i], operator, nodes[i + 1]) for i in range(0, len(nodes) - 1, 2)]
        nodes = paired + nodes[len(nodes) & ~1 :]
    return nodes[0]


def at_line(statement: ast.stmt, line: int) -> ast.stmt:
    """`statement` with every node on `line`."""
    # `ast.walk` and `ast.fix_missing_locations` do this too, in as much time as all the other passes take.
    waiting: list[ast.AST] = [statement]
    while waiting:
        node = place(waiting.pop(), line)
        kind: Any = type(node)
        for name in _inside(kind):
            inner = getattr(node, name)
            if isinstance(inner, list):
                waiting += inner
            elif inner is not None:
                waiting.append(inner)
    return statement


def place(node: ast.AST, line: int) -> ast.AST:
    """`node` on `line`, but not what is inside it."""
    here: Any = node
    here.lineno = here.end_lineno = line
    here.col_offset = here.end_col_offset = 0
    return node


@cache
def _inside(kind: type[ast.AST]) -> tuple[str, ...]:
    """The fields of a node that hold nodes with a place."""
    without_place = ("id", "attr", "ctx", "op", "ops", "type_comment")
    return () if kind is ast.Constant else tuple(name for name in kind._fields if name not in without_place)
