"""Checks one expression: its names, its types and units, and that it is exact and bounded.

Every mistake is reported where it is; an expression with a mistake means None, and nothing that uses it is
reported for that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from kvmove import schema
from kvmove.kvpol import checked, codes, exact, tree, whole
from kvmove.kvpol.calls import check_call
from kvmove.kvpol.comparisons import check_comparison, report_mismatch
from kvmove.kvpol.exact import Ratio
from kvmove.kvpol.findings import Findings, Fix, Note
from kvmove.kvpol.scope import FUNCTIONS, Amount, Claim, Meaning, Scope, type_name
from kvmove.kvpol.source import Source, Span, quoted
from kvmove.kvpol.suggest import did_you_mean
from kvmove.kvpol.units import CANONICAL, OF_SCHEMA, QuantityError, parse_quantity

_VERBS = {"+": "add {right} to {left}", "-": "subtract {right} from {left}"}


class ExpressionChecker:
    """Gives expressions their meaning in `scope`, and reports mistakes to `findings`."""

    def __init__(self, source: Source, scope: Scope, findings: Findings) -> None:
        self.source, self.scope, self.findings = source, scope, findings

    def check(self, expr: tree.Expr) -> Meaning:  # noqa: PLR0911 - one return for each kind of node
        """What `expr` means, or None after reporting why it means nothing."""
        match expr:
            case tree.Quantity():
                return self._quantity(expr)
            case tree.Boolean():
                return Claim(checked.Truth(expr.value))
            case tree.Name():
                return self._name(expr)
            case tree.Call():
                return check_call(self, expr)
            case tree.Negate():
                return self._negate(expr)
            case tree.SumOf():
                return self._sum(expr)
            case tree.ProductOf():
                return self._product(expr)
            case tree.Compare():
                return check_comparison(self, expr)
            case tree.Not():
                return self._not(expr)
        return self._joined(expr)

    def check_all(self, exprs: Sequence[tree.Expr]) -> list[Meaning]:
        """The meaning of each of `exprs`."""
        meanings = []
        for e in exprs:
            meanings.append(self.check(e))  # noqa: PERF401 - a comprehension is one more frame per level
        return meanings

    def condition(self, expr: tree.Expr, what: str) -> Claim | None:
        """The meaning of `expr`, which has to be true or false; `what` names its role in a message."""
        meaning = self.check(expr)
        if isinstance(meaning, Amount):
            help = "compare it with something, as in `bytes <= budget_remaining`"
            self.findings.report(
                codes.NO_CONDITION, f"{what} is true or false, but this is {type_name(meaning)}", expr.span, help=help
            )
            return None
        return meaning

    def amount(
        self, span: Span, make: Callable[[], Ratio], operands: Sequence[Amount], like: Amount | None = None
    ) -> Amount | None:
        """The amount that `make` computes from `operands`, or None after reporting that it is not bounded."""
        like = like or operands[0]
        try:
            ratio = make()
        except whole.TooLarge as e:
            self.findings.report(
                codes.TOO_LARGE,
                f"this can reach 2^{e.bits}, and amounts stay below 2^128",
                span,
                help="divide earlier, or bound a part with `min` or `clamp`",
            )
            return None
        except whole.TooComplex:
            self.findings.report(
                codes.TOO_COMPLEX, "this expression needs too many operations", span, help="simplify it or its lets"
            )
            return None
        needs = frozenset[schema.Variable]().union(*(o.needs for o in operands))
        return Amount(ratio, like.dimension, needs, any(o.tunable for o in operands))

    def _quantity(self, expr: tree.Quantity) -> Meaning:
        try:
            value, dimension = parse_quantity(expr.text)
        except QuantityError as e:
            fix = Fix(expr.span, e.replacement) if e.replacement else None
            self.findings.report(e.code, e.message, expr.span, help=e.help, fix=fix)
            return None
        return self.amount(expr.span, lambda: exact.constant(value), [], Amount(exact.constant(value % 1), dimension))

    def _name(self, expr: tree.Name) -> Meaning:
        name, scope = expr.name, self.scope
        v = schema.BY_NAME.get(name)
        if v is not None:
            if v.scope is schema.Scope.OUTCOME and not scope.in_assert:
                message = f"`{name}` is known only after the decision"
                self.findings.report(
                    codes.ONLY_AFTERWARDS, message, expr.span, help="it can be read in an `assert` alone"
                )
                return None
            needs = frozenset([v]) if v.optional else frozenset[schema.Variable]()
            self._note_reads(needs, expr.span)
            return Amount(exact.variable(v), OF_SCHEMA[v.unit], needs)
        definition = scope.defined.get(name)
        if definition is None:
            self._unknown_name(expr)
            return None
        definition.used = True
        self._note_reads(definition.reads, expr.span)
        scope.asked |= definition.asked
        return definition.meaning

    def _note_reads(self, needs: frozenset[schema.Variable], span: Span) -> None:
        for v in needs:
            self.scope.reads.setdefault(v, span)

    def _unknown_name(self, expr: tree.Name) -> None:
        scope = self.scope
        later = scope.later.get(expr.name)
        if expr.name in scope.damaged or (later is not None and later.start < expr.span.start):
            return  # its definition has a mistake, which has been reported
        if later is not None:
            self.findings.report(
                codes.USED_TOO_EARLY,
                f"`{expr.name}` is used before it is defined",
                expr.span,
                help="move the definition up",
                notes=(Note("it is defined here", later),),
            )
            return
        help = None if self.findings.full else did_you_mean(expr.name, scope.known_names())
        if expr.name in FUNCTIONS:
            help = f"`{expr.name}` is a function: give it arguments in parentheses"
        self.findings.report(codes.UNKNOWN_NAME, f"unknown name {quoted(expr.name)}", expr.span, help=help)

    def _negate(self, expr: tree.Negate) -> Meaning:
        operand = self.check(expr.operand)
        if operand is None:
            return None
        if isinstance(operand, Claim):
            self.findings.report(
                codes.NO_AMOUNT, "`-` needs an amount, but this is a condition", expr.operand.span, help="write `not`"
            )
            return None
        value = operand
        return self.amount(expr.span, lambda: exact.add([], [value.ratio]), [value])

    def _sum(self, expr: tree.SumOf) -> Meaning:
        meanings = self.check_all(expr.operands)
        amounts = self._amounts(expr, meanings)
        first = next((i for i, m in enumerate(meanings) if m is not None), None)
        if first is None:
            return None
        agree = True
        for i in range(first + 1, len(meanings)):
            left, right = meanings[first], meanings[i]
            if isinstance(left, Amount) and isinstance(right, Amount) and left.dimension != right.dimension:
                operator = expr.operators[i - 1]
                verb = _VERBS[operator.text].format(left=type_name(left), right=type_name(right))
                report_mismatch(self, verb, operator, (expr.operands[first], left), (expr.operands[i], right))
                agree = False
        if amounts is None or not agree:
            return None
        plus = [a.ratio for i, a in enumerate(amounts) if i == 0 or expr.operators[i - 1].text == "+"]
        minus = [a.ratio for i, a in enumerate(amounts) if i > 0 and expr.operators[i - 1].text == "-"]
        return self.amount(expr.span, lambda: exact.add(plus, minus), amounts)

    def _product(self, expr: tree.ProductOf) -> Meaning:
        meanings = self.check_all(expr.operands)
        amounts = self._amounts(expr, meanings)
        if amounts is None:
            return None
        result: Amount | None = amounts[0]
        for i, right in enumerate(amounts[1:], 1):
            left = result
            if left is None:
                return None
            operand, divides = expr.operands[i], expr.operators[i - 1].text == "/"
            combine = exact.divide if divides else exact.multiply
            span = expr.operands[0].span.to(operand.span)
            dimension = left.dimension / right.dimension if divides else left.dimension * right.dimension
            like = Amount(left.ratio, dimension)
            try:
                result = self.amount(span, partial(combine, left.ratio, right.ratio), [left, right], like)
            except exact.MayDivideByZero:
                self._may_be_zero(operand, right)
                return None
        return result

    def _may_be_zero(self, operand: tree.Expr, divisor: Amount) -> None:
        text = self.source.slice(operand.span)
        if divisor.ratio.is_constant:
            self.findings.report(codes.MAY_BE_ZERO, "this divides by zero", operand.span)
            return
        unit = CANONICAL.get(divisor.dimension)
        help = None
        if unit is not None and divisor.ratio.range.low >= 0 and len(text) <= 40:
            help = f"divide by something that cannot be, such as `max({text}, 1{unit})`"
        self.findings.report(
            codes.MAY_BE_ZERO, f"{quoted(text)} may be zero here, and it divides", operand.span, help=help
        )

    def _amounts(self, expr: tree.SumOf | tree.ProductOf, meanings: Sequence[Meaning]) -> list[Amount] | None:
        """The operands as amounts, or None when one is not (reported here) or has a mistake (reported before)."""
        amounts = [m for m in meanings if isinstance(m, Amount)]
        for operand, m in zip(expr.operands, meanings, strict=True):
            if isinstance(m, Claim):
                operator = expr.operators[0].text
                self.findings.report(
                    codes.NO_AMOUNT, f"`{operator}` needs amounts, but this is a condition", operand.span
                )
        return amounts if len(amounts) == len(meanings) else None

    def _not(self, expr: tree.Not) -> Meaning:
        claim = self.condition(expr.item, "what `not` turns round")
        return None if claim is None else Claim(checked.opposite(claim.condition), claim.tunable)

    def _joined(self, expr: tree.AllOf | tree.AnyOf) -> Meaning:
        word = "and" if isinstance(expr, tree.AllOf) else "or"
        claims: list[Claim | None] = []
        for item in expr.items:
            claims.append(self.condition(item, f"each side of `{word}`"))  # noqa: PERF401 - one more frame per level
        found = [c for c in claims if c is not None]
        if len(found) < len(claims):
            return None
        join = checked.every if word == "and" else checked.some
        conditions = tuple(c.condition for c in found)
        return self.claim(expr.span, lambda: join(conditions), any(c.tunable for c in found))

    def claim(self, span: Span, make: Callable[[], checked.Condition], tunable: bool) -> Claim | None:
        """The condition that `make` joins, or None after reporting that it is too deep."""
        try:
            return Claim(make(), tunable)
        except whole.TooComplex:
            self.findings.report(
                codes.TOO_COMPLEX, "this condition builds on too many levels of lets", span, help="simplify its lets"
            )
            return None
