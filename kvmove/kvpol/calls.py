"""Checks calls of the language's functions: min, max, abs, clamp and known."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvmove.kvpol import checked, codes, exact, tree
from kvmove.kvpol.findings import Fix, Note
from kvmove.kvpol.scope import FUNCTIONS, Amount, Claim, Meaning, type_name
from kvmove.kvpol.source import quoted
from kvmove.kvpol.suggest import did_you_mean, listed
from kvmove.kvpol.units import CANONICAL, NUMBER

if TYPE_CHECKING:
    from kvmove.kvpol.expressions import ExpressionChecker

_ARGUMENTS = {
    "min": (2, "two arguments or more"),
    "max": (2, "two arguments or more"),
    "abs": (1, "one argument"),
    "clamp": (3, "three arguments: a value, its lowest and its highest"),
    "known": (1, "one argument"),
}


def check_call(checker: ExpressionChecker, call: tree.Call) -> Meaning:  # noqa: PLR0911 - one return for each case
    """What a call means, or None after reporting why it means nothing."""
    name = call.function.text
    if name == "known":
        return _known(checker, call)
    meanings = checker.check_all(call.arguments)
    if not _fits(checker, call):
        return None
    amounts = [m for m in meanings if isinstance(m, Amount)]
    for argument, m in zip(call.arguments, meanings, strict=True):
        if isinstance(m, Claim):
            checker.findings.report(codes.NO_AMOUNT, f"`{name}` needs amounts, but this is a condition", argument.span)
    if len(amounts) < len(meanings) or not _same_units(checker, call, amounts):
        return None
    ratios = [a.ratio for a in amounts]
    match name:
        case "min":
            return checker.amount(call.span, lambda: exact.least(ratios), amounts)
        case "max":
            return checker.amount(call.span, lambda: exact.most(ratios), amounts)
        case "abs":
            return checker.amount(call.span, lambda: exact.magnitude(ratios[0]), amounts)
    if ratios[1].range.low > ratios[2].range.high:
        checker.findings.report(
            codes.CLAMP_REVERSED, "the lowest value of this `clamp` is above its highest", call.span
        )
        return None
    return checker.amount(call.span, lambda: exact.least([exact.most(ratios[:2]), ratios[2]]), amounts)


def _known(checker: ExpressionChecker, call: tree.Call) -> Meaning:
    # What stands in `known` is asked about, not read: it needs no guard of its own.
    reads = dict(checker.scope.reads)
    meanings = checker.check_all(call.arguments)
    checker.scope.reads = reads
    if not _fits(checker, call) or meanings[0] is None:
        return None
    argument = meanings[0]
    if isinstance(argument, Claim):
        checker.findings.report(
            codes.NO_AMOUNT,
            "`known` asks about an amount, but this is a condition",
            call.arguments[0].span,
            help="ask about the estimates that it reads",
        )
        return None
    if not argument.needs:
        text = quoted(checker.source.slice(call.arguments[0].span))
        checker.findings.report(
            codes.ALWAYS_KNOWN, f"{text} is always known", call.span, help="leave this condition out"
        )
        return Claim(checked.TRUE)
    checker.scope.asked |= argument.needs
    return Claim(checked.Known(tuple(sorted(argument.needs, key=lambda v: v.name)), negated=False))


def _fits(checker: ExpressionChecker, call: tree.Call) -> bool:
    name, given = call.function.text, len(call.arguments)
    if name not in FUNCTIONS:
        help = did_you_mean(name, FUNCTIONS) or f"the functions are {listed(FUNCTIONS)}"
        checker.findings.report(
            codes.UNKNOWN_FUNCTION, f"unknown function {quoted(name)}", call.function.span, help=help
        )
        return False
    needed, spelled = _ARGUMENTS[name]
    if given == needed or (given > needed and name in ("min", "max")):
        return True
    checker.findings.report(codes.ARGUMENTS, f"`{name}` takes {spelled}, not {given}", call.span)
    return False


def _same_units(checker: ExpressionChecker, call: tree.Call, amounts: list[Amount]) -> bool:
    agree = True
    first = amounts[0]
    for argument, amount in zip(call.arguments[1:], amounts[1:], strict=True):
        if amount.dimension == first.dimension:
            continue
        agree = False
        unit = CANONICAL.get(first.dimension)
        help, fix, code = None, None, codes.UNITS_DIFFER
        if unit and amount.dimension == NUMBER and isinstance(argument, tree.Quantity) and argument.text[-1] != "%":
            help = f"give {quoted(argument.text)} its unit, such as `{argument.text}{unit}`"
            fix, code = Fix(argument.span, argument.text + unit), codes.UNIT_MISSING
        note = Note(f"{quoted(checker.source.slice(call.arguments[0].span))} is {_in(first)}")
        checker.findings.report(
            code,
            f"the arguments of `{call.function.text}` need one unit, but this is {_in(amount)}",
            argument.span,
            help=help,
            fix=fix,
            notes=(note,),
        )
    return agree


def _in(amount: Amount) -> str:
    return type_name(amount) if amount.dimension == NUMBER else f"in {type_name(amount)}"
