"""Defines the params and lets of a policy, and takes an operator's values for its params."""

from __future__ import annotations

from fractions import Fraction

from kvmove import schema
from kvmove.kvpol import checked, codes, exact, tree, whole
from kvmove.kvpol.checked import CheckedLet
from kvmove.kvpol.expressions import ExpressionChecker
from kvmove.kvpol.findings import Fix, Note
from kvmove.kvpol.params import BadOverride, Overrides, Value, budget_problem, override_value
from kvmove.kvpol.scope import FUNCTIONS, Amount, Claim, Definition, Meaning
from kvmove.kvpol.source import quoted
from kvmove.kvpol.suggest import did_you_mean, listed
from kvmove.kvpol.units import NUMBER, TYPES, QuantityError, parse_quantity


class Definitions:
    """The params and lets that were defined so far, in the scope of `expressions`."""

    def __init__(self, expressions: ExpressionChecker, overrides: Overrides) -> None:
        self.expressions, self.scope, self.findings = expressions, expressions.scope, expressions.findings
        self.overrides = dict(overrides)  # those whose param has not come yet
        self.override_problems: list[str] = []
        self.params: dict[str, Value] = {}
        self.budget: Fraction | None = None

    def param(self, param: tree.Param) -> None:
        """Define a param, with the operator's value where there is one."""
        name, meaning = param.name.text, self._param_meaning(param)
        if name != "budget":
            self._define("param", param.name, meaning)
        elif self.budget is not None:
            self.findings.report(codes.DEFINED_TWICE, "`budget` is set twice", param.name.span)
        if isinstance(meaning, Amount):
            self.params.setdefault(name, meaning.ratio.range.low)
            if name == "budget":
                self.budget = meaning.ratio.range.low
        elif isinstance(meaning, Claim):
            self.params.setdefault(name, meaning.condition == checked.TRUE)

    def _param_meaning(self, param: tree.Param) -> Meaning:
        """The value of a param: the operator's if there is one, else the file's, which has to be right in any case."""
        name = param.name.text
        is_given, given = name in self.overrides, self.overrides.pop(name, None)
        if param.type.text not in TYPES:
            help = did_you_mean(param.type.text, TYPES) or f"the types are {listed(TYPES)}"
            self.findings.report(
                codes.UNKNOWN_TYPE, f"unknown type {quoted(param.type.text)}", param.type.span, help=help
            )
            return None
        value = self._constant(param)
        if value is None:
            return None
        if param.name.text == "budget" and (param.type.text != "bytes" or isinstance(value, bool)):
            self.findings.report(
                codes.WRONG_TYPE,
                "`budget` is the step's budget, and that is in bytes",
                param.type.span,
                help="write `param budget: bytes`, or choose another name",
            )
            return None
        if param.name.text == "budget" and not isinstance(value, bool):
            problem = budget_problem(value)
            if problem is not None:
                self.findings.report(codes.OUT_OF_RANGE, problem, param.value.span)
                return None
        if is_given:
            try:
                value = override_value(param.name.text, given, param.type.text)
            except BadOverride as e:
                self.override_problems.append(str(e))
        if isinstance(value, bool):
            return Claim(checked.Truth(value), tunable=True)
        amount = value
        dimension = TYPES[param.type.text] or NUMBER
        like = Amount(exact.constant(Fraction(0)), dimension)
        meaning = self.expressions.amount(param.value.span, lambda: exact.constant(amount), [], like)
        return None if meaning is None else Amount(meaning.ratio, dimension, tunable=True)

    def _constant(self, param: tree.Param) -> Value | None:
        """The value that the file gives, or None after reporting that it does not have the param's type."""
        wanted = TYPES[param.type.text]
        value = param.value
        if isinstance(value, tree.Boolean):
            if wanted is None:
                return value.value
            wants = "a number" if wanted == NUMBER else f"in {param.type.text}"
            self.findings.report(codes.WRONG_TYPE, f"`{param.name.text}` is {wants}, not true or false", value.span)
            return None
        try:
            amount, dimension = parse_quantity(value.text)
        except QuantityError as e:
            fix = Fix(value.span, e.replacement) if e.replacement else None
            self.findings.report(e.code, e.message, value.span, help=e.help, fix=fix)
            return None
        if wanted is None:
            self.findings.report(
                codes.WRONG_TYPE, f"`{param.name.text}` is true or false, not {quoted(value.text)}", value.span
            )
            return None
        if dimension != wanted:
            given = "a number without a unit" if dimension == NUMBER else f"in {dimension}"
            wants = "a number" if wanted == NUMBER else f"in {param.type.text}"
            help, fix, code = None, None, codes.WRONG_TYPE
            if dimension == NUMBER and not value.text.endswith("%"):
                unit = {"bytes": "B", "tokens": "tok", "time": "ns"}[param.type.text]
                help, fix = f"give it its unit, such as `{value.text}{unit}`", Fix(value.span, value.text + unit)
                code = codes.UNIT_MISSING
            self.findings.report(
                code,
                f"`{param.name.text}` is {wants}, but {quoted(value.text)} is {given}",
                value.span,
                help=help,
                fix=fix,
            )
            return None
        return -amount if param.negative else amount

    def let(self, let: tree.Let) -> None:
        """Define a let."""
        self._define("let", let.name, self._let_meaning(let))

    def _let_meaning(self, let: tree.Let) -> Meaning:
        """The meaning of a let's name: a reference to a value that is computed once."""
        value = self.expressions.check(let.value)
        index = len(self.scope.lets)
        try:
            if isinstance(value, Amount):
                ratio = exact.let(index, value.ratio)
                needs = tuple(sorted(value.needs, key=lambda v: v.name))
                self.scope.lets.append(CheckedLet(let.name.text, value.ratio, needs))
                return Amount(ratio, value.dimension, value.needs, value.tunable)
            if isinstance(value, Claim):
                condition = checked.let_holds(index, value.condition)
                self.scope.lets.append(CheckedLet(let.name.text, value.condition, ()))
                return Claim(condition, value.tunable)
        except whole.TooComplex:
            self.findings.report(
                codes.TOO_COMPLEX, "this let builds on too many levels of lets", let.value.span, help="simplify them"
            )
        return None

    def _define(self, kind: str, name: tree.Word, meaning: Meaning) -> None:
        taken = name.text in schema.BY_NAME
        if taken or name.text in FUNCTIONS:
            what = "variable" if taken else "function"
            self.findings.report(
                codes.SHADOWS,
                f"`{name.text}` is a {what} of the language, and a {kind} cannot take its name",
                name.span,
                help="choose another name",
            )
            return
        first = self.scope.defined.get(name.text)
        if first is not None:
            note = Note("it is defined here first", first.span)
            self.findings.report(codes.DEFINED_TWICE, f"`{name.text}` is defined twice", name.span, notes=(note,))
            return
        reads, asked = frozenset(self.scope.reads), frozenset(self.scope.asked)
        self.scope.defined[name.text] = Definition(kind, name.text, name.span, meaning, reads, asked)

    def leftover_overrides(self) -> None:
        """What is given for params that the file does not have. `budget` is the step's, whether or not it is named."""
        for name, given in self.overrides.items():
            if name == "budget":
                try:
                    value = override_value(name, given, "bytes")
                except BadOverride as e:
                    self.override_problems.append(str(e))
                    continue
                assert isinstance(value, Fraction)
                self.params["budget"] = self.budget = value
                continue
            help = did_you_mean(name, [*self.params, "budget"])
            names = [n for n in self.params if n != "budget"] + ["budget"]
            self.override_problems.append(
                f"there is no param {quoted(name)}\n  = help: {help or 'the params are ' + listed(names)}"
            )
