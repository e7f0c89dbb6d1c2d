"""What to say about a token that cannot be where it is."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from kvmove.kvpol import codes
from kvmove.kvpol.findings import Findings, Fix
from kvmove.kvpol.lexer import Token
from kvmove.kvpol.source import quoted
from kvmove.kvpol.suggest import closest, listed

ACTIONS = frozenset({"SYNC", "ASYNC", "RECOMPUTE", "DEFER"})
COMPARISONS = frozenset({"LT", "LE", "GT", "GE", "EQ", "NE"})

KEYWORDS = (
    "policy", "param", "let", "if", "at", "most", "assert", "implies", "or", "and", "not", "true", "false",
    "sync", "async", "recompute", "defer",
)  # fmt: skip
_DECISIONS = ("sync", "async", "recompute", "defer")
_STARTERS = ("param", "let", "assert", "sync", "async", "recompute", "defer")

_SPELLED = {
    "EQUAL": "=", "COLON": ":", "LPAR": "(", "RPAR": ")", "COMMA": ",", "IF": "if", "AT": "at", "MOST": "most",
    "IMPLIES": "implies",
}  # fmt: skip


def report_syntax_error(
    tokens: Sequence[Token], at: int, expected: frozenset[str], following: Token | None, findings: Findings
) -> None:
    """Report that token `at` of a statement's `tokens` cannot follow; at `len(tokens)`, that the end comes too early.

    `following` is the first token of the next statement, `expected` the kinds that could follow.
    """
    found = tokens[at] if at < len(tokens) else None
    before = tokens[at - 1] if at else None
    opened = _unclosed(tokens[:at])
    if found is None:
        _report_end(tokens[-1], expected, following, opened, findings)
        return
    span = found.span
    keyword = found.text in KEYWORDS
    if found.kind == "RPAR" and opened is None:
        findings.report(codes.LONE_PARENTHESIS, "this `)` closes nothing", span)
    elif keyword and expected == {"NAME"}:
        findings.report(
            codes.RESERVED,
            f"`{found.text}` is a word of the language and cannot be a name",
            span,
            help="choose another name",
        )
    elif found.kind == "EQUAL" and "EQ" in expected:
        findings.report(
            codes.ASSIGNED,
            "`=` gives a name a value and does not compare",
            span,
            help="write `==`",
            fix=Fix(span, "=="),
        )
    elif found.kind in COMPARISONS and _compared(tokens[:at]):
        findings.report(
            codes.MIXED_CHAIN,
            "comparisons do not chain this way",
            span,
            help="a chain has one direction, `a < b <= c` or `a > b >= c`; join others with `and`",
        )
    elif is_misspelled_decision(tokens, at) or (before and is_misspelled_decision(tokens, at - 1)):
        wrong = found if is_misspelled_decision(tokens, at) else tokens[at - 1]
        word = _decision_like(wrong.text) or ""
        fix: Fix | None = Fix(wrong.span, word)
        message = f"unknown decision {quoted(wrong.text)}"
        findings.report(codes.UNKNOWN_DECISION, message, wrong.span, help=f"did you mean `{word}`?", fix=fix)
    elif found.kind in ("NAME", "LPAR", "QUANTITY", "NOT") and "IF" in expected and before and before.kind in ACTIONS:
        findings.report(
            codes.IF_MISSING, f"`if` is missing before {quoted(found.text)}", span, help="write `if` before a condition"
        )
    elif found.kind == "IF" and before is None:
        findings.report(
            codes.DECISION_MISSING,
            "a rule starts with its decision",
            span,
            help="write `sync if`, `async if`, `recompute if` or so",
        )
    elif found.kind == "IF" and any(t.kind == "IF" for t in tokens[:at]):
        findings.report(codes.SECOND_IF, "a second `if` in one rule", span, help="join conditions with `and`")
    else:
        message = f"expected {_spelled(expected)}, found {quoted(found.text)}"
        help, fix = _meant(found, expected)
        capitals = found.kind == "NAME" and found.text.lower() in KEYWORDS
        code = codes.UPPER_CASE if capitals else codes.UNEXPECTED
        findings.report(code, message, span, help=help, fix=fix)


def is_misspelled_decision(tokens: Sequence[Token], at: int) -> bool:
    """Whether token `at` is a name before an `if` that reads almost like a decision."""
    before_if = at + 1 < len(tokens) and tokens[at + 1].kind == "IF"
    return before_if and tokens[at].kind == "NAME" and _decision_like(tokens[at].text) is not None


@lru_cache(maxsize=256)  # asked of a word several times; finding close words takes long
def _decision_like(word: str) -> str | None:
    return closest(word, _DECISIONS)


def _report_end(
    last: Token, expected: frozenset[str], following: Token | None, opened: Token | None, findings: Findings
) -> None:
    if opened is not None and "RPAR" in expected:
        findings.report(codes.OPEN_PARENTHESIS, "this `(` is never closed", opened.span)
        return
    found = f"found {quoted(following.text)}, which starts the next statement" if following else "found the end"
    # Where the statement breaks off, not where the next one starts: that one is not to blame.
    findings.report(
        codes.ENDS_TOO_EARLY, f"expected {_spelled(expected)} after {quoted(last.text)}, {found}", last.span
    )


def _unclosed(tokens: Sequence[Token]) -> Token | None:
    opened: list[Token] = []
    for t in tokens:
        if t.kind == "LPAR":
            opened.append(t)
        elif t.kind == "RPAR" and opened:
            opened.pop()
    return opened[-1] if opened else None


def _compared(tokens: Sequence[Token]) -> bool:
    """Whether the operand that just ended is the right side of a comparison already."""
    depth = 0
    for t in reversed(tokens):
        depth += (t.kind == "RPAR") - (t.kind == "LPAR")
        if depth < 0 or (depth == 0 and t.kind in ("AND", "OR", "NOT", "IF", "EQUAL", "COMMA")):
            return False
        if depth == 0 and t.kind in COMPARISONS:
            return True
    return False


def _spelled(expected: frozenset[str]) -> str:  # noqa: PLR0911 - one return for each case
    """The expected kinds in words, the most telling ones."""
    if "QUANTITY" in expected and "NAME" in expected:
        return "a decision or an expression" if expected & ACTIONS else "an expression"
    if "QUANTITY" in expected:
        return "a constant, such as `64MiB` or `true`"
    if "STRING" in expected:
        return 'a name in quotes, such as `"budgeted"`'
    if "NAME" in expected:
        return "a name"
    if "LET" in expected and not expected & (COMPARISONS | {"PLUS", "OR", "IF"}):
        return "a statement"
    if "LET" not in expected and expected & ACTIONS:
        return "`sync`, `async`, `recompute` or `defer`"
    spelled = [_SPELLED[kind] for kind in _SPELLED if kind in expected]
    if spelled and len(spelled) <= 2 and not expected & COMPARISONS:
        return " or ".join(f"`{s}`" for s in spelled)
    if "RPAR" in expected:
        return "an operator, `,` or `)`" if "COMMA" in expected else "an operator or `)`"
    if expected & COMPARISONS or "OR" in expected:
        return "an operator or the next statement"
    return "a statement"


def _meant(found: Token, expected: frozenset[str]) -> tuple[str | None, Fix | None]:
    if found.kind == "NAME":
        if found.text.lower() in KEYWORDS:
            lower = found.text.lower()
            return f"words of the language are lower case: write `{lower}`", Fix(found.span, lower)
        candidates = [w for w in KEYWORDS if w.upper() in expected]
        word = closest(found.text, candidates)
        if word is not None:
            return f"did you mean `{word}`?", Fix(found.span, word)
        if "LET" in expected and not expected & {"OR", "IF"}:
            return f"a statement starts with {listed(_STARTERS)} or a label", None
    if found.kind == "STRING":
        return "strings are only for the name after `policy`", None
    return None, None
