"""Checks a whole policy and makes the program that is compiled. Reports every mistake in one pass."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from kvmove import schema
from kvmove.kvpol import checked, exact, tree, whole
from kvmove.kvpol.checked import CheckedAssert, CheckedLet, CheckedRule, Limit, OutcomeIn, Program
from kvmove.kvpol.expressions import ExpressionChecker
from kvmove.kvpol.findings import Findings, Fix, Note
from kvmove.kvpol.params import BadOverride, Overrides, Value, budget_problem, override_value
from kvmove.kvpol.scope import FUNCTIONS, Amount, Claim, Definition, Meaning, Scope, type_name
from kvmove.kvpol.source import Source, Span, quoted
from kvmove.kvpol.suggest import did_you_mean, listed
from kvmove.kvpol.units import BYTES, NUMBER, TOKENS, TYPES, QuantityError, parse_quantity
from kvmove.records import Action

MAX_RULES = 255  # a decision holds the rule's index in 8 bits, and the implicit last rule is one more


@dataclass(frozen=True, slots=True)
class Checked:
    """What checking gave: the program unless there were errors, and what is wrong with the overrides."""

    program: Program | None
    override_problems: tuple[str, ...]


def check(
    file: tree.File, source: Source, findings: Findings, overrides: Overrides | None = None, *, strict: bool = False
) -> Checked:
    """Check `file`, report to `findings`, and give the program when nothing is wrong with it.

    `strict` reports two more things: an implicit last rule, and estimates that a rule reads without asking
    whether they are known.
    """
    return _Checker(file, source, findings, overrides or {}, strict).run()


class _Checker:
    def __init__(self, file: tree.File, source: Source, findings: Findings, overrides: Overrides, strict: bool) -> None:
        self.file, self.source, self.findings, self.strict = file, source, findings, strict
        self.overrides = dict(overrides)
        self.override_problems: list[str] = []
        later = {s.name.text: s.name.span for s in reversed(file.statements) if isinstance(s, tree.Param | tree.Let)}
        self.scope = Scope(file.damaged, later)
        self.expressions = ExpressionChecker(source, self.scope, findings)
        self.params: dict[str, Value] = {}
        self.budget: Fraction | None = None
        self.rules: list[CheckedRule] = []
        self.asserts: list[CheckedAssert] = []
        self.labels: dict[str, tree.Word] = {}
        self.always: tree.Rule | None = None  # the first rule that always matches
        self.dead_reported = False

    def run(self) -> Checked:
        self._header()
        for statement in self.file.statements:
            self.scope.reads.clear()
            self.scope.asked.clear()
            match statement:
                case tree.Param():
                    self._param(statement)
                case tree.Let():
                    self._let(statement)
                case tree.Rule():
                    self._rule(statement)
                case tree.Assert():
                    self._assert(statement)
        self._unused()
        self._ending()
        self._leftover_overrides()
        if self.findings.has_errors:
            return Checked(None, tuple(self.override_problems))
        program = Program(
            self.file.header.name if self.file.header else None,
            self.params,
            None if self.budget is None else int(self.budget),
            tuple(self.scope.lets),
            tuple(self.rules),
            tuple(self.asserts),
        )
        return Checked(program, tuple(self.override_problems))

    def _header(self) -> None:
        header = self.file.header
        if header is not None and not header.name.strip():
            self.findings.error("a policy's name is not empty", header.span)
        elif header is not None and not header.name.isprintable():
            self.findings.error("a policy's name is printable text", header.span)

    def _param(self, param: tree.Param) -> None:
        name, meaning = param.name.text, self._param_meaning(param)
        if name != "budget":
            self._define("param", param.name, meaning)
        elif self.budget is not None:
            self.findings.error("`budget` is set twice", param.name.span)
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
            self.findings.error(f"unknown type {quoted(param.type.text)}", param.type.span, help=help)
            return None
        value = self._constant(param)
        if value is None:
            return None
        if param.name.text == "budget" and (param.type.text != "bytes" or isinstance(value, bool)):
            self.findings.error(
                "`budget` is the step's budget, and that is in bytes",
                param.type.span,
                help="write `param budget: bytes`, or choose another name",
            )
            return None
        if param.name.text == "budget" and not isinstance(value, bool):
            problem = budget_problem(value)
            if problem is not None:
                self.findings.error(problem, param.value.span)
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
            self.findings.error(f"`{param.name.text}` is {wants}, not true or false", value.span)
            return None
        try:
            amount, dimension = parse_quantity(value.text)
        except QuantityError as e:
            fix = Fix(value.span, e.replacement) if e.replacement else None
            self.findings.error(e.message, value.span, help=e.help, fix=fix)
            return None
        if wanted is None:
            self.findings.error(f"`{param.name.text}` is true or false, not {quoted(value.text)}", value.span)
            return None
        if dimension != wanted:
            given = "a number without a unit" if dimension == NUMBER else f"in {dimension}"
            wants = "a number" if wanted == NUMBER else f"in {param.type.text}"
            help, fix = None, None
            if dimension == NUMBER and not value.text.endswith("%"):
                unit = {"bytes": "B", "tokens": "tok", "time": "ns"}[param.type.text]
                help, fix = f"give it its unit, such as `{value.text}{unit}`", Fix(value.span, value.text + unit)
            self.findings.error(
                f"`{param.name.text}` is {wants}, but {quoted(value.text)} is {given}", value.span, help=help, fix=fix
            )
            return None
        return -amount if param.negative else amount

    def _let(self, let: tree.Let) -> None:
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
            self.findings.error("this let builds on too many levels of lets", let.value.span, help="simplify them")
        return None

    def _define(self, kind: str, name: tree.Word, meaning: Meaning) -> None:
        taken = name.text in schema.BY_NAME
        if taken or name.text in FUNCTIONS:
            what = "variable" if taken else "function"
            self.findings.error(
                f"`{name.text}` is a {what} of the language, and a {kind} cannot take its name",
                name.span,
                help="choose another name",
            )
            return
        first = self.scope.defined.get(name.text)
        if first is not None:
            note = Note("it is defined here first", first.span)
            self.findings.error(f"`{name.text}` is defined twice", name.span, notes=(note,))
            return
        reads, asked = frozenset(self.scope.reads), frozenset(self.scope.asked)
        self.scope.defined[name.text] = Definition(kind, name.text, name.span, meaning, reads, asked)

    def _rule(self, rule: tree.Rule) -> None:
        self._order(rule)
        condition: checked.Condition | None = checked.TRUE
        if rule.condition is not None:
            claim = self.expressions.condition(rule.condition, "a rule's condition")
            condition = None if claim is None else claim.condition
            if self.strict:
                self._unasked()
        limit = None if rule.limit is None else self._limit(rule.limit)
        if condition is None or (rule.limit is not None and limit is None):
            return
        label = rule.label.text if rule.label else None
        self.rules.append(CheckedRule(rule.action, label, condition, limit, _unconditional(rule), rule.span))

    def _order(self, rule: tree.Rule) -> None:
        label = rule.label
        if label is not None and label.text in self.labels:
            note = Note("it labels this rule first", self.labels[label.text].span)
            self.findings.error(f"two rules have the label `@{label.text}`", label.span, notes=(note,))
        elif label is not None:
            self.labels[label.text] = label
        if self.always is not None and not self.dead_reported:
            self.findings.error(
                "this rule can never be reached",
                rule.action_span,
                help="rules are tried in order: put the one without a condition last",
                notes=(Note("this rule always matches", self.always.span),),
            )
            self.dead_reported = True
        if self.always is None and rule.limit is None and _unconditional(rule):
            self.always = rule

    def _limit(self, expr: tree.Expr) -> Limit | None:
        meaning = self.expressions.check(expr)
        if meaning is None:
            return None
        if isinstance(meaning, Claim) or meaning.dimension not in (BYTES, TOKENS):
            what = type_name(meaning)
            self.findings.error(f"the limit of `at most` is in bytes or tokens, but this is {what}", expr.span)
            return None
        needs = tuple(sorted(meaning.needs, key=lambda v: v.name))
        return Limit(meaning.ratio, meaning.dimension, needs, expr.span)

    def _unasked(self) -> None:
        """Say, once for a rule, which estimates it compares without asking whether they are known."""
        unasked = {v.name: span for v, span in self.scope.reads.items() if v not in self.scope.asked}
        if unasked:
            them = "it" if len(unasked) == 1 else "them"
            self.findings.warn(
                f"{listed(sorted(unasked))} may be unknown, and then what compares {them} is false",
                min(unasked.values()),
                help=f"if that is meant, say so with `known({' + '.join(sorted(unasked))})`",
            )

    def _assert(self, statement: tree.Assert) -> None:
        self.scope.in_assert = True
        premise = checked.TRUE if statement.premise is None else self._claim(statement.premise)
        conclusion = self._claim(statement.conclusion)
        self.scope.in_assert = False
        if premise is not None and conclusion is not None:
            self.asserts.append(CheckedAssert(premise, conclusion, statement.span))

    def _claim(self, claim: tree.Claim) -> checked.Condition | OutcomeIn | None:
        if isinstance(claim, tree.Outcome):
            actions = frozenset(claim.actions)
            return OutcomeIn(frozenset(Action) - actions if claim.negated else actions)
        found = self.expressions.condition(claim, "what is asserted")
        return None if found is None else found.condition

    def _unused(self) -> None:
        if self.findings.has_errors:
            return  # a name may be unused because of a mistake that has been reported
        for d in self.scope.defined.values():
            if not d.used:
                self.findings.warn(f"{d.kind} `{d.name}` is never used", d.span, help="remove it")

    def _ending(self) -> None:
        rules = list(self.file.rules)
        if len(rules) > MAX_RULES:
            self.findings.error(f"more than {MAX_RULES} rules", rules[MAX_RULES].action_span)
        if self.findings.has_errors or self.always is not None:
            return
        if not rules:
            end = len(self.source.text)
            message = "there is no rule, so every hit loads asynchronously"
            self.findings.warn(message, Span(max(0, end - 1), end), help="write `async` to say so")
        elif self.strict:
            self.findings.warn(
                "the last rule is left to be `async`", rules[-1].span, help="write `async` as the last rule to say so"
            )

    def _leftover_overrides(self) -> None:
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


def _unconditional(rule: tree.Rule) -> bool:
    return rule.condition is None or (isinstance(rule.condition, tree.Boolean) and rule.condition.value)
