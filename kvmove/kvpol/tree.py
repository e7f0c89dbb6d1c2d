"""The tree of a policy as it was written: frozen nodes, each with its span. Names are not resolved yet.

Nodes compare by identity: two `bytes` in a file are two nodes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kvmove.kvpol.source import Span
from kvmove.records import Action


@dataclass(frozen=True, slots=True, eq=False)
class Word:
    """A name, operator or keyword with its place."""

    text: str
    span: Span


@dataclass(frozen=True, slots=True, eq=False)
class Quantity:
    """A number with its unit, as written: `64MiB`, `50%`, `3`."""

    span: Span
    text: str


@dataclass(frozen=True, slots=True, eq=False)
class Boolean:
    """`true` or `false`."""

    span: Span
    value: bool


@dataclass(frozen=True, slots=True, eq=False)
class Name:
    """A variable, a param or a let."""

    span: Span
    name: str


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """A function applied to arguments."""

    span: Span
    function: Word
    arguments: tuple[Expr, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Negate:
    """Unary minus."""

    span: Span
    operator: Word
    operand: Expr


@dataclass(frozen=True, slots=True, eq=False)
class SumOf:
    """`a + b - c`: one operator fewer than operands."""

    span: Span
    operands: tuple[Expr, ...]
    operators: tuple[Word, ...]


@dataclass(frozen=True, slots=True, eq=False)
class ProductOf:
    """`a * b / c`: one operator fewer than operands."""

    span: Span
    operands: tuple[Expr, ...]
    operators: tuple[Word, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Compare:
    """`a < b`, or a chain that goes one way, `a < b <= c`: the same as `a < b and b <= c`."""

    span: Span
    operands: tuple[Expr, ...]
    operators: tuple[Word, ...]


@dataclass(frozen=True, slots=True, eq=False)
class AllOf:
    """`a and b and c`."""

    span: Span
    items: tuple[Expr, ...]


@dataclass(frozen=True, slots=True, eq=False)
class AnyOf:
    """`a or b or c`."""

    span: Span
    items: tuple[Expr, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Not:
    """`not a`."""

    span: Span
    operator: Word
    item: Expr


Expr = Quantity | Boolean | Name | Call | Negate | SumOf | ProductOf | Compare | AllOf | AnyOf | Not


@dataclass(frozen=True, slots=True, eq=False)
class Header:
    """`policy "name"`."""

    span: Span
    name: str


@dataclass(frozen=True, slots=True, eq=False)
class Param:
    """`param small: tokens = 4096tok`."""

    span: Span
    name: Word
    type: Word
    value: Quantity | Boolean
    negative: bool


@dataclass(frozen=True, slots=True, eq=False)
class Let:
    """`let cost = load_time + async_delay`."""

    span: Span
    name: Word
    value: Expr


@dataclass(frozen=True, slots=True, eq=False)
class Rule:
    """`@label sync at most limit if condition`."""

    span: Span
    label: Word | None  # its text is without the `@`
    action: Action
    action_span: Span
    limit: Expr | None
    condition: Expr | None


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """A claim about the decision: it is one of `actions`, or with `negated` none of them."""

    span: Span
    negated: bool
    actions: tuple[Action, ...]


Claim = Expr | Outcome


@dataclass(frozen=True, slots=True, eq=False)
class Assert:
    """`assert conclusion`, or `assert premise implies conclusion`."""

    span: Span
    premise: Claim | None
    conclusion: Claim


Statement = Param | Let | Rule | Assert


@dataclass(frozen=True, slots=True, eq=False)
class File:
    """A whole policy.

    `damaged` has the names that a statement with a syntax error was about to define: a use of such a name is
    no second mistake.
    """

    header: Header | None
    statements: tuple[Statement, ...]
    damaged: frozenset[str] = frozenset()

    @property
    def rules(self) -> Iterator[Rule]:
        """The rules, in order."""
        return (s for s in self.statements if isinstance(s, Rule))
