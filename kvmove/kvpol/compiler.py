"""A checked policy as one Python function, made from `ast` nodes.

No text of the user's becomes code: the nodes hold integers, names made here and attributes of the records.
The function reads an attribute of the hit or the step when a comparison first needs it, keeps it in a local,
and knows on which ways through the function that local is set; so a rule that matches early pays for nothing
that only later rules read.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any

from kvmove.errors import InternalError
from kvmove.kvpol import checked
from kvmove.kvpol.checked import CheckedRule, Condition, LetHolds, Limit, Program
from kvmove.kvpol.exact import Ratio
from kvmove.kvpol.nodes import again, at_line, balanced, is_none, joined, load, place
from kvmove.kvpol.source import Source
from kvmove.kvpol.units import TOKENS
from kvmove.kvpol.usage import Usage, count_usage
from kvmove.kvpol.whole import ONE, Const, Least, Local, Magnitude, Most, Read, Times, Total, Whole
from kvmove.schema import BY_NAME, Scope, Variable

Decide = Callable[[Any, Any], int]
Admit = Callable[[Any, int], object]
DecideBatch = Callable[[Iterable[Any], Any, Admit], None]

_COMPARE: dict[str, type[ast.cmpop]] = {
    "<": ast.Lt, "<=": ast.LtE, ">": ast.Gt, ">=": ast.GtE, "==": ast.Eq, "!=": ast.NotEq,
}  # fmt: skip


def compile_program(program: Program, source: Source, usage: Usage | None = None) -> Decide:
    """The function `decide(hit, step)` of `program`.

    It reads the attributes of `kvmove.Hit` and `kvmove.StepState` and returns `(blocks << 8) | rule`. For a rule
    with `at most` it calls the hit, which knows what its leading blocks weigh. It has no globals, no builtins and
    no state. `usage` is what `count_usage` gives for `program`, where it is known already.
    """
    return _function(_Compiler(program, source, usage).function(), source)


def compile_batch(program: Program, source: Source, usage: Usage | None = None) -> DecideBatch:
    """The function `decide_batch(hits, step, admit)` of `program`: `admit(hit, verdict)` for each hit, in order.

    Each verdict is that of `decide` for what `step` says when the hit's turn comes; so a hit sees what `admit` did
    about those before it. Only what an admission changes is read for every hit: `CHANGED_BY_ADMISSION`.
    """
    return _function(_BatchCompiler(program, source, usage).function(), source)


# The attributes of a step that an admission may change while a batch is being decided.
CHANGED_BY_ADMISSION = frozenset({"budget_remaining_bytes", "sync_loads"})


def _function(definition: ast.FunctionDef, source: Source) -> FunctionType:
    code = compile(ast.Module([definition], []), f"<policy {source.name}>", "exec")
    body = next((c for c in code.co_consts if isinstance(c, CodeType)), None)
    if body is None:
        raise InternalError("the compiled policy holds no function")
    return FunctionType(body, {"__builtins__": {}}, definition.name)


@dataclass(frozen=True, slots=True)
class _State:
    """What is certain at a place in the function: which locals are set, and which estimates are known."""

    bound: frozenset[str] = frozenset()
    known: frozenset[Variable] = frozenset()

    def with_local(self, name: str) -> _State:
        return _State(self.bound | {name}, self.known)

    def with_known(self, v: Variable) -> _State:
        return _State(self.bound, self.known | {v})

    def met(self, other: _State) -> _State:
        """What is certain after either of two ways."""
        return _State(self.bound & other.bound, self.known & other.known)


@dataclass(frozen=True, slots=True)
class _Test:
    """A condition's node, and what is certain after it was true or false."""

    node: ast.expr
    if_true: _State
    if_false: _State


class _Compiler:
    def __init__(self, program: Program, source: Source, usage: Usage | None) -> None:
        self.program, self.source = program, source
        self.usage: Usage = usage or count_usage(program)
        self.temporaries = Counter[str]()

    def function(self) -> ast.FunctionDef:
        """The definition of `decide`."""
        return _definition("decide", ["hit", "step"], self._rules(_State()))

    def _rules(self, state: _State) -> list[ast.stmt]:
        """What decides about one hit."""
        body: list[ast.stmt] = []
        ended = False
        for index, rule in enumerate(self.program.rules):
            line = self.source.line_of(rule.span.start)
            statements, state, ended = self._rule(rule, index, state)
            # Each rule's nodes carry its line, so that a traceback or a profile points into the policy.
            body += [at_line(s, line) for s in statements]
            if ended:
                break
        if not ended:
            body += [at_line(s, 1) for s in self._decided(ast.Constant(len(self.program.rules)))]
        return body

    def _decided(self, verdict: ast.expr) -> list[ast.stmt]:
        """What ends the decision about a hit."""
        return [ast.Return(verdict)]

    def _rule(self, rule: CheckedRule, index: int, state: _State) -> tuple[list[ast.stmt], _State, bool]:
        verdict: ast.expr = ast.Constant(index)
        if rule.condition == checked.TRUE and rule.limit is None:
            return self._decided(verdict), state, True
        if rule.condition == checked.FALSE:
            return [], state, False
        statements: list[ast.stmt] = []
        for let, part in self.usage.hoisted_for(rule):
            name = _let_local(let, part)
            if name not in state.bound:
                node, state = self._hoisted(let, part, state)
                statements.append(ast.Assign([ast.Name(name, ast.Store())], node))
                state = state.with_local(name)
        test = self._condition(rule.condition, state)
        if rule.limit is not None:
            test = self._fits(test, rule.limit)
            verdict = self._cut(index, test.if_true)
        return [*statements, ast.If(test.node, self._decided(verdict), [])], test.if_false, False

    def _fits(self, test: _Test, limit: Limit) -> _Test:
        """Whether `test` holds and the limit is known and a block fits; `_BLOCKS` is then how many do."""
        guard = self._all([], limit.needs, test.if_true)
        amount, after = self._whole(limit.amount.numerator, guard.if_true)
        if limit.amount.denominator != ONE:
            # Prefixes are whole, so what fits the limit rounded down is what fits the limit.
            divisor, after = self._whole(limit.amount.denominator, after)
            amount = ast.BinOp(amount, ast.FloorDiv(), divisor)
        within = "blocks_within_tokens" if limit.dimension == TOKENS else "blocks_within_bytes"
        call = ast.Call(ast.Attribute(load("hit"), within, ast.Load()), [amount], [])
        blocks = ast.NamedExpr(ast.Name(_BLOCKS, ast.Store()), call)
        always = (test.node, guard.node) if not isinstance(test.node, ast.Constant) else (guard.node,)
        nodes = [*(node for node in always if node is not _NOTHING), blocks]
        failed = test.if_false.met(guard.if_false).met(after)
        return _Test(joined(ast.And(), nodes), after, failed)

    def _cut(self, index: int, state: _State) -> ast.expr:
        """The verdict of a rule whose limit leaves `_BLOCKS`: 0 blocks stand for all of them."""
        every, _ = self._read(BY_NAME["blocks"], state)
        some = ast.BinOp(load(_BLOCKS), ast.LShift(), ast.Constant(8))
        verdict = ast.BinOp(some, ast.BitOr(), ast.Constant(index))
        is_cut = ast.Compare(load(_BLOCKS), [ast.Lt()], [every])
        return ast.IfExp(is_cut, verdict, ast.Constant(index))

    def _hoisted(self, let: int, part: str, state: _State) -> tuple[ast.expr, _State]:
        """A let's value computed ahead of a rule; 0 where it is unknown, which nothing reads."""
        value = self.program.lets[let].value
        if not isinstance(value, Ratio):
            condition = checked.opposite(value) if part == "opposite" else value
            test = self._condition(condition, state)
            return test.node, test.if_true.met(test.if_false)
        whole = value.denominator if part == "denominator" else value.numerator
        guard = self._all([], self.program.lets[let].needs, state)
        node, after = self._whole(whole, guard.if_true)
        if guard.node is _NOTHING:
            return node, after
        return ast.IfExp(guard.node, node, ast.Constant(0)), after.met(guard.if_false)

    def _condition(self, condition: Condition, state: _State) -> _Test:
        match condition:
            case checked.Truth(value):
                return _Test(ast.Constant(value), state, state)
            case checked.Compare():
                return self._all([condition], condition.needs, state)
            case checked.Known(variables, negated):
                return self._known(variables, negated, state)
            case checked.LetHolds():
                return self._let_holds(condition, state)
            case checked.Every(items):
                return self._all(items, (), state)
        return self._any(condition.items, state)

    def _let_holds(self, condition: LetHolds, state: _State) -> _Test:
        name = _let_local(condition.let, "opposite" if condition.negated else "condition")
        if name in state.bound:
            return _Test(load(name), state, state)
        value = self.program.lets[condition.let].value
        if isinstance(value, Ratio):
            raise InternalError("a let that is an amount is used as a condition")
        return self._condition(checked.opposite(value) if condition.negated else value, state)

    def _all(self, items: Sequence[Condition], needs: Sequence[Variable], state: _State) -> _Test:
        """Whether `needs` are known and then all `items` hold."""
        nodes: list[ast.expr] = []
        failed: _State | None = None
        for v in needs:
            if v not in state.known:
                node, state = self._read(v, state)
                nodes.append(is_none(node, negated=True))
                failed = state if failed is None else failed.met(state)
                state = state.with_known(v)
        for item in items:
            if isinstance(item, checked.Compare) and (missing := [v for v in item.needs if v not in state.known]):
                test = self._all([item], missing, state)
            elif isinstance(item, checked.Compare):
                test = self._compare(item, state)
            else:
                test = self._condition(item, state)
            nodes.append(test.node)
            failed = test.if_false if failed is None else failed.met(test.if_false)
            state = test.if_true
        if not nodes:
            return _Test(_NOTHING, state, state)
        return _Test(joined(ast.And(), nodes), state, failed or state)

    def _any(self, items: Sequence[Condition], state: _State) -> _Test:
        nodes: list[ast.expr] = []
        held: _State | None = None
        for item in items:
            test = self._condition(item, state)
            nodes.append(test.node)
            held = test.if_true if held is None else held.met(test.if_true)
            state = test.if_false
        return _Test(joined(ast.Or(), nodes), held or state, state)

    def _known(self, variables: Sequence[Variable], negated: bool, state: _State) -> _Test:
        known = self._all([], variables, state)
        if known.node is _NOTHING:
            return _Test(ast.Constant(not negated), state, state)
        if not negated:
            return known
        # `not (a and b)` as `a is None or b is None` is no faster, so the node is simply turned round.
        return _Test(ast.UnaryOp(ast.Not(), known.node), known.if_false, known.if_true)

    def _compare(self, c: checked.Compare, state: _State) -> _Test:
        left, state = self._whole(c.left, state)
        right, state = self._whole(c.right, state)
        return _Test(ast.Compare(left, [_COMPARE[c.operator]()], [right]), state, state)

    def _whole(self, x: Whole, state: _State) -> tuple[ast.expr, _State]:  # noqa: PLR0911 - one return for each kind
        """An integer's node; the state after it, whatever the value is."""
        match x:
            case Const():
                return ast.Constant(x.low), state
            case Read():
                return self._read(x.variable, state)
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
                node, state = self._whole(x.item, state)
                node, name = self._kept(node)
                test = ast.Compare(node, [ast.GtE()], [ast.Constant(0)])
                return ast.IfExp(test, load(name), ast.UnaryOp(ast.USub(), load(name))), state
        raise InternalError(f"no code for {type(x).__name__}")

    def _wholes(self, items: Sequence[Whole], state: _State) -> tuple[list[ast.expr], _State]:
        nodes = []
        for item in items:
            node, state = self._whole(item, state)
            nodes.append(node)
        return nodes, state

    def _total(self, x: Total, state: _State) -> tuple[ast.expr, _State]:
        plus, state = self._wholes(x.plus, state)
        minus, state = self._wholes(x.minus, state)
        if x.constant > 0 or not plus:
            plus.append(ast.Constant(x.constant))
        elif x.constant < 0:
            minus.append(ast.Constant(-x.constant))
        node = balanced(ast.Add(), plus)
        return (ast.BinOp(node, ast.Sub(), balanced(ast.Add(), minus)) if minus else node), state

    def _extreme(self, items: Sequence[Whole], operator: ast.cmpop, state: _State) -> tuple[ast.expr, _State]:
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
        self.temporaries["t"] += 1
        name = f"t{self.temporaries['t']}"
        return ast.NamedExpr(ast.Name(name, ast.Store()), node), name

    def _read(self, v: Variable, state: _State) -> tuple[ast.expr, _State]:
        name = f"v_{v.attribute}"
        if name in state.bound:
            return load(name), state
        record = "hit" if v.scope is Scope.HIT else "step"
        node = ast.Attribute(ast.Name(record, ast.Load()), v.attribute, ast.Load())
        if self.usage.reads[v] == 1:
            return node, state
        return ast.NamedExpr(ast.Name(name, ast.Store()), node), state.with_local(name)

    def _local(self, x: Local, state: _State) -> tuple[ast.expr, _State]:
        part = "denominator" if x.denominator else "numerator"
        name = _let_local(x.let, part)
        if name in state.bound:
            return load(name), state
        value = self.program.lets[x.let].value
        if not isinstance(value, Ratio):
            raise InternalError("a let that is a condition is used as an amount")
        node, state = self._whole(value.denominator if x.denominator else value.numerator, state)
        if self.usage.lets[x.let, part] == 1:
            return node, state
        return ast.NamedExpr(ast.Name(name, ast.Store()), node), state.with_local(name)


class _BatchCompiler(_Compiler):
    """The same rules in a loop, with what no admission changes read once ahead of it."""

    def function(self) -> ast.FunctionDef:
        """The definition of `decide_batch`."""
        ahead: list[ast.stmt] = []
        state = _State()
        for v in sorted(self.usage.reads, key=lambda v: v.attribute):
            if v.scope is Scope.STEP and v.attribute not in CHANGED_BY_ADMISSION:
                name = f"v_{v.attribute}"
                ahead.append(
                    ast.Assign([ast.Name(name, ast.Store())], ast.Attribute(load("step"), v.attribute, ast.Load()))
                )
                state = state.with_local(name)
        # Locals of the hit before are still set, but no way through the rules counts on them.
        loop = ast.For(ast.Name("hit", ast.Store()), load("hits"), [], [])
        at_line(loop, 1)
        loop.body = self._rules(state)  # each rule is on its own line
        return _definition("decide_batch", ["hits", "step", "admit"], [at_line(s, 1) for s in ahead] + [loop])

    def _decided(self, verdict: ast.expr) -> list[ast.stmt]:
        return [ast.Expr(ast.Call(load("admit"), [load("hit"), verdict], [])), ast.Continue()]


def _definition(name: str, arguments: list[str], body: list[ast.stmt]) -> ast.FunctionDef:
    parameters = [ast.arg(a) for a in arguments]
    function = ast.FunctionDef(name, ast.arguments([], parameters, None, [], [], None, []), body, [])
    if hasattr(function, "type_params"):
        function.type_params = []
    for node in (function, *parameters):
        place(node, 1)
    return function


_NOTHING: ast.expr = ast.Constant(True)  # the node of a test with nothing to test
_BLOCKS = "blocks"  # the local with the leading blocks that fit; no other local has such a name


def _let_local(let: int, part: str) -> str:
    return f"l{let}_{part}"
