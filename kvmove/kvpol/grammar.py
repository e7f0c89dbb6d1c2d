"""The parser's tables, built from `grammar/kvpol.lark` when the first policy is parsed.

Building takes about 50 ms and importing lark 40 ms more, which a process that only uses records need not pay.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lark import Lark


def grammar_text() -> str:
    """The grammar file."""
    return files("kvmove.grammar").joinpath("kvpol.lark").read_text(encoding="utf-8")


@cache
def grammar() -> Lark:
    """The lexer and parser of the language, made once a process."""
    return build()


def build(*, strict: bool = False) -> Lark:
    """A new lexer and parser.

    `strict` refuses a grammar with conflicts or overlapping tokens (this needs `interegular`). The tests build
    it that way; the basic lexer is what keeps `a andb` from being read as `a and b`.
    """
    from lark import Lark

    return Lark(grammar_text(), parser="lalr", lexer="basic", strict=strict, maybe_placeholders=False)
