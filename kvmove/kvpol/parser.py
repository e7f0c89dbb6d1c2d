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

_BEFORE_OUTCOME = frozenset({"ASSERT", "IMPLIES", "OR", "NOT"})
_STARTS_RULE = ACTIONS | {"LABEL", "NAME"}  # a name: a misspelled decision
_ENDS_RULE = ACTIONS | {"QUANTITY", "NAME", "TRUE", "FALSE", "RPAR", "STRING"}


def parse(source: Source, findings: Findings) -> tree.File:
    """The tree of `source` as far as it can be read; what cannot is in `findings`.

    A policy of too many tokens gives an empty tree, since it was not read to its end.
    """
    tokens = shorten_numbers(tokenize(source, findings), findings)
    cut_short = findings.any_in(Span(0, len(source.text)), (codes.TOO_MANY_TOKENS,))
    is_bounded = _is_bounded(tokens, findings if cut_short else Findings())
    if cut_short or not tokens:
        return tree.File(None, ())
    if not is_bounded and not _all_bounded(source, tokens):
        return _recover(source, tokens, len(tokens), findings)
    whole = _read(tokens)
    if not isinstance(whole, int):
        return _file(whole, frozenset())
    return _recover(source, tokens, whole, findings)


def _read(tokens: Sequence[Token]) -> list[Any] | int:
    # Imported with the first policy: it brings lark.
    from kvmove.kvpol.lalr import read

    return read(tokens)


def expected_at(tokens: Sequence[Token], at: int) -> frozenset[str]:
    """The kinds of token that could follow the first `at` of `tokens`."""
    from lark import Token as LarkToken

    parser: Any = grammar().parse_interactive()
    for t in tokens[:at]:
        parser.feed_token(LarkToken(t.kind, t.text))
    return frozenset(parser.accepts())


def _file(nodes: Sequence[Any], damaged: frozenset[str]) -> tree.File:
    header = nodes[0] if nodes and isinstance(nodes[0], tree.Header) else None
    return tree.File(header, tuple(nodes if header is None else nodes[1:]), damaged)


def _recover(source: Source, tokens: Sequence[Token], failed_at: int, findings: Findings) -> tree.File:
    """Read each statement on its own, so that a broken one hides no mistake of the others and causes none."""
    header: tree.Header | None = None
    statements: list[tree.Statement] = []
    damaged: set[str] = set()
    reported = findings.has_errors
    for start, end in _statement_ranges(source, tokens):
        chunk = tokens[start:end]
        if not _is_bounded(chunk, findings):
            reported = True
            damaged.update(_defined_by(chunk))
            continue
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
        result = _read(chunk)
        if isinstance(result, int):
            following = tokens[end] if end < len(tokens) else None
            # A character that was reported as stray left a gap; what fails beside it is not a second mistake.
            if not findings.full and not _beside_stray(chunk, result, source, findings):
                report_syntax_error(chunk, result, expected_at(chunk, result), following, findings)
            reported = True
            damaged.update(_defined_by(chunk))
            continue
        file = _file(result, frozenset())
        header = header or file.header
        statements += file.statements
    if not reported:
        report_syntax_error(tokens, failed_at, expected_at(tokens, failed_at), None, findings)
    return tree.File(header, tuple(statements), frozenset(damaged))


def _is_bounded(tokens: Sequence[Token], findings: Findings) -> bool:
    """Whether `tokens` nest and go on no longer than can be read; else that is reported."""
    limits = Findings()
    check_tokens(tokens, limits)
    for finding in limits.sorted():
        findings.add(finding)
    return not limits.has_errors


def _all_bounded(source: Source, tokens: Sequence[Token]) -> bool:
    """Whether each statement is, though together they look like one expression: limits end at no statement's end."""
    return all(_is_bounded(tokens[start:end], Findings()) for start, end in _statement_ranges(source, tokens))


def _defined_by(chunk: Sequence[Token]) -> Iterator[str]:
    """The name that a broken statement would define."""
    if chunk[0].kind in ("LET", "PARAM"):
        yield from (t.text for t in chunk[1:2] if t.kind == "NAME")


def _statement_ranges(source: Source, tokens: Sequence[Token]) -> Iterator[tuple[int, int]]:
    """Half-open ranges [start, end) of token indices, one for each statement as far as its first word tells.

    Lines mean nothing in a policy without mistakes. In one with a mistake, what starts a line tells where the
    statement begins that its author had in mind.
    """
    starts = [0]
    takes_if = tokens[0].kind in _STARTS_RULE
    for i in range(1, len(tokens)):
        kind, before = tokens[i].kind, tokens[i - 1].kind
        if before in ("LET", "PARAM"):
            continue  # a keyword where a name should be
        first = _starts_line(source, tokens, i)
        goes_on = before == "LABEL" or (before in _BEFORE_OUTCOME and not (first and _is_rule(tokens, i)))
        begins = kind in ACTIONS and not goes_on
        begins = begins or ((before in _ENDS_RULE or first) and is_misspelled_decision(tokens, i))
        begins = begins or (kind == "IF" and first and not takes_if)  # a rule without its decision
        if begins or kind in ("POLICY", "PARAM", "LET", "ASSERT", "LABEL"):
            starts.append(i)
            takes_if = kind in _STARTS_RULE
        takes_if = takes_if and kind != "IF"
    yield from zip(starts, [*starts[1:], len(tokens)], strict=True)


def _starts_line(source: Source, tokens: Sequence[Token], at: int) -> bool:
    return "\n" in source.text[tokens[at - 1].span.end : tokens[at].span.start]


def _is_rule(tokens: Sequence[Token], at: int) -> bool:
    """Whether the decision at `at` has what follows it in a rule and not in an assert."""
    return at + 1 < len(tokens) and tokens[at + 1].kind in ("IF", "AT")


def _beside_stray(chunk: Sequence[Token], at: int, source: Source, findings: Findings) -> bool:
    low = chunk[0].span.start
    high = chunk[at].span.end if at < len(chunk) else _line_end(source, chunk[-1].span)
    return findings.touches(low, high)


def _line_end(source: Source, span: Span) -> int:
    end = source.text.find("\n", span.end)
    return len(source.text) + 1 if end < 0 else end
