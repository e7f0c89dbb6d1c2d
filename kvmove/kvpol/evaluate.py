"""Says what a policy decides by walking its tree with fractions: slow, written for reading, and what is correct.

The compiler is tested against this. It takes the tree as written and knows nothing of the compiled form.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce
from itertools import pairwise
from math import floor
from operator import eq, ge, gt, le, lt, ne
from typing import Any

from kvmove import schema
from kvmove.errors import InternalError
from kvmove.kvpol import tree
from kvmove.kvpol.units import NUMBER, OF_SCHEMA, TOKENS, TYPES, Dimension, parse_quantity

HOLDS = {"<": lt, "<=": le, ">": gt, ">=": ge, "==": eq, "!=": ne}
_OPPOSITE = {"<": ge, "<=": gt, ">": le, ">=": lt, "==": ne, "!=": eq}

Amount = Fraction | None  # None: unknown, because it reads an estimate that is


@dataclass(frozen=True, slots=True)
class Evaluator:
    """A policy's tree with the effective values of its params. The tree has passed the checker."""

    file: tree.File
    params: Mapping[str, Fraction | bool]

    def verdict(self, hit: Any, step: Any) -> int:
        """`(blocks << 8) | rule` of the first rule that matches; 0 blocks are the whole hit.

        The number of rules is the index of the implicit last one.
        """
        here = Situation.of(self.file, self.params, hit, step)
        rules = list(self.file.rules)
        for index, rule in enumerate(rules):
            if rule.condition is None or here.holds(rule.condition):
                blocks = hit.blocks if rule.limit is None else here.blocks_within(rule.limit, hit)
                if blocks:
                    return index if blocks == hit.blocks else blocks << 8 | index
        return len(rules)

    def rule(self, hit: Any, step: Any) -> int:
        """The index of the first rule that matches."""
        return self.verdict(hit, step) & 0xFF


@dataclass(frozen=True, slots=True)
class Situation:
    """The values of every name for one hit and one step."""

    amounts: dict[str, Amount]
    conditions: dict[str, tree.Expr | bool]
    dimensions: dict[str, Dimension]

    @classmethod
    def of(cls, file: tree.File, params: Mapping[str, Fraction | bool], hit: Any, step: Any) -> Situation:
        """Read the variables of `hit` and `step`, then work out the lets in order."""
        here = cls({}, {}, {})
        for v in schema.VARIABLES:
            here.dimensions[v.name] = OF_SCHEMA[v.unit]
            if v.scope is not schema.Scope.OUTCOME:
                value = getattr(hit if v.scope is schema.Scope.HIT else step, v.attribute)
                here.amounts[v.name] = None if value is None else Fraction(value)
        for statement in file.statements:
            if isinstance(statement, tree.Param) and statement.name.text not in schema.BY_NAME:
                value = params[statement.name.text]
                if isinstance(value, bool):
                    here.conditions[statement.name.text] = value
                else:
                    here.amounts[statement.name.text] = value
                    here.dimensions[statement.name.text] = TYPES[statement.type.text] or NUMBER
            elif isinstance(statement, tree.Let):
                here._let(statement)
        return here

    def _let(self, let: tree.Let) -> None:
        if self.is_condition(let.value):
            # A condition is kept as it is written: its opposite is not the opposite of its value.
            self.conditions[let.name.text] = let.value
        else:
            self.amounts[let.name.text] = self.amount(let.value)
            self.dimensions[let.name.text] = self.dimension(let.value)

    def is_condition(self, expr: tree.Expr) -> bool:
        """Whether an expression is a condition, and no amount."""
        if isinstance(expr, tree.Name):
            return expr.name in self.conditions
        if isinstance(expr, tree.Call):
            return expr.function.text == "known"
        return isinstance(expr, tree.Boolean | tree.Compare | tree.AllOf | tree.AnyOf | tree.Not)

    def holds(self, expr: tree.Expr, *, opposite: bool = False) -> bool:
        """Whether a condition holds; with `opposite`, whether `not` of it does.

        A comparison with an unknown side does not hold, and neither does its opposite.
        """
        match expr:
            case tree.Boolean(value=value):
                return value != opposite
            case tree.Name(name=name):
                meaning = self.conditions[name]
                return meaning != opposite if isinstance(meaning, bool) else self.holds(meaning, opposite=opposite)
            case tree.Call(arguments=arguments):
                return (self.amount(arguments[0]) is not None) != opposite
            case tree.Not(item=item):
                return self.holds(item, opposite=not opposite)
            case tree.AllOf(items=items) | tree.AnyOf(items=items):
                results = (self.holds(item, opposite=opposite) for item in items)
                return all(results) if isinstance(expr, tree.AllOf) != opposite else any(results)
            case tree.Compare():
                return self._compare(expr, opposite=opposite)
        raise InternalError(f"no condition: {expr}")

    def _compare(self, expr: tree.Compare, *, opposite: bool) -> bool:
        """A chain is its comparisons joined with `and`; the opposite of that is one opposite or the other."""
        meaning = _OPPOSITE if opposite else HOLDS
        sides = pairwise(self.amount(operand) for operand in expr.operands)
        results = [
            left is not None and right is not None and bool(meaning[operator.text](left, right))
            for operator, (left, right) in zip(expr.operators, sides, strict=True)
        ]
        return any(results) if opposite else all(results)

    def blocks_within(self, limit: tree.Expr, hit: Any) -> int:
        """The most leading blocks of `hit` that fit under the limit of an `at most`; 0: not one, or it is unknown.

        A prefix has whole bytes and tokens, so that it fits a limit when it fits the limit rounded down.
        """
        value = self.amount(limit)
        if value is None:
            return 0
        within = hit.blocks_within_tokens if self.dimension(limit) == TOKENS else hit.blocks_within_bytes
        return int(within(floor(value)))

    def dimension(self, expr: tree.Expr) -> Dimension:
        """The unit of an amount. Every part of a sum, and every argument of a function, has the same."""
        match expr:
            case tree.Quantity(text=text):
                return parse_quantity(text)[1]
            case tree.Name(name=name):
                return self.dimensions[name]
            case tree.Negate(operand=operand):
                return self.dimension(operand)
            case tree.Call(arguments=arguments):
                return self.dimension(arguments[0])
            case tree.SumOf(operands=operands):
                return self.dimension(operands[0])
            case tree.ProductOf(operands=operands, operators=operators):
                result = self.dimension(operands[0])
                for operator, operand in zip(operators, operands[1:], strict=True):
                    other = self.dimension(operand)
                    result = result * other if operator.text == "*" else result / other
                return result
        raise InternalError(f"no amount: {expr}")

    def amount(self, expr: tree.Expr) -> Amount:
        """The exact value of an expression with a unit, in canonical units; None when it is unknown."""
        match expr:
            case tree.Quantity(text=text):
                return parse_quantity(text)[0]
            case tree.Name(name=name):
                return self.amounts[name]
            case tree.Negate(operand=operand):
                value = self.amount(operand)
                return None if value is None else -value
            case tree.Call(function=function, arguments=arguments):
                values = self._known_amounts(arguments)
                return None if values is None else _call(function.text, values)
            case tree.SumOf(operands=operands, operators=operators):
                values = self._known_amounts(operands)
                return None if values is None else _fold(values, operators)
            case tree.ProductOf(operands=operands, operators=operators):
                values = self._known_amounts(operands)
                return None if values is None else _fold(values, operators)
        raise InternalError(f"no amount: {expr}")

    def _known_amounts(self, exprs: tuple[tree.Expr, ...]) -> list[Fraction] | None:
        values = [self.amount(e) for e in exprs]
        known = [v for v in values if v is not None]
        return known if len(known) == len(values) else None


def _fold(values: list[Fraction], operators: tuple[tree.Word, ...]) -> Fraction:
    result = values[0]
    for operator, value in zip(operators, values[1:], strict=True):
        match operator.text:
            case "+":
                result += value
            case "-":
                result -= value
            case "*":
                result *= value
            case _:
                result /= value
    return result


def _call(function: str, values: list[Fraction]) -> Fraction:
    match function:
        case "min":
            return reduce(min, values)
        case "max":
            return reduce(max, values)
        case "abs":
            return abs(values[0])
    value, low, high = values
    return min(max(value, low), high)
