"""The parse tree that lark makes, as the nodes of `kvmove.kvpol.tree`."""

from __future__ import annotations

from typing import Any

from lark import Token, Tree

from kvmove.kvpol import tree
from kvmove.kvpol.source import Span
from kvmove.records import Action

_Node = Tree[Any]


def build_statement(node: _Node) -> tree.Header | tree.Statement:
    """The statement that `node` stands for."""
    children: list[Any] = node.children
    span = _span(node)
    match str(node.data):
        case "header":
            return tree.Header(span, str(children[0])[1:-1])
        case "param":
            negative = children[2].type == "MINUS"
            return tree.Param(span, _word(children[0]), _word(children[1]), _constant(children[-1]), negative)
        case "let":
            return tree.Let(span, _word(children[0]), build_expression(children[1]))
        case "rule":
            return _rule(node)
        case _:
            claims = [_claim(child) for child in children]
            return tree.Assert(span, claims[0] if len(claims) == 2 else None, claims[-1])


def _rule(node: _Node) -> tree.Rule:
    label: tree.Word | None = None
    limit: tree.Expr | None = None
    condition: tree.Expr | None = None
    action = Action.ASYNC
    action_span = _span(node)
    for child in node.children:
        if isinstance(child, Token):
            label = tree.Word(str(child)[1:], _span(child))
        elif child.data == "action":
            action, action_span = Action(str(child.children[0])), _span(child.children[0])
            if len(child.children) == 2:
                limit = build_expression(child.children[1].children[0])
        else:
            condition = build_expression(child.children[0])
    return tree.Rule(_span(node), label, action, action_span, limit, condition)


def _claim(node: _Node) -> tree.Claim:
    if node.data != "outcome":
        return build_expression(node)
    words = [str(t) for t in node.children]
    negated = words[0] == "not"
    return tree.Outcome(_span(node), negated, tuple(Action(w) for w in words[negated:]))


def _constant(token: Token) -> tree.Quantity | tree.Boolean:
    if token.type == "QUANTITY":
        return tree.Quantity(_span(token), str(token))
    return tree.Boolean(_span(token), token.type == "TRUE")


def build_expression(node: _Node) -> tree.Expr:
    """The expression that `node` stands for. One frame per level: nesting is bounded before parsing."""
    children: list[Any] = node.children
    kind = str(node.data)
    if kind in ("quantity", "boolean"):
        return _constant(children[0])
    if kind == "name":
        return tree.Name(_span(node), str(children[0]))
    if kind == "call":
        arguments = []
        for child in children[1:]:
            arguments.append(build_expression(child))  # noqa: PERF401 - a comprehension is one more frame per level
        return tree.Call(_span(node), _word(children[0]), tuple(arguments))
    operands: list[tree.Expr] = []
    operators: list[tree.Word] = []
    for child in children:
        if isinstance(child, Token):
            operators.append(_word(child))
        else:
            operands.append(build_expression(child))
    # Parentheses leave no node, so the span of what is between them does not reach out to them.
    first = operators[0] if kind in _PREFIXED else operands[0]
    span = first.span.to(operands[-1].span)
    if kind in _PREFIXED:
        return _PREFIXED[kind](span, operators[0], operands[0])
    if kind in _JOINED:
        return _JOINED[kind](span, tuple(operands))
    return _CHAINED[kind](span, tuple(operands), tuple(operators))


_PREFIXED: dict[str, type[tree.Not] | type[tree.Negate]] = {"inverse": tree.Not, "negate": tree.Negate}
_JOINED: dict[str, type[tree.AnyOf] | type[tree.AllOf]] = {"any_of": tree.AnyOf, "all_of": tree.AllOf}
_CHAINED: dict[str, type[tree.Compare] | type[tree.SumOf] | type[tree.ProductOf]] = {
    "compare": tree.Compare,
    "sum_of": tree.SumOf,
    "product_of": tree.ProductOf,
}


def _word(token: Token) -> tree.Word:
    return tree.Word(str(token), _span(token))


def _span(node: _Node | Token) -> Span:
    if isinstance(node, Token):
        return Span(node.start_pos or 0, node.end_pos or 0)
    return Span(node.meta.start_pos, node.meta.end_pos)
