"""Limits on what a policy may be, checked before a tree is built.

With them every later pass can recurse, and a hostile file costs a bounded amount of work.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvmove.errors import PolicyError
from kvmove.kvpol import codes
from kvmove.kvpol.findings import Finding, Findings
from kvmove.kvpol.lexer import Token
from kvmove.kvpol.render import render
from kvmove.kvpol.source import Source, Span

MAX_BYTES = 64 << 10  # of UTF-8 text
# What is read of a file: with a byte order mark dropped and a character cut in two, still more than the limit.
READ_BYTES = MAX_BYTES + 16
MAX_NESTING = 64  # parentheses, `not` and unary minus around each other
MAX_DIGITS = 30  # of one number
MAX_CHAIN = 900  # operands at one level of one expression

_OPERATORS = frozenset({"PLUS", "MINUS", "STAR", "SLASH", "AND", "OR", "COMMA"})
_PREFIXES = frozenset({"NOT", "MINUS"})
_ENDS_OPERAND = frozenset({"QUANTITY", "NAME", "TRUE", "FALSE", "RPAR"})
_STARTS = frozenset({"POLICY", "PARAM", "LET", "ASSERT", "LABEL", "IF"})


def decode(data: bytes, name: str) -> Source:
    """The text of a policy file, without a byte order mark.

    Raises:
        PolicyError: the bytes are not UTF-8, or they are no text (a NUL byte). There are no findings.
    """
    # Judged on what can be a policy at all: a huge file is not decoded to the end to say that it is too large.
    head = data[:READ_BYTES]
    try:
        text = head.decode("utf-8")
    except UnicodeDecodeError as e:
        cut_short = len(data) >= READ_BYTES and e.reason == "unexpected end of data"
        if not cut_short:
            raise PolicyError(
                f"{name}: not UTF-8 text (byte 0x{head[e.start]:02x} at offset {e.start}); save it as UTF-8"
            ) from None
        text = head[: e.start].decode("utf-8")
    if "\0" in text:
        raise PolicyError(f"{name}: not a text file (a NUL byte at offset {text.index(chr(0))})")
    return Source(name, text.removeprefix("\ufeff"))


def check_text(source: Source) -> None:
    """Refuse a text that no policy can be.

    Raises:
        PolicyError: it is over 64 KiB, or holds NULs or lone surrogates. There is one finding for the size.
    """
    text = source.text
    try:
        size = len(text) if len(text) > MAX_BYTES else len(text.encode("utf-8"))
    except UnicodeEncodeError:
        raise PolicyError(f"{source.name}: not text (a lone surrogate); decode the file as UTF-8") from None
    if "\0" in text:
        raise PolicyError(f"{source.name}: not text (a NUL at offset {text.index(chr(0))})")
    if size > MAX_BYTES:
        end = len(text)
        message = f"this policy is larger than {MAX_BYTES >> 10} KiB"
        help = "a policy is a few rules: is this the right file?"
        finding = Finding.of(codes.FILE_TOO_LARGE, message, Span(end - 1, end), help=help)
        raise PolicyError(render(finding, source), [finding])


def shorten_numbers(tokens: Sequence[Token], findings: Findings) -> list[Token]:
    """The tokens with 1 in place of a number that has too many digits, after reporting it."""
    short: list[Token] = []
    for token in tokens:
        unit = token.text.lstrip("0123456789_.") if token.kind == "QUANTITY" else ""
        if token.kind == "QUANTITY" and sum(map(str.isdigit, token.text.removesuffix(unit))) > MAX_DIGITS:
            findings.report(codes.TOO_MANY_DIGITS, f"a number with more than {MAX_DIGITS} digits", token.span)
            short.append(Token(token.kind, "1" + unit, token.span))
        else:
            short.append(token)
    return short


def check_tokens(tokens: Sequence[Token], findings: Findings) -> None:
    """Report expressions that nest too deep or go on too long."""
    outer: list[tuple[int, int]] = []  # (nesting, operators) of each open parenthesis
    prefixes = operators = nesting = 0
    previous = ""
    reported = False  # once in a statement: the rest of a bad expression is the same mistake
    for token in tokens:
        kind = token.kind
        if kind in _STARTS:
            outer.clear()
            prefixes = operators = nesting = 0
            reported = False
        elif kind == "LPAR":
            outer.append((nesting, operators))
            nesting, operators, prefixes = nesting + prefixes + 1, 0, 0
        elif kind == "RPAR" and outer:
            nesting, operators = outer.pop()
            prefixes = 0
        elif kind in _PREFIXES and previous not in _ENDS_OPERAND:
            prefixes += 1
        elif kind in _OPERATORS:
            operators += 1
            prefixes = 0
        if not reported and nesting + prefixes > MAX_NESTING:
            findings.report(
                codes.TOO_DEEP,
                f"this expression nests deeper than {MAX_NESTING}",
                token.span,
                help="name its parts with `let`",
            )
            reported = True
        if not reported and operators >= MAX_CHAIN:
            findings.report(
                codes.TOO_MANY_OPERANDS,
                f"more than {MAX_CHAIN} operands in one expression",
                token.span,
                help="name its parts with `let`",
            )
            reported = True
        previous = kind
