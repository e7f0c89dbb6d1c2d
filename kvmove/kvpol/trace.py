"""Why a policy decides what it decides: every rule's condition taken apart, with the values it was decided by.

It walks the tree as the evaluator does, slowly, and says what the evaluator says. A condition is true, false or
unknown here, and a rule matches where it is true. That is the language's rule that a comparison with an unknown
estimate and its opposite are both false: `and`, `or` and `not` never make an unknown true.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from kvmove import schema
from kvmove.errors import InternalError
from kvmove.kvpol import tree
from kvmove.kvpol.evaluate import HOLDS, Situation
from kvmove.kvpol.units import Dimension, show
from kvmove.kvpol.written import written
from kvmove.records import Action

if TYPE_CHECKING:
    from kvmove.kvpol.policy import Policy

Truth = bool | None  # None: unknown


@dataclass(frozen=True, slots=True)
class Operand:
    """An amount: as written, and its value in canonical units (bytes, tokens, nanoseconds); None is unknown."""

    text: str
    value: Fraction | None
    dimension: Dimension
    is_constant: bool  # written as a number, so that its value says nothing new
    unknown: tuple[str, ...] = ()  # the estimates that it reads and that are unknown

    def __str__(self) -> str:
        return "unknown" if self.value is None else show(self.value, self.dimension)


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition and what it is made of.

    Attributes:
        text: as written, on one line.
        truth: true, false, or None where it is unknown.
        kind: how it is made of its parts: `and`, `or`, `not`; or `let` (its value is among the trace's lets),
            `comparison`, `known` and `constant`, which have no parts.
        parts: the conditions that it joins, in order.
        operands: the amounts that a comparison compares, and the amount that `known` asks about.
        unknown: the estimates that it reads and that are unknown.
    """

    text: str
    truth: Truth
    kind: str
    parts: tuple[Condition, ...] = ()
    operands: tuple[Operand, ...] = ()
    unknown: tuple[str, ...] = ()

    @property
    def conjuncts(self) -> tuple[Condition, ...]:
        """The conditions that all have to be true: those that the top `and` joins, or this one alone."""
        return self.parts if self.kind == "and" else (self,)

    def first_untrue(self) -> Condition | None:
        """The first conjunct that is false or unknown; None where the condition is true."""
        return next((c for c in self.conjuncts if not c.truth), None)


@dataclass(frozen=True, slots=True)
class RuleTrace:
    """One rule: whether it matches, also if an earlier one decides, and why."""

    index: int
    label: str | None
    action: Action
    text: str  # on one line
    line: int | None  # counted from 1; None for the implicit last rule
    condition: Condition | None  # None: it has none
    limit: Operand | None  # of an `at most`
    blocks: int | None  # leading blocks that fit under the limit; None where it has none

    @property
    def matches(self) -> bool:
        """Whether its condition is true, and a block fits under its limit if it has one."""
        return self.blocks != 0 and (self.condition is None or self.condition.truth is True)

    def why_not(self) -> str | None:
        """The first thing that keeps it from matching; None where nothing does.

        That is a part of its condition as it is written, with the estimates that are unknown if it is unknown, or
        what is wrong with its limit. It holds no value of this hit, so that it can be counted.
        """
        untrue = None if self.condition is None else self.condition.first_untrue()
        if untrue is not None:
            return f"{untrue.text} [unknown: {', '.join(untrue.unknown)}]" if untrue.truth is None else untrue.text
        if self.blocks != 0 or self.limit is None:
            return None
        if self.limit.value is None:
            return f"at most {self.limit.text} [unknown: {', '.join(self.limit.unknown)}]"
        return f"at most {self.limit.text} [not one block fits]"


@dataclass(frozen=True, slots=True)
class Trace:
    """A decision of a policy, before any guard rail, and how it came about."""

    rules: tuple[RuleTrace, ...]  # all of them, also after the one that decides; the implicit last rule included
    lets: tuple[tuple[str, Operand | Condition], ...]  # name and value, in the order of the file
    variables: tuple[Operand, ...]  # those that rules and lets read, in the order of the schema
    verdict: int  # `(blocks << 8) | rule`; 0 blocks are the whole hit

    @property
    def rule(self) -> RuleTrace:
        """The rule that decides: the first that matches."""
        return self.rules[self.verdict & 0xFF]


def trace(policy: Policy, hit: Any, step: Any) -> Trace:
    """How `policy` decides about `hit` in `step`: a `Hit` and a `StepState`, or what has their attributes."""
    file, source = policy.analysis.file, policy.analysis.source
    tracer = _Tracer(Situation.of(file, policy.program.params, hit, step))
    lets = tuple((s.name.text, tracer.let(s)) for s in file.statements if isinstance(s, tree.Let))
    rules = [tracer.rule(rule, i, source.line_of(rule.span.start), hit) for i, rule in enumerate(file.rules)]
    if not policy.program.ends_itself:
        rules.append(RuleTrace(len(rules), None, Action.ASYNC, str(Action.ASYNC), None, None, None, None))
    decides = next(r for r in rules if r.matches)
    is_whole = decides.blocks is None or decides.blocks == hit.blocks
    verdict = decides.index if is_whole else (decides.blocks or 0) << 8 | decides.index
    return Trace(tuple(rules), lets, tuple(tracer.variables(file)), verdict)


class _Tracer:
    def __init__(self, here: Situation) -> None:
        self.here = here
        # A let's condition is worked out once: lets that each use the one before twice would double the work.
        self.lets: dict[str, Condition] = {}
        self.unknown: dict[str, frozenset[str]] = {
            v.name: frozenset({v.name}) if v.optional and here.amounts[v.name] is None else frozenset()
            for v in schema.VARIABLES
            if v.scope is not schema.Scope.OUTCOME
        }

    def let(self, let: tree.Let) -> Operand | Condition:
        """The value of a let; those before it have been asked for."""
        name = let.name.text
        if self.here.is_condition(let.value):
            value = self.lets[name] = self.condition(let.value)
            return value
        self.unknown[name] = self._unknown(let.value)
        return self.operand(let.value)

    def rule(self, rule: tree.Rule, index: int, line: int, hit: Any) -> RuleTrace:
        limit = None if rule.limit is None else self.operand(rule.limit)
        blocks = None if rule.limit is None else self.here.blocks_within(rule.limit, hit)
        condition = None if rule.condition is None else self.condition(rule.condition)
        label = rule.label.text if rule.label else None
        words = [f"@{label}" if label else "", str(rule.action), f"at most {limit.text}" if limit else ""]
        words.append(f"if {condition.text}" if condition else "")
        text = " ".join(word for word in words if word)
        return RuleTrace(index, label, rule.action, text, line, condition, limit, blocks)

    def variables(self, file: tree.File) -> Iterator[Operand]:
        """The variables that rules and lets read."""
        read: set[str] = set()
        for statement in file.statements:
            if isinstance(statement, tree.Let):
                read |= names(statement.value)
            elif isinstance(statement, tree.Rule):
                for part in (statement.limit, statement.condition):
                    read |= names(part) if part is not None else set()
        for v in schema.VARIABLES:
            if v.name in read:
                unknown = tuple(self.unknown[v.name])
                yield Operand(v.name, self.here.amounts[v.name], self.here.dimensions[v.name], False, unknown)

    def operand(self, expr: tree.Expr) -> Operand:
        value, dimension = self.here.amount(expr), self.here.dimension(expr)
        unknown = tuple(sorted(self._unknown(expr)))
        return Operand(written(expr), value, dimension, isinstance(expr, tree.Quantity), unknown)

    def condition(self, expr: tree.Expr) -> Condition:  # noqa: PLR0911 - one return for each kind
        text = written(expr)
        match expr:
            case tree.Boolean(value=value):
                return Condition(text, value, "constant")
            case tree.Name(name=name):
                meaning = self.here.conditions[name]
                if isinstance(meaning, bool):
                    return Condition(text, meaning, "constant")
                return Condition(text, self.lets[name].truth, "let", unknown=self.lets[name].unknown)
            case tree.Call(arguments=arguments):
                asked = self.operand(arguments[0])
                return Condition(text, asked.value is not None, "known", (), (asked,))
            case tree.Not(item=item):
                part = self.condition(item)
                return _joined(text, None if part.truth is None else not part.truth, "not", [part])
            case tree.AllOf(items=items):
                parts = [self.condition(item) for item in items]
                return _joined(text, _all([p.truth for p in parts]), "and", parts)
            case tree.AnyOf(items=items):
                parts = [self.condition(item) for item in items]
                none_holds = _all([None if p.truth is None else not p.truth for p in parts])
                return _joined(text, None if none_holds is None else not none_holds, "or", parts)
            case tree.Compare(operands=operands, operators=operators):
                amounts = [self.operand(operand) for operand in operands]
                pairs = zip(operators, pairwise(amounts), strict=True)
                truth = _all([_compared(operator.text, left, right) for operator, (left, right) in pairs])
                unknown = tuple(sorted({name for a in amounts for name in a.unknown})) if truth is None else ()
                return Condition(text, truth, "comparison", (), tuple(amounts), unknown)
        raise InternalError(f"no condition: {expr}")

    def _unknown(self, expr: tree.Expr) -> frozenset[str]:
        return frozenset().union(*(self.unknown.get(name, frozenset()) for name in names(expr)))


def _joined(text: str, truth: Truth, kind: str, parts: list[Condition]) -> Condition:
    unknown = sorted({name for p in parts if p.truth is None for name in p.unknown}) if truth is None else ()
    return Condition(text, truth, kind, tuple(parts), (), tuple(unknown))


def _compared(operator: str, left: Operand, right: Operand) -> Truth:
    if left.value is None or right.value is None:
        return None
    return bool(HOLDS[operator](left.value, right.value))


def _all(truths: list[Truth]) -> Truth:
    """False where one is false, else unknown where one is unknown."""
    if False in truths:
        return False
    return None if None in truths else True


def names(expr: tree.Expr) -> set[str]:
    """Every name that an expression reads itself."""
    match expr:
        case tree.Name(name=name):
            return {name}
        case tree.Negate(operand=operand) | tree.Not(item=operand):
            return names(operand)
        case tree.Call(arguments=parts) | tree.AllOf(items=parts) | tree.AnyOf(items=parts):
            return set().union(*(names(part) for part in parts))
        case tree.SumOf(operands=parts) | tree.ProductOf(operands=parts) | tree.Compare(operands=parts):
            return set().union(*(names(part) for part in parts))
    return set()
