"""The whole numbers of a policy as `ast` nodes, and what is certain in the function after each of them.

An attribute of the hit or the step is read where a number first needs it, and kept in a local if it is read again;
so is a let's amount. `State` knows on which ways through the function such a local is set.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass

from kvmove.errors import InternalError
from kvmove.kvpol.checked import Program
from kvmove.kvpol.exact import Ratio
from kvmove.kvpol.nodes import again, balanced, load
from kvmove.kvpol.usage import Usage
from kvmove.kvpol.whole import Const, Least, Local, Magnitude, Most, Read, Times, Total, Whole
from kvmove.schema import Scope, Variable


@dataclass(frozen=True, slots=True)
class State:
    """What is certain at a place in the function: which locals are set, and which estimates are known."""

    bound: frozenset[str] = frozenset()
    known: frozenset[Variable] = frozenset()

    def with_local(self, name: str) -> State:
        return State(self.bound | {name}, self.known)

    def with_known(self, v: Variable) -> State:
        return State(self.bound, self.known | {v})

    def met(self, other: State) -> State:
        """What is certain after either of two ways."""
        return State(self.bound & other.bound, self.known & other.known)


def variable_local(v: Variable) -> str:
    """The local that keeps an attribute of the hit or the step."""
    return f"v_{v.attribute}"


def let_local(let: int, part: str) -> str:
    """The local that keeps a part of a let's value."""
    return f"l{let}_{part}"


class AmountNodes:
    """The numbers of one function; what is read once is written where it is read, and gets no local."""

    def __init__(self, program: Program, usage: Usage) -> None:
        self._program, self._usage = program, usage
        self._temporaries = 0

    def whole(self, x: Whole, state: State) -> tuple[ast.expr, State]:  # noqa: PLR0911 - one return for each kind
        """An integer's node; the state after it, whatever the value is."""
        match x:
            case Const():
                return ast.Constant(x.low), state
            case Read():
                return self.read(x.variable, state)
            case Local():
                return self._local(x, state)
            case Total():
                return self._total(x, state)
            case Times():
                nodes, state = self._wholes(x.factors, state)
                if x.constant not in (1, -1):
                    nodes.append(ast.Constant(x.constant))
                node = balanced(ast.Mult(), nodes)
                return (ast.UnaryOp(ast.USub(), node) if x.constant == -1 else node), state
            case Least(items=items) | Most(items=items):
                return self._extreme(items, ast.LtE() if isinstance(x, Least) else ast.GtE(), state)
            case Magnitude():
                node, state = self.whole(x.item, state)
                node, name = self._kept(node)
                test = ast.Compare(node, [ast.GtE()], [ast.Constant(0)])
                return ast.IfExp(test, load(name), ast.UnaryOp(ast.USub(), load(name))), state
        raise InternalError(f"no code for {type(x).__name__}")

    def read(self, v: Variable, state: State) -> tuple[ast.expr, State]:
        """The node of a variable's value, which is None where it is unknown; the state after it."""
        name = variable_local(v)
        if name in state.bound:
            return load(name), state
        record = "hit" if v.scope is Scope.HIT else "step"
        node = ast.Attribute(ast.Name(record, ast.Load()), v.attribute, ast.Load())
        if self._usage.reads[v] == 1:
            return node, state
        return ast.NamedExpr(ast.Name(name, ast.Store()), node), state.with_local(name)

    def _wholes(self, items: Sequence[Whole], state: State) -> tuple[list[ast.expr], State]:
        nodes = []
        for item in items:
            node, state = self.whole(item, state)
            nodes.append(node)
        return nodes, state

    def _total(self, x: Total, state: State) -> tuple[ast.expr, State]:
        plus, state = self._wholes(x.plus, state)
        minus, state = self._wholes(x.minus, state)
        if x.constant > 0 or not plus:
            plus.append(ast.Constant(x.constant))
        elif x.constant < 0:
            minus.append(ast.Constant(-x.constant))
        node = balanced(ast.Add(), plus)
        return (ast.BinOp(node, ast.Sub(), balanced(ast.Add(), minus)) if minus else node), state

    def _extreme(self, items: Sequence[Whole], operator: ast.cmpop, state: State) -> tuple[ast.expr, State]:
        # A comparison of two locals takes a quarter of the time of a call of `min`, and needs no builtins.
        nodes, state = self._wholes(items, state)
        while len(nodes) > 1:
            paired: list[ast.expr] = []
            for i in range(0, len(nodes) - 1, 2):
                (first, a), (second, b) = self._kept(nodes[i]), self._kept(nodes[i + 1])
                paired.append(ast.IfExp(ast.Compare(first, [operator], [second]), again(first, a), again(second, b)))
            nodes = paired + nodes[len(nodes) & ~1 :]
        return nodes[0], state

    def _kept(self, node: ast.expr) -> tuple[ast.expr, str]:
        """A node whose value can be had again from the local that is named."""
        if isinstance(node, ast.Name):
            return node, node.id
        if isinstance(node, ast.NamedExpr):
            return node, node.target.id
        if isinstance(node, ast.Constant):
            return node, ""
        self._temporaries += 1
        name = f"t{self._temporaries}"
        return ast.NamedExpr(ast.Name(name, ast.Store()), node), name

    def _local(self, x: Local, state: State) -> tuple[ast.expr, State]:
        part = "denominator" if x.denominator else "numerator"
        name = let_local(x.let, part)
        if name in state.bound:
            return load(name), state
        value = self._program.lets[x.let].value
        if not isinstance(value, Ratio):
            raise InternalError("a let that is a condition is used as an amount")
        node, state = self.whole(value.denominator if x.denominator else value.numerator, state)
        if self._usage.lets[x.let, part] == 1:
            return node, state
        return ast.NamedExpr(ast.Name(name, ast.Store()), node), state.with_local(name)
