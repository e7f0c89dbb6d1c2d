"""A checked program as formulas: which rule decides, and what is loaded, for any hit and step.

The formulas follow `checked` and `whole` node for node: integers, ratios compared crosswise, a comparison that is
false when an estimate it reads is unknown. Params are constants already; a let becomes one shared term.
"""

from __future__ import annotations

from functools import cached_property, reduce

from kvmove import schema
from kvmove.errors import InternalError
from kvmove.kvpol.checked import (
    CheckedAssert,
    CheckedRule,
    Compare,
    Condition,
    Every,
    Known,
    LetHolds,
    Limit,
    OutcomeIn,
    Program,
    Some,
    Truth,
    opposite,
)
from kvmove.kvpol.exact import Ratio
from kvmove.kvpol.proof.inputs import Inputs
from kvmove.kvpol.proof.prefixes import Prefix, Prefixes
from kvmove.kvpol.proof.session import Term
from kvmove.kvpol.units import BYTES
from kvmove.kvpol.whole import Const, Least, Local, Magnitude, Most, Read, Times, Total, Whole
from kvmove.records import Action

LOADS = (Action.SYNC, Action.ASYNC)


class Model:
    """What `program` decides for `inputs`.

    Attributes:
        matches: for each rule, whether its condition holds and, with `at most`, a block fits.
        fires: for each rule, whether it decides: it matches and none before it does. The implicit last one included.
        actions: what each of them asks for.
    """

    def __init__(self, program: Program, inputs: Inputs, prefixes: Prefixes, number: int = 0) -> None:
        self.program, self.inputs, self.prefixes, self.number = program, inputs, prefixes, number
        self.session = s = inputs.session
        self._conditions: dict[tuple[int, bool], Term] = {}
        self._wholes: dict[tuple[int, bool], Term] = {}
        taken = [self._rule(rule) for rule in program.rules]
        self.actions = [rule.action for rule in program.rules]
        if not program.ends_itself:
            taken.append((s.truth(True), None))
            self.actions.append(Action.ASYNC)
        self.matches = [matches for matches, _ in taken]
        self._cuts = [cut for _, cut in taken]  # None: the whole hit
        self.fires: list[Term] = []
        none_before = s.truth(True)
        for matches in self.matches:
            self.fires.append(s.all_of([none_before, matches]))
            none_before = s.all_of([none_before, s.opposite(matches)])

    @property
    def loaded(self) -> Prefix:
        """What is loaded: leading blocks, none for `recompute` and `defer`."""
        for rule in range(len(self._cuts)):
            self.taken(rule)
        return self._loaded

    @cached_property
    def _loaded(self) -> Prefix:
        zero = self.session.number(0)
        result = Prefix(zero, zero, zero)
        for rule, (fires, action) in enumerate(zip(self.fires, self.actions, strict=True)):
            if action in LOADS:
                prefix = self.taken(rule)
                result = Prefix(
                    self.session.choice(fires, prefix.blocks, result.blocks),
                    self.session.choice(fires, prefix.bytes, result.bytes),
                    self.session.choice(fires, prefix.tokens, result.tokens),
                )
        return result

    def taken(self, rule: int) -> Prefix:
        """What rule number `rule` loads where it decides."""
        cut = self._cuts[rule]
        return self.prefixes.whole if cut is None else self.prefixes.taken(cut)

    def asks(self, actions: frozenset[Action]) -> Term:
        """Whether the decision is one of `actions`."""
        return self.session.any_of(f for f, a in zip(self.fires, self.actions, strict=True) if a in actions)

    def holds(self, claim: CheckedAssert) -> Term:
        """Whether an assert holds."""
        return self.session.implies(self._claim(claim.premise), self._claim(claim.conclusion))

    def condition(self, condition: Condition) -> Term:
        """Whether a condition holds."""
        s = self.session
        match condition:
            case Truth(value):
                return s.truth(value)
            case Compare():
                return self._compare(condition)
            case Known(variables, negated):
                known = self.inputs.all_known(variables)
                return s.opposite(known) if negated else known
            case Every(items):
                return s.all_of([self.condition(item) for item in items])
            case Some(items):
                return s.any_of([self.condition(item) for item in items])
            case LetHolds(let, negated):
                return self._let_holds(let, negated)

    def _rule(self, rule: CheckedRule) -> tuple[Term, int | None]:
        condition = self.condition(rule.condition)
        if rule.limit is None:
            return condition, None
        limit = rule.limit
        condition = self.session.all_of([condition, self.inputs.all_known(limit.needs)])
        return self.prefixes.longest(condition, lambda prefix: self._fits(prefix, limit), self.number)

    def _fits(self, prefix: Prefix, limit: Limit) -> Term:
        part = prefix.bytes if limit.dimension == BYTES else prefix.tokens
        return self._times(1, (part, limit.amount.denominator)) <= self.whole(limit.amount.numerator)

    def _times(self, constant: int, factors: tuple[Term | Whole, ...]) -> Term:
        """A product of terms and integer expressions; constants among these make no product of variables."""
        terms = []
        for factor in factors:
            if isinstance(factor, Const):
                constant *= factor.low
            else:
                terms.append(self.whole(factor) if isinstance(factor, Whole) else factor)
        return self.session.product(constant, terms)

    def _claim(self, claim: Condition | OutcomeIn) -> Term:
        return self.asks(claim.actions) if isinstance(claim, OutcomeIn) else self.condition(claim)

    def _let_holds(self, let: int, negated: bool) -> Term:
        key = (let, negated)
        if key not in self._conditions:
            value = self.program.lets[let].value
            if isinstance(value, Ratio):
                raise InternalError(f"let number {let} is an amount, not a condition")
            self._conditions[key] = self.condition(opposite(value) if negated else value)
        return self._conditions[key]

    def _compare(self, compare: Compare) -> Term:
        left, right = self.whole(compare.left), self.whole(compare.right)
        match compare.operator:
            case "<":
                holds = left < right
            case "<=":
                holds = left <= right
            case ">":
                holds = left > right
            case ">=":
                holds = left >= right
            case "==":
                holds = left == right
            case _:
                holds = left != right
        if not compare.needs:
            return holds
        return self.session.all_of([self.inputs.all_known(compare.needs), holds])

    def whole(self, x: Whole) -> Term:  # noqa: PLR0911 - one return for each kind of node
        """The value of an integer expression."""
        s = self.session
        match x:
            case Const():
                return s.number(x.low)
            case Read():
                return self._read(x.variable)
            case Local():
                return self._local(x)
            case Total():
                result = s.number(x.constant)
                for item in x.plus:
                    result = result + self.whole(item)
                for item in x.minus:
                    result = result - self.whole(item)
                return result
            case Times():
                return s.product(x.constant, [self.whole(f) for f in x.factors])
            case Least():
                return reduce(lambda a, b: s.choice(a <= b, a, b), [self.whole(i) for i in x.items])
            case Most():
                return reduce(lambda a, b: s.choice(a >= b, a, b), [self.whole(i) for i in x.items])
            case Magnitude():
                item = self.whole(x.item)
                return s.choice(item >= s.number(0), item, -item)
        raise InternalError(f"no integer expression: {x}")

    def _read(self, variable: schema.Variable) -> Term:
        if variable.scope is not schema.Scope.OUTCOME:
            return self.inputs.value(variable)
        return self.loaded.bytes if variable.name == "load_bytes" else self.loaded.tokens

    def _local(self, x: Local) -> Term:
        key = (x.let, x.denominator)
        if key not in self._wholes:
            value = self.program.lets[x.let].value
            if not isinstance(value, Ratio):
                raise InternalError(f"let number {x.let} is a condition, not an amount")
            self._wholes[key] = self.whole(value.denominator if x.denominator else value.numerator)
        return self._wholes[key]
