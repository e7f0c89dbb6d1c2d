"""Checks a whole policy and makes the program that is compiled. Reports every mistake in one pass."""

from __future__ import annotations

from dataclasses import dataclass

from kvmove.kvpol import checked, codes, tree
from kvmove.kvpol.checked import CheckedAssert, CheckedRule, Limit, OutcomeIn, Program
from kvmove.kvpol.definitions import Definitions
from kvmove.kvpol.expressions import ExpressionChecker
from kvmove.kvpol.findings import Findings, Note
from kvmove.kvpol.params import Overrides
from kvmove.kvpol.scope import Claim, Scope, type_name
from kvmove.kvpol.source import Source, Span
from kvmove.kvpol.suggest import listed
from kvmove.kvpol.units import BYTES, TOKENS
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
        later = {s.name.text: s.name.span for s in reversed(file.statements) if isinstance(s, tree.Param | tree.Let)}
        self.scope = Scope(file.damaged, later)
        self.expressions = ExpressionChecker(source, self.scope, findings)
        self.definitions = Definitions(self.expressions, overrides)
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
                    self.definitions.param(statement)
                case tree.Let():
                    self.definitions.let(statement)
                case tree.Rule():
                    self._rule(statement)
                case tree.Assert():
                    self._assert(statement)
        self._unused()
        self._ending()
        self.definitions.leftover_overrides()
        problems = tuple(self.definitions.override_problems)
        if self.findings.has_errors:
            return Checked(None, problems)
        budget = self.definitions.budget
        program = Program(
            name=self.file.header.name if self.file.header else None,
            params=self.definitions.params,
            budget_bytes=None if budget is None else int(budget),
            lets=tuple(self.scope.lets),
            rules=tuple(self.rules),
            asserts=tuple(self.asserts),
        )
        return Checked(program, problems)

    def _header(self) -> None:
        header = self.file.header
        if header is not None and not header.name.strip():
            self.findings.report(codes.BAD_TITLE, "a policy's name is not empty", header.span)
        elif header is not None and not header.name.isprintable():
            self.findings.report(codes.BAD_TITLE, "a policy's name is printable text", header.span)

    def _rule(self, rule: tree.Rule) -> None:
        self._order(rule)
        condition: checked.Condition | None = checked.TRUE
        if rule.condition is not None:
            claim = self.expressions.condition(rule.condition, "a rule's condition")
            condition = None if claim is None else claim.condition
            if claim is not None:
                self._constant(rule.condition, claim)
                # Not of a condition with a mistake: when that is repaired, other estimates may be read.
                if self.strict:
                    self._unasked()
        limit = None if rule.limit is None else self._limit(rule.limit)
        if condition is None or (rule.limit is not None and limit is None):
            return
        label = rule.label.text if rule.label else None
        self.rules.append(CheckedRule(rule.action, label, condition, limit, _unconditional(rule), rule.span))

    def _constant(self, expr: tree.Expr, claim: Claim) -> None:
        """Say that a condition which is not written as `true` is the same for every hit, if no part of it was."""
        kinds = (codes.CONSTANT, codes.NEVER_REACHED, codes.ALWAYS_KNOWN)
        said = self.findings.any_in(expr.span, kinds) or self.findings.touches(expr.span.start, expr.span.end)
        written = isinstance(expr, tree.Boolean) and expr.value
        if isinstance(claim.condition, checked.Truth) and not (claim.tunable or written or said):
            always, help = ("true", "leave it out") if claim.condition.value else ("false", "remove the rule")
            self.findings.report(codes.CONSTANT, f"this condition is always {always}", expr.span, help=help)

    def _order(self, rule: tree.Rule) -> None:
        label = rule.label
        if label is not None and label.text in self.labels:
            note = Note("it labels this rule first", self.labels[label.text].span)
            self.findings.report(
                codes.LABEL_TWICE, f"two rules have the label `@{label.text}`", label.span, notes=(note,)
            )
        elif label is not None:
            self.labels[label.text] = label
        if self.always is not None and not self.dead_reported:
            self.findings.report(
                codes.UNREACHABLE,
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
            self.findings.report(
                codes.LIMIT_UNIT, f"the limit of `at most` is in bytes or tokens, but this is {what}", expr.span
            )
            return None
        needs = tuple(sorted(meaning.needs, key=lambda v: v.name))
        return Limit(meaning.ratio, meaning.dimension, needs, expr.span)

    def _unasked(self) -> None:
        """Say, once for a rule, which estimates it compares without asking whether they are known."""
        unasked = {v.name: span for v, span in self.scope.reads.items() if v not in self.scope.asked}
        if unasked:
            them = "it" if len(unasked) == 1 else "them"
            self.findings.report(
                codes.MAY_BE_UNKNOWN,
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
                self.findings.report(codes.NEVER_USED, f"{d.kind} `{d.name}` is never used", d.span, help="remove it")

    def _ending(self) -> None:
        rules = list(self.file.rules)
        if len(rules) > MAX_RULES:
            self.findings.report(codes.TOO_MANY_RULES, f"more than {MAX_RULES} rules", rules[MAX_RULES].action_span)
        if self.findings.has_errors or self.always is not None:
            return
        if not rules:
            end = len(self.source.text)
            message = "there is no rule, so every hit loads asynchronously"
            self.findings.report(codes.NO_RULE, message, Span(max(0, end - 1), end), help="write `async` to say so")
        elif self.strict:
            self.findings.report(
                codes.IMPLICIT_LAST,
                "the last rule is left to be `async`",
                rules[-1].span,
                help="write `async` as the last rule to say so",
            )


def _unconditional(rule: tree.Rule) -> bool:
    return rule.condition is None or (isinstance(rule.condition, tree.Boolean) and rule.condition.value)
