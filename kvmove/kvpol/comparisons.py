"""Checks comparisons, and says which units do not go together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvmove import schema
from kvmove.kvpol import checked, codes, exact, tree, whole
from kvmove.kvpol.findings import Fix, Note
from kvmove.kvpol.scope import Amount, Claim, Meaning, type_name
from kvmove.kvpol.source import quoted
from kvmove.kvpol.units import CANONICAL, NUMBER

if TYPE_CHECKING:
    from kvmove.kvpol.expressions import ExpressionChecker


def check_comparison(checker: ExpressionChecker, expr: tree.Compare) -> Meaning:
    """What a comparison or a chain means, or None after reporting why it means nothing."""
    meanings = checker.check_all(expr.operands)
    for operand, m in zip(expr.operands, meanings, strict=True):
        if isinstance(m, Claim):
            symbol = expr.operators[0].text
            help = "use the condition itself, or `not` and the condition"
            checker.findings.report(
                codes.NO_AMOUNT, f"`{symbol}` compares amounts, but this is a condition", operand.span, help=help
            )
            break  # the other side may be a condition for the same reason
    comparisons: list[checked.Condition | None] = []
    for i, operator in enumerate(expr.operators):
        left, right = meanings[i], meanings[i + 1]
        if isinstance(left, Amount) and isinstance(right, Amount):
            sides = (expr.operands[i], left), (expr.operands[i + 1], right)
            comparisons.append(_one(checker, expr, operator, *sides))
        else:
            comparisons.append(None)
    found = [c for c in comparisons if c is not None]
    if len(found) < len(comparisons):
        return None
    tunable = any(m.tunable for m in meanings if m is not None)
    return checker.claim(expr.span, lambda: checked.every(tuple(found)), tunable)


def _one(
    checker: ExpressionChecker,
    expr: tree.Compare,
    operator: tree.Word,
    left_side: tuple[tree.Expr, Amount],
    right_side: tuple[tree.Expr, Amount],
) -> checked.Condition | None:
    left, right = left_side[1], right_side[1]
    if left.dimension != right.dimension:
        report_mismatch(checker, f"compare {type_name(left)} with {type_name(right)}", operator, left_side, right_side)
        return None
    needs = tuple(sorted(left.needs | right.needs, key=lambda v: v.name))
    try:
        a, b = exact.sides(left.ratio, right.ratio)
    except (whole.TooLarge, whole.TooComplex):
        checker.findings.report(
            codes.TOO_COMPLEX, "this comparison needs too many operations", expr.span, help="simplify its sides"
        )
        return None
    always = _always(operator.text, a, b)
    if always is False or (always and not needs):
        if not (left.tunable or right.tunable or checker.findings.touches(expr.span.start, expr.span.end)):
            checker.findings.report(
                _constant(left_side, right_side),
                f"this comparison is always {'true' if always else 'false'}",
                left_side[0].span.to(right_side[0].span),
                notes=tuple(
                    _range_note(checker, *side) for side in (left_side, right_side) if not side[1].ratio.is_constant
                ),
            )
        # With an estimate that may be unknown it stays: then its opposite is false too.
        if not needs:
            return checked.Truth(always)
    return checked.Compare(operator.text, a, b, needs)


def _constant(left: tuple[tree.Expr, Amount], right: tuple[tree.Expr, Amount]) -> codes.Code:
    """Which of two mistakes a comparison is that always gives the same."""
    for (operand, amount), (_, other) in ((left, right), (right, left)):
        if isinstance(operand, tree.Name) and operand.name in schema.BY_NAME and other.ratio.is_constant:
            value, known = other.ratio.range.low, amount.ratio.range
            return codes.NEVER_REACHED if value < known.low or value > known.high else codes.CONSTANT
    return codes.CONSTANT


def _range_note(checker: ExpressionChecker, operand: tree.Expr, amount: Amount) -> Note:
    value, unit = amount.ratio.range, CANONICAL.get(amount.dimension, "")
    text = quoted(checker.source.slice(operand.span))
    return Note(f"{text} lies between {value.low}{unit} and {value.high}{unit}")


def report_mismatch(
    checker: ExpressionChecker,
    verb: str,
    operator: tree.Word,
    left: tuple[tree.Expr, Amount],
    right: tuple[tree.Expr, Amount],
) -> None:
    """Report that two operands have different units, under the operator between them."""
    for (operand, amount), (_, other) in ((left, right), (right, left)):
        unit = CANONICAL.get(other.dimension)
        bare = isinstance(operand, tree.Quantity) and amount.dimension == NUMBER and not operand.text.endswith("%")
        if bare and unit and isinstance(operand, tree.Quantity):
            checker.findings.report(
                codes.UNIT_MISSING,
                f"cannot {verb}",
                operator.span,
                help=f"give {quoted(operand.text)} its unit, such as `{operand.text}{unit}`",
                fix=Fix(operand.span, operand.text + unit),
            )
            return
    notes = []
    for operand, amount in (left, right):
        phrase = type_name(amount) if amount.dimension == NUMBER else f"in {type_name(amount)}"
        notes.append(Note(f"{quoted(checker.source.slice(operand.span))} is {phrase}"))
    checker.findings.report(codes.UNITS_DIFFER, f"cannot {verb}", operator.span, notes=tuple(notes))


def _always(operator: str, left: whole.Whole, right: whole.Whole) -> bool | None:
    """What the comparison gives for every hit and step, as far as the intervals tell."""
    if operator in (">", ">="):
        left, right, operator = right, left, operator.replace(">", "<")
    if operator == "<":
        return True if left.high < right.low else False if left.low >= right.high else None
    if operator == "<=":
        return True if left.high <= right.low else False if left.low > right.high else None
    apart = left.high < right.low or right.high < left.low
    same = left.low == left.high == right.low == right.high
    if not apart and not same:
        return None
    return same == (operator == "==")
