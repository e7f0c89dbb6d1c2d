"""Small `ast` nodes that the compiler puts together."""

from __future__ import annotations

import ast


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
    for node in ast.walk(statement):
        if isinstance(node, ast.stmt | ast.expr):
            node.lineno = node.end_lineno = line
            node.col_offset = node.end_col_offset = 0
    return statement
