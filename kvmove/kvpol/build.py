"""The node of `kvmove.kvpol.tree` for each rule of the grammar, from the nodes and tokens that the rule keeps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from kvmove.kvpol import tree
from kvmove.kvpol.lexer import Token
from kvmove.kvpol.source import Span
from kvmove.records import Action

# From what a rule keeps, in order, and all that it covers: from its first token to its last, left out or not.
Builder = Callable[[list[Any], Span], Any]


class _Decision(NamedTuple):
    """A rule's action with its limit."""

    word: Token
    limit: tree.Expr | None


def _header(children: list[Any], span: Span) -> tree.Header:
    return tree.Header(span, children[0].text[1:-1])


def _param(children: list[Any], span: Span) -> tree.Param:
    negative = children[2].kind == "MINUS"
    return tree.Param(span, _word(children[0]), _word(children[1]), _constant(children[-1]), negative)


def _let(children: list[Any], span: Span) -> tree.Let:
    return tree.Let(span, _word(children[0]), children[1])


def _rule(children: list[Any], span: Span) -> tree.Rule:
    label = tree.Word(children[0].text[1:], children[0].span) if isinstance(children[0], Token) else None
    at = 0 if label is None else 1
    decision: _Decision = children[at]
    condition = children[at + 1] if len(children) > at + 1 else None
    return tree.Rule(span, label, Action(decision.word.text), decision.word.span, decision.limit, condition)


def _action(children: list[Any], span: Span) -> _Decision:
    return _Decision(children[0], children[1] if len(children) == 2 else None)


def _assertion(children: list[Any], span: Span) -> tree.Assert:
    return tree.Assert(span, children[0] if len(children) == 2 else None, children[-1])


def _outcome(children: list[Any], span: Span) -> tree.Outcome:
    negated = children[0].kind == "NOT"
    return tree.Outcome(span, negated, tuple(Action(t.text) for t in children[negated:]))


def _call(children: list[Any], span: Span) -> tree.Call:
    return tree.Call(span, _word(children[0]), tuple(children[1:]))


def _name(children: list[Any], span: Span) -> tree.Name:
    return tree.Name(span, children[0].text)


def _literal(children: list[Any], span: Span) -> tree.Quantity | tree.Boolean:
    return _constant(children[0])


# Parentheses leave no node, so the span of what is between them does not reach out to them: the spans below go from
# what the node has first to what it has last.


def _joined(kind: type[tree.AnyOf] | type[tree.AllOf]) -> Builder:
    def build(children: list[Any], span: Span) -> tree.Expr:
        return kind(children[0].span.to(children[-1].span), tuple(children))

    return build


def _chained(kind: type[tree.Compare] | type[tree.SumOf] | type[tree.ProductOf]) -> Builder:
    def build(children: list[Any], span: Span) -> tree.Expr:
        operands, operators = tuple(children[::2]), tuple(map(_word, children[1::2]))
        return kind(operands[0].span.to(operands[-1].span), operands, operators)

    return build


def _prefixed(kind: type[tree.Not] | type[tree.Negate]) -> Builder:
    def build(children: list[Any], span: Span) -> tree.Expr:
        operator, operand = children
        return kind(operator.span.to(operand.span), _word(operator), operand)

    return build


def _only(children: list[Any], span: Span) -> Any:
    return children[0]


def _all(children: list[Any], span: Span) -> Sequence[Any]:
    return children


def _constant(token: Token) -> tree.Quantity | tree.Boolean:
    if token.kind == "QUANTITY":
        return tree.Quantity(token.span, token.text)
    return tree.Boolean(token.span, token.kind == "TRUE")


def _word(token: Token) -> tree.Word:
    return tree.Word(token.text, token.span)


BUILDERS: dict[str, Builder] = {
    "start": _all,
    "header": _header,
    "param": _param,
    "let": _let,
    "rule": _rule,
    "condition": _only,
    "action": _action,
    "limit": _only,
    "assertion": _assertion,
    "outcome": _outcome,
    "any_of": _joined(tree.AnyOf),
    "all_of": _joined(tree.AllOf),
    "inverse": _prefixed(tree.Not),
    "compare": _chained(tree.Compare),
    "sum_of": _chained(tree.SumOf),
    "product_of": _chained(tree.ProductOf),
    "negate": _prefixed(tree.Negate),
    "quantity": _literal,
    "name": _name,
    "boolean": _literal,
    "call": _call,
}
