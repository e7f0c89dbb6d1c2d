"""Tokens to a tree. A statement with a syntax error is reported and left out; the others are still there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from kvmove.kvpol import codes, tree
from kvmove.kvpol.findings import Findings, Note
from kvmove.kvpol.grammar import grammar
from kvmove.kvpol.lexer import Token, tokenize
from kvmove.kvpol.limits import check_tokens, shorten_numbers
from kvmove.kvpol.source import Source, Span
from kvmove.kvpol.syntax import ACTIONS, is_misspelled_decision, report_syntax_error

_ENDS_RULE = ACTIONS | {"QUANTITY", "NAME", "TRUE", "FALSE", "RPAR", "STRING"}


def parse(source: Source, findings: Findings) -> tree.File:
    """The tree of `source` as far as it can be read; what cannot is in `findings`.

    A policy over a limit (see `kvmove.kvpol.limits`) gives an empty tree.
    """
    limits = Findings()
    tokens = shorten_numbers(tokenize(source, findings), findings)
    check_tokens(tokens, limits)
    for finding in limits.sorted():
        findings.add(finding)
    cut_short = findings.any_in(Span(0, len(source.text)), (codes.TOO_MANY_TOKENS,))
    if limits.has_errors or cut_short or not tokens:
        return tree.File(None, ())
    whole = _feed(tokens)
    if not isinstance(whole, int):
        return _file(whole, frozenset())
    return _recover(source, tokens, whole, findings)


def _feed(tokens: Sequence[Token]) -> Any:
    """Lark's tree for `tokens`, or the index of the first token that cannot follow (their number: the end)."""
    from lark import Token as LarkToken
    from lark import UnexpectedToken

    parser: Any = grammar().parse_interactive()
    at = 0
    last = None
    try:
        for at, t in enumerate(tokens):  # noqa: B007 - read after the loop
            last = LarkToken(t.kind, t.text, start_pos=t.span.start, end_pos=t.span.end)
            parser.feed_token(last)
        at = len(tokens)
        return parser.feed_eof(last)
    except UnexpectedToken:
        return at


def expected_at(tokens: Sequence[Token], at: int) -> frozenset[str]:
    """The kinds of token that could follow the first `at` of `tokens`."""
    from lark import Token as LarkToken

    parser: Any = grammar().parse_interactive()
    for t in tokens[:at]:
        parser.feed_token(LarkToken(t.kind, t.text))
    return frozenset(parser.accepts())


def _file(whole: Any, damaged: frozenset[str]) -> tree.File:
    from kvmove.kvpol.build import build_statement

    header: tree.Header | None = None
    statements: list[tree.Statement] = []
    for child in whole.children:
        statement = build_statement(child)
        if isinstance(statement, tree.Header):
            header = statement
        else:
            statements.append(statement)
    return tree.File(header, tuple(statements), damaged)


def _recover(source: Source, tokens: Sequence[Token], failed_at: int, findings: Findings) -> tree.File:
    """Read each statement on its own, so that a broken one hides no mistake of the others and causes none."""
    header: tree.Header | None = None
    statements: list[tree.Statement] = []
    damaged: set[str] = set()
    reported = findings.has_errors
    for start, end in _statement_ranges(tokens):
        chunk = tokens[start:end]
        if chunk[0].kind == "POLICY" and start > 0:
            notes = (Note("the first one is here", header.span),) if header else ()
            findings.report(
                codes.MISPLACED_HEADER,
                "`policy` names the whole file, so it comes first and once",
                chunk[0].span,
                notes=notes,
            )
            reported = True
            continue
        result = _feed(chunk)
        if isinstance(result, int):
            following = tokens[end] if end < len(tokens) else None
            # A character that was reported as stray left a gap; what fails beside it is not a second mistake.
            if not findings.full and not _beside_stray(chunk, result, source, findings):
                report_syntax_error(chunk, result, expected_at(chunk, result), following, findings)
            reported = True
            damaged.update(t.text for t in chunk[1:2] if chunk[0].kind in ("LET", "PARAM") and t.kind == "NAME")
            continue
        file = _file(result, frozenset())
        header = header or file.header
        statements += file.statements
    if not reported:
        report_syntax_error(tokens, failed_at, expected_at(tokens, failed_at), None, findings)
    return tree.File(header, tuple(statements), frozenset(damaged))


def _statement_ranges(tokens: Sequence[Token]) -> Iterator[tuple[int, int]]:
    """Half-open ranges [start, end) of token indices, one for each statement as far as its first word tells."""
    starts = [0]
    for i in range(1, len(tokens)):
        kind, before = tokens[i].kind, tokens[i - 1].kind
        if before in ("LET", "PARAM"):
            continue  # a keyword where a name should be
        begins = kind in ACTIONS and before not in ("LABEL", "ASSERT", "IMPLIES", "OR", "NOT")
        begins = begins or (before in _ENDS_RULE and is_misspelled_decision(tokens, i))
        if begins or kind in ("POLICY", "PARAM", "LET", "ASSERT", "LABEL"):
            starts.append(i)
    yield from zip(starts, [*starts[1:], len(tokens)], strict=True)


def _beside_stray(chunk: Sequence[Token], at: int, source: Source, findings: Findings) -> bool:
    low = chunk[0].span.start
    high = chunk[at].span.end if at < len(chunk) else _line_end(source, chunk[-1].span)
    return findings.touches(low, high)


def _line_end(source: Source, span: Span) -> int:
    end = source.text.find("\n", span.end)
    return len(source.text) + 1 if end < 0 else end
