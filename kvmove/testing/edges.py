"""Where a policy can change its mind: the amounts that are written in it, and the variables that it reads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, floor
from typing import TYPE_CHECKING

from kvmove import schema
from kvmove.kvpol import tree
from kvmove.kvpol.trace import names
from kvmove.kvpol.units import OF_SCHEMA, TYPES, Dimension, parse_quantity

if TYPE_CHECKING:
    from kvmove.kvpol.policy import Policy

_MOST = 64  # amounts of one unit that are kept


@dataclass(frozen=True, slots=True)
class Edges:
    """What to vary, and where, to find the cases that a policy tells apart.

    Attributes:
        amounts: by unit, the amounts that the policy has, and those one below and one above; canonical units.
        reads: the variables that its rules, lets and asserts read, in the order of the schema.
        has_limits: whether a rule loads leading blocks only, so that it matters where a hit can be cut.
    """

    amounts: dict[schema.Unit, tuple[int, ...]]
    reads: tuple[schema.Variable, ...]
    has_limits: bool = False

    def of(self, v: schema.Variable, most: int) -> list[int]:
        """The amounts that variable `v`, at most `most`, can be put at; those nearest to zero first."""
        return [a for a in self.amounts.get(v.unit, ()) if v.low <= a <= min(v.high, most)]


NO_EDGES = Edges({}, ())


def edges_of(*policies: Policy, claims: tuple[tree.Expr, ...] = ()) -> Edges:
    """The edges of `policies` and of conditions about them."""
    found: dict[Dimension, set[int]] = {}
    read: set[str] = set()
    for policy in policies:
        for amount, dimension in _params(policy):
            found.setdefault(dimension, set()).update(_around(amount))
        for expr in _expressions(policy.analysis.file):
            read |= names(expr)
            for amount, dimension in _quantities(expr):
                found.setdefault(dimension, set()).update(_around(amount))
    for expr in claims:
        read |= names(expr)
        for amount, dimension in _quantities(expr):
            found.setdefault(dimension, set()).update(_around(amount))
    amounts = {
        unit: tuple(sorted(found.get(dimension, ()), key=lambda a: (abs(a), a))[:_MOST])
        for unit, dimension in OF_SCHEMA.items()
    }
    has_limits = any(rule.limit is not None for policy in policies for rule in policy.analysis.file.rules)
    return Edges(amounts, tuple(v for v in schema.VARIABLES if v.name in read), has_limits)


def _around(amount: Fraction) -> Iterator[int]:
    yield from (floor(amount) - 1, floor(amount), ceil(amount), ceil(amount) + 1)


def _params(policy: Policy) -> Iterator[tuple[Fraction, Dimension]]:
    """The effective values of params, an operator's included."""
    types = {s.name.text: TYPES.get(s.type.text) for s in policy.analysis.file.statements if isinstance(s, tree.Param)}
    for name, value in policy.program.params.items():
        dimension = types.get(name) or (OF_SCHEMA[schema.Unit.BYTES] if name == "budget" else None)
        if dimension is not None and not isinstance(value, bool):
            yield value, dimension


def _expressions(file: tree.File) -> Iterator[tree.Expr]:
    for statement in file.statements:
        match statement:
            case tree.Let(value=value):
                yield value
            case tree.Rule(limit=limit, condition=condition):
                yield from (part for part in (limit, condition) if part is not None)
            case tree.Assert(premise=premise, conclusion=conclusion):
                yield from (p for p in (premise, conclusion) if p is not None and not isinstance(p, tree.Outcome))


def _quantities(expr: tree.Expr) -> Iterator[tuple[Fraction, Dimension]]:
    waiting: list[tree.Expr] = [expr]
    while waiting:
        match waiting.pop():
            case tree.Quantity(text=text):
                yield parse_quantity(text)
            case tree.Negate(operand=part) | tree.Not(item=part):
                waiting.append(part)
            case tree.Call(arguments=parts) | tree.AllOf(items=parts) | tree.AnyOf(items=parts):
                waiting += parts
            case tree.SumOf(operands=parts) | tree.ProductOf(operands=parts) | tree.Compare(operands=parts):
                waiting += parts
