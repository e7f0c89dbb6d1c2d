"""What can stand where the cursor is: asked of the grammar's own parser, fed with the tokens before it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kvmove.editors.document import Document
from kvmove.kvpol.grammar import grammar
from kvmove.kvpol.lexer import Token
from kvmove.kvpol.source import Span
from kvmove.records import Action

# What is being typed: a label, a number with the start of its unit, a word. At the end of a line's text.
_TYPED = re.compile(
    r"(?P<label>@[A-Za-z0-9_]*)$|(?<![A-Za-z0-9_])[0-9][0-9_]*(\.[0-9]+)?(?P<unit>[A-Za-z_%]*)$|(?P<word>[A-Za-z_]\w*)$",
    re.ASCII,
)
_ACTIONS = frozenset(action.name for action in Action)
_STARTERS = frozenset({"POLICY", "PARAM", "LET", "ASSERT", "LABEL"})


@dataclass(frozen=True, slots=True)
class Context:
    """The place where something is being typed.

    `accepted` has the kinds of token that can stand there, or is None where the text before makes no sense.
    """

    typed: Span  # what is there of the word already
    is_unit: bool  # directly after a number
    accepted: frozenset[str] | None
    before: str  # the kind of the token before, empty at the start of the text
    in_assert: bool


def context_at(document: Document, offset: int) -> Context | None:
    """What can stand at `offset`; None in a comment, a string or a label, where nothing of the language does."""
    line = document.source.text[:offset].rpartition("\n")[2]
    if _in_string_or_comment(line):
        return None
    found = _TYPED.search(line)
    if found is not None and found["label"] is not None:
        return None
    is_unit = found is not None and found["unit"] is not None
    length = len(found["unit" if is_unit else "word"]) if found else 0
    typed = Span(offset - length, offset)
    tokens = [t for t in document.tokens if t.span.end <= typed.start]
    before = tokens[-1].kind if tokens else ""
    return Context(typed, is_unit, None if is_unit else _accepted(tokens), before, _in_assert(tokens))


def _in_string_or_comment(line: str) -> bool:
    in_string = False
    for character in line:
        if character == '"':
            in_string = not in_string
        elif character == "#" and not in_string:
            return True
    return in_string


def _accepted(tokens: Sequence[Token]) -> frozenset[str] | None:
    """The kinds of token that can follow `tokens`. A statement that does not parse is left out, as the parser does."""
    from lark import Token as LarkToken
    from lark import UnexpectedToken

    start = 0
    while start < len(tokens) or not tokens:
        parser: Any = grammar().parse_interactive()
        at = start
        try:
            for at in range(start, len(tokens)):
                parser.feed_token(LarkToken(tokens[at].kind, tokens[at].text))
            return frozenset(parser.accepts())
        except UnexpectedToken:
            start = next((i for i in range(max(at, start + 1), len(tokens)) if _starts(tokens, i)), len(tokens))
    return None


def _starts(tokens: Sequence[Token], i: int) -> bool:
    """Whether token `i` starts a statement, as far as its neighbour tells: `sync` after `implies` is a claim."""
    before = tokens[i - 1].kind if i else ""
    if tokens[i].kind in _ACTIONS:
        return before not in ("LABEL", "ASSERT", "IMPLIES", "OR", "NOT")
    return tokens[i].kind in _STARTERS


def _in_assert(tokens: Sequence[Token]) -> bool:
    start = next((i for i in reversed(range(len(tokens))) if _starts(tokens, i)), None)
    return start is not None and tokens[start].kind == "ASSERT"
