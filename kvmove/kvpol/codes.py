"""Every kind of finding, each with a code that never changes: what tools match, and `kvmove explain` explains.

KV0xx syntax, KV1xx names, KV2xx units, types and ranges, KV3xx structure and limits, KV4xx proof. A code that
is no longer given is not given to anything else. Each has a page, `docs/errors/KVnnn.md`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """Whether a policy can be used in spite of a finding."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class Code:
    """One kind of finding: its code, what it is in a few words, and how bad. `strict`: given on request only."""

    name: str
    title: str
    severity: Severity = Severity.ERROR
    strict: bool = False

    def __str__(self) -> str:
        return self.name


CODES: dict[str, Code] = {}  # by name, in order


def _code(number: int, title: str, severity: Severity = Severity.ERROR, *, strict: bool = False) -> Code:
    code = Code(f"KV{number:03}", title, severity, strict)
    assert code.name not in CODES
    CODES[code.name] = code
    return code


_WARNING = Severity.WARNING

UNEXPECTED = _code(1, "something else is expected here")
ENDS_TOO_EARLY = _code(2, "a statement ends too early")
STRAY = _code(3, "a character that means nothing")
FOREIGN_OPERATOR = _code(4, "an operator of another language, such as `&&`")
OPEN_STRING = _code(5, "a string without an end")
ASSIGNED = _code(6, "`=` where `==` is meant")
OPEN_PARENTHESIS = _code(7, "a `(` that is never closed")
LONE_PARENTHESIS = _code(8, "a `)` that closes nothing")
SPACED_UNIT = _code(9, "a space between a number and its unit")
RESERVED = _code(10, "a word of the language as a name")
IF_MISSING = _code(11, "a condition without `if`")
DECISION_MISSING = _code(12, "a rule without its decision")
UNKNOWN_DECISION = _code(13, "an unknown decision")
SECOND_IF = _code(14, "a second `if` in one rule")
MIXED_CHAIN = _code(15, "comparisons that do not chain")
UPPER_CASE = _code(16, "a word of the language in capitals")
MISPLACED_HEADER = _code(17, "`policy` anywhere but at the top")
BAD_TITLE = _code(18, "a name after `policy` that cannot be shown")
EXPONENT = _code(19, "exponent notation, such as `1e9`")

UNKNOWN_NAME = _code(101, "an unknown name")
UNKNOWN_UNIT = _code(102, "an unknown unit")
UNKNOWN_FUNCTION = _code(103, "an unknown function")
UNKNOWN_TYPE = _code(104, "an unknown type")
USED_TOO_EARLY = _code(105, "a name used above its definition")
DEFINED_TWICE = _code(106, "a name defined twice")
SHADOWS = _code(107, "a name that the language has already")
LABEL_TWICE = _code(108, "a label on two rules")
NEVER_USED = _code(109, "a param or let that is never used", _WARNING)
ONLY_AFTERWARDS = _code(110, "a variable that is known only after the decision")

UNITS_DIFFER = _code(201, "units that do not go together")
UNIT_MISSING = _code(202, "a number without its unit")
NO_CONDITION = _code(203, "an amount where a condition is needed")
NO_AMOUNT = _code(204, "a condition where an amount is needed")
INEXACT = _code(205, "an amount that is not whole")
MAY_BE_ZERO = _code(206, "a division by what can be zero")
TOO_LARGE = _code(207, "an amount that can reach 2^128")
OUT_OF_RANGE = _code(208, "a value outside its declared range")
NEVER_REACHED = _code(209, "a comparison with an amount outside the variable's range", _WARNING)
WRONG_TYPE = _code(210, "a param's value that does not have its type")
ARGUMENTS = _code(211, "a wrong number of arguments")
CLAMP_REVERSED = _code(212, "a `clamp` with its ends the wrong way round")
LIMIT_UNIT = _code(213, "an `at most` that is neither bytes nor tokens")
MAY_BE_UNKNOWN = _code(214, "an estimate that decides and may be unknown", _WARNING, strict=True)
ALWAYS_KNOWN = _code(215, "`known` of what is always known", _WARNING)

UNREACHABLE = _code(301, "a rule after one that always matches")
IMPLICIT_LAST = _code(302, "the last rule left to be `async`", _WARNING, strict=True)
NO_RULE = _code(303, "a policy without a rule", _WARNING)
CONSTANT = _code(304, "a condition that is always true or always false", _WARNING)
FILE_TOO_LARGE = _code(310, "a file of more than 64 KiB")
TOO_MANY_TOKENS = _code(311, "more than 4,000 tokens")
TOO_DEEP = _code(312, "an expression that nests deeper than 64")
TOO_MANY_OPERANDS = _code(313, "more than 900 operands in one expression")
TOO_MANY_DIGITS = _code(314, "a number of more than 30 digits")
TOO_MANY_RULES = _code(315, "more than 255 rules")
TOO_COMPLEX = _code(316, "an expression of too many operations")

ASSERT_FAILS = _code(401, "an `assert` that can be false")
DEAD_RULE = _code(402, "a rule that can never decide")
NOT_MONOTONE = _code(403, "a larger hit loads inside the step where a smaller one does not")
BEYOND_BUDGET = _code(404, "a `sync` that can exceed the step's budget and relies on the scheduler", _WARNING)
UNDECIDED = _code(405, "a question that the solver did not answer", _WARNING)
