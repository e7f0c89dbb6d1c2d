"""The conditions of a policy as `ast` nodes, and what is certain in the function where one is true and where not."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass

from kvmove.errors import InternalError
from kvmove.kvpol import checked
from kvmove.kvpol.amount_nodes import AmountNodes, State, let_local
from kvmove.kvpol.checked import Condition, LetHolds, Program
from kvmove.kvpol.exact import Ratio
from kvmove.kvpol.nodes import is_none, joined, load
from kvmove.schema import Variable

_COMPARE: dict[str, type[ast.cmpop]] = {
    "<": ast.Lt, "<=": ast.LtE, ">": ast.Gt, ">=": ast.GtE, "==": ast.Eq, "!=": ast.NotEq,
}  # fmt: skip

NOTHING: ast.expr = ast.Constant(True)  # the node of a test with nothing to test


@dataclass(frozen=True, slots=True)
class Test:
    """A condition's node, and what is certain after it was true or false."""

    node: ast.expr
    if_true: State
    if_false: State


class ConditionNodes:
    """The conditions of one function, whose numbers are `amounts`."""

    def __init__(self, program: Program, amounts: AmountNodes) -> None:
        self._program, self._amounts = program, amounts

    def condition(self, condition: Condition, state: State) -> Test:
        """Whether `condition` holds."""
        match condition:
            case checked.Truth(value):
                return Test(ast.Constant(value), state, state)
            case checked.Compare():
                return self._all([condition], condition.needs, state)
            case checked.Known(variables, negated):
                return self._known(variables, negated, state)
            case checked.LetHolds():
                return self._let_holds(condition, state)
            case checked.Every(items):
                return self._all(items, (), state)
        return self._any(condition.items, state)

    def all_known(self, needs: Sequence[Variable], state: State) -> Test:
        """Whether these estimates are known; the test is `NOTHING` where that is certain."""
        return self._all([], needs, state)

    def _let_holds(self, condition: LetHolds, state: State) -> Test:
        name = let_local(condition.let, "opposite" if condition.negated else "condition")
        if name in state.bound:
            return Test(load(name), state, state)
        value = self._program.lets[condition.let].value
        if isinstance(value, Ratio):
            raise InternalError("a let that is an amount is used as a condition")
        return self.condition(checked.opposite(value) if condition.negated else value, state)

    def _all(self, items: Sequence[Condition], needs: Sequence[Variable], state: State) -> Test:
        """Whether `needs` are known and then all `items` hold."""
        nodes: list[ast.expr] = []
        failed: State | None = None
        for v in needs:
            if v not in state.known:
                node, state = self._amounts.read(v, state)
                nodes.append(is_none(node, negated=True))
                failed = state if failed is None else failed.met(state)
                state = state.with_known(v)
        for item in items:
            if isinstance(item, checked.Compare) and (missing := [v for v in item.needs if v not in state.known]):
                test = self._all([item], missing, state)
            elif isinstance(item, checked.Compare):
                test = self._compare(item, state)
            else:
                test = self.condition(item, state)
            nodes.append(test.node)
            failed = test.if_false if failed is None else failed.met(test.if_false)
            state = test.if_true
        if not nodes:
            return Test(NOTHING, state, state)
        return Test(joined(ast.And(), nodes), state, failed or state)

    def _any(self, items: Sequence[Condition], state: State) -> Test:
        nodes: list[ast.expr] = []
        held: State | None = None
        for item in items:
            test = self.condition(item, state)
            nodes.append(test.node)
            held = test.if_true if held is None else held.met(test.if_true)
            state = test.if_false
        return Test(joined(ast.Or(), nodes), held or state, state)

    def _known(self, variables: Sequence[Variable], negated: bool, state: State) -> Test:
        known = self.all_known(variables, state)
        if known.node is NOTHING:
            return Test(ast.Constant(not negated), state, state)
        if not negated:
            return known
        # `not (a and b)` as `a is None or b is None` is no faster, so the node is simply turned round.
        return Test(ast.UnaryOp(ast.Not(), known.node), known.if_false, known.if_true)

    def _compare(self, c: checked.Compare, state: State) -> Test:
        left, state = self._amounts.whole(c.left, state)
        right, state = self._amounts.whole(c.right, state)
        return Test(ast.Compare(left, [_COMPARE[c.operator]()], [right]), state, state)
