"""A checked policy as one Python function, made from `ast` nodes.

No text of the user's becomes code: the nodes hold integers, names made here and attributes of the records.
What is read and worked out is left to the rule that first needs it, and kept for the rules after it; so a rule
that matches early pays for nothing that only later rules read.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from types import CodeType, FunctionType
from typing import Any

from kvmove.errors import InternalError
from kvmove.kvpol import checked
from kvmove.kvpol.amount_nodes import AmountNodes, State, let_local, variable_local
from kvmove.kvpol.checked import CheckedRule, Limit, Program
from kvmove.kvpol.condition_nodes import NOTHING, ConditionNodes, Test
from kvmove.kvpol.exact import Ratio
from kvmove.kvpol.nodes import at_line, joined, load, place
from kvmove.kvpol.source import Source
from kvmove.kvpol.units import TOKENS
from kvmove.kvpol.usage import Usage, count_usage
from kvmove.kvpol.whole import ONE
from kvmove.schema import BY_NAME, Scope

Decide = Callable[[Any, Any], int]
Admit = Callable[[Any, int], object]
DecideBatch = Callable[[Iterable[Any], Any, Admit], None]

_BLOCKS = "blocks"  # the local with the leading blocks that fit; no other local has such a name


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


class _Compiler:
    """The rules in order, each of which ends the decision where it matches."""

    def __init__(self, program: Program, source: Source, usage: Usage | None) -> None:
        self.program, self.source = program, source
        self.usage: Usage = usage or count_usage(program)
        self._amounts = AmountNodes(program, self.usage)
        self._conditions = ConditionNodes(program, self._amounts)

    def function(self) -> ast.FunctionDef:
        """The definition of `decide`."""
        return _definition("decide", ["hit", "step"], self._rules(State()))

    def _rules(self, state: State) -> list[ast.stmt]:
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

    def _rule(self, rule: CheckedRule, index: int, state: State) -> tuple[list[ast.stmt], State, bool]:
        verdict: ast.expr = ast.Constant(index)
        if rule.condition == checked.TRUE and rule.limit is None:
            return self._decided(verdict), state, True
        if rule.condition == checked.FALSE:
            return [], state, False
        statements: list[ast.stmt] = []
        for let, part in self.usage.hoisted_for(rule):
            name = let_local(let, part)
            if name not in state.bound:
                node, state = self._hoisted(let, part, state)
                statements.append(ast.Assign([ast.Name(name, ast.Store())], node))
                state = state.with_local(name)
        test = self._conditions.condition(rule.condition, state)
        if rule.limit is not None:
            test = self._fits(test, rule.limit)
            verdict = self._cut(index, test.if_true)
        return [*statements, ast.If(test.node, self._decided(verdict), [])], test.if_false, False

    def _fits(self, test: Test, limit: Limit) -> Test:
        """Whether `test` holds and the limit is known and a block fits; `_BLOCKS` is then how many do."""
        guard = self._conditions.all_known(limit.needs, test.if_true)
        amount, after = self._amounts.whole(limit.amount.numerator, guard.if_true)
        if limit.amount.denominator != ONE:
            # Prefixes are whole, so what fits the limit rounded down is what fits the limit.
            divisor, after = self._amounts.whole(limit.amount.denominator, after)
            amount = ast.BinOp(amount, ast.FloorDiv(), divisor)
        within = "blocks_within_tokens" if limit.dimension == TOKENS else "blocks_within_bytes"
        call = ast.Call(ast.Attribute(load("hit"), within, ast.Load()), [amount], [])
        blocks = ast.NamedExpr(ast.Name(_BLOCKS, ast.Store()), call)
        always = (test.node, guard.node) if not isinstance(test.node, ast.Constant) else (guard.node,)
        nodes = [*(node for node in always if node is not NOTHING), blocks]
        failed = test.if_false.met(guard.if_false).met(after)
        return Test(joined(ast.And(), nodes), after, failed)

    def _cut(self, index: int, state: State) -> ast.expr:
        """The verdict of a rule whose limit leaves `_BLOCKS`: 0 blocks stand for all of them."""
        every, _ = self._amounts.read(BY_NAME["blocks"], state)
        some = ast.BinOp(load(_BLOCKS), ast.LShift(), ast.Constant(8))
        verdict = ast.BinOp(some, ast.BitOr(), ast.Constant(index))
        is_cut = ast.Compare(load(_BLOCKS), [ast.Lt()], [every])
        return ast.IfExp(is_cut, verdict, ast.Constant(index))

    def _hoisted(self, let: int, part: str, state: State) -> tuple[ast.expr, State]:
        """A let's value computed ahead of a rule; 0 where it is unknown, which nothing reads."""
        value = self.program.lets[let].value
        if not isinstance(value, Ratio):
            condition = checked.opposite(value) if part == "opposite" else value
            test = self._conditions.condition(condition, state)
            return test.node, test.if_true.met(test.if_false)
        whole = value.denominator if part == "denominator" else value.numerator
        guard = self._conditions.all_known(self.program.lets[let].needs, state)
        node, after = self._amounts.whole(whole, guard.if_true)
        if guard.node is NOTHING:
            return node, after
        return ast.IfExp(guard.node, node, ast.Constant(0)), after.met(guard.if_false)


class _BatchCompiler(_Compiler):
    """The same rules in a loop, with what no admission changes read once ahead of it."""

    def function(self) -> ast.FunctionDef:
        """The definition of `decide_batch`."""
        ahead: list[ast.stmt] = []
        state = State()
        for v in sorted(self.usage.reads, key=lambda v: v.attribute):
            if v.scope is Scope.STEP and v.attribute not in CHANGED_BY_ADMISSION:
                name = variable_local(v)
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
