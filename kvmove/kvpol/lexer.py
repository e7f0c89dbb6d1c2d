"""Text to tokens. Everything that bounds the work of later passes is refused here, before a tree exists."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from kvmove.kvpol import codes
from kvmove.kvpol.findings import Findings, Fix
from kvmove.kvpol.grammar import grammar
from kvmove.kvpol.source import Source, Span, quoted
from kvmove.kvpol.units import UNITS, is_like_unit

MAX_TOKENS = 4_000
MAX_STRAY = Findings.MOST  # places with characters that are no token; of more, none would be reported

# Characters that people bring from other languages, and what they stand for here.
_FOREIGN = {
    "&": "and",
    "|": "or",
    "!": "not",
    ";": "",
    "{": "",
    "}": "",
    "'": '"',
    "≤": "<=",
    "≥": ">=",
    "≠": "!=",
    "µ": "u",
    "μ": "u",
}
_FOREIGN_OPERATORS = "&|!≤≥≠"


@dataclass(frozen=True, slots=True)
class Token:
    """One token: `kind` is its terminal's name in the grammar."""

    kind: str
    text: str
    span: Span


def tokenize(source: Source, findings: Findings) -> list[Token]:
    """The tokens of `source`.

    Characters that begin no token are reported and skipped. The list ends early when a limit is passed, which
    is reported too.
    """
    tokens: list[Token] = []
    for token in _tokens_of(source, findings):
        if len(tokens) == MAX_TOKENS:
            findings.report(
                codes.TOO_MANY_TOKENS,
                f"this policy has more than {MAX_TOKENS} tokens",
                token.span,
                help="split or simplify it",
            )
            break
        tokens.append(token)
    return _joined_units(source, tokens, findings)


def _tokens_of(source: Source, findings: Findings) -> Iterator[Token]:
    from lark import UnexpectedCharacters

    base = stray = 0
    while base < len(source.text):
        try:
            # Not `Lark.lex`, which builds a new lexer at each call: that takes longer than checking a policy.
            parser: Any = grammar().parse_interactive(source.text[base:])
            for t in parser.lexer_thread.lex(None):
                start = base + (t.start_pos or 0)
                yield Token(t.type, str(t), Span(start, start + len(t)))
            return
        except UnexpectedCharacters as e:
            start = base + (e.pos_in_stream or 0)
            base = _report_stray(source, start, findings)
            stray += 1
            if stray == MAX_STRAY:
                return


def _report_stray(source: Source, start: int, findings: Findings) -> int:
    """Report the characters from `start` on that begin no token; returns where reading can go on."""
    text, character = source.text, source.text[start]
    if character == '"':
        end = text.find("\n", start)
        end = len(text) if end < 0 else end
        findings.report(
            codes.OPEN_STRING, "this string has no end", Span(start, end), help='write the closing `"` on the same line'
        )
        return end
    end = start + 1
    while end < len(text) and not (text[end].isascii() and (text[end].isalnum() or text[end] in ' \t\r\n_@#"()')):
        end += 1
        if character in _FOREIGN and text[end - 1] != character:
            end -= 1
            break
    stray = text[start:end]
    meant = _FOREIGN.get(character)
    if character == "!":
        help = "write `not`, or `!=` for a comparison"
    elif meant:
        help = f"write `{meant}`"
    elif meant == "":
        help = "statements need no end and no braces: leave it out"
    elif character in "@":
        help = "a label is `@` and a name, as in `@small sync`"
    elif character == ".":
        help = "a number needs digits before and after its point, as in `0.5ms`"
    else:
        help = None
    code = codes.FOREIGN_OPERATOR if character in _FOREIGN_OPERATORS else codes.STRAY
    span = Span(start, end)
    fix = Fix(span, _apart(text, span, meant)) if meant and set(stray) == {character} else None
    findings.report(code, f"{quoted(stray)} means nothing here", span, help=help, fix=fix if character != "!" else None)
    return end


def _apart(text: str, span: Span, word: str) -> str:
    """`word` as it can stand in place of `span`: with a space where it would run into its neighbours."""
    if not word.isalpha() or len(word) == 1:
        return word
    before = " " if text[span.start - 1 : span.start].strip() else ""
    return before + word + (" " if text[span.end : span.end + 1].strip() else "")


def _joined_units(source: Source, tokens: list[Token], findings: Findings) -> list[Token]:
    """Read `64 MiB` as `64MiB`, after reporting it: one mistake, not a chain of them.

    `64 mb` becomes `64mb`, of which the checker says that its unit is unknown. No statement has a name after a number.
    """
    joined: list[Token] = []
    for token in tokens:
        before = joined[-1] if joined else None
        if (
            before is not None
            and before.kind == "QUANTITY"
            and token.kind == "NAME"
            and is_like_unit(token.text)
            and before.text[-1].isdigit()
            and source.text[before.span.end : token.span.start].strip(" \t") == ""
        ):
            span = before.span.to(token.span)
            whole = Token("QUANTITY", before.text + token.text, span)
            if token.text in UNITS:
                findings.report(
                    codes.SPACED_UNIT,
                    f"a space between {quoted(before.text)} and its unit {quoted(token.text)}",
                    span,
                    help=f"a number and its unit are one word: write {quoted(whole.text)}",
                    fix=Fix(span, whole.text),
                )
            joined[-1] = whole
        else:
            joined.append(token)
    return joined
