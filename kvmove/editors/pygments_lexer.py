"""A Pygments lexer for policies: for `pygmentize`, Sphinx, MkDocs and whatever else highlights with Pygments.

Its words are the language's own tables, so that a new variable, unit or keyword is highlighted without a change here.
"""

from __future__ import annotations

from typing import ClassVar

from pygments.lexer import RegexLexer, bygroups, default, words
from pygments.token import (
    Comment,
    Error,
    Keyword,
    Name,
    Number,
    Operator,
    Punctuation,
    String,
    Whitespace,
    _TokenType,
)

from kvmove.kvpol.scope import FUNCTIONS
from kvmove.kvpol.units import TYPES, UNITS
from kvmove.kvpol.words import WORDS, Role
from kvmove.schema import BY_NAME

_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_END = r"(?![A-Za-z0-9_])"  # a word ends where its characters end: `andb` is a name

_TOKEN_OF_ROLE = {
    Role.STATEMENT: Keyword.Declaration,
    Role.DECISION: Keyword.Reserved,
    Role.CLAUSE: Keyword,
    Role.CONNECTIVE: Operator.Word,
    Role.CONSTANT: Keyword.Constant,
}


def _words_of(role: Role) -> tuple[words, _TokenType]:
    return words(tuple(w for w, word in WORDS.items() if word.role is role), suffix=_END), _TOKEN_OF_ROLE[role]


class KvpolLexer(RegexLexer):  # type: ignore[misc]  # Pygments ships no types
    """Policies that decide on KV-cache hits. An unknown unit is an error token."""

    name = "kvmove policy"
    aliases: ClassVar = ["kvpol"]
    filenames: ClassVar = ["*.kvpol"]
    mimetypes: ClassVar = ["text/x-kvpol"]

    tokens: ClassVar = {
        "root": [
            (r"[ \t\r\n]+", Whitespace),
            (r"#[^\r\n]*", Comment.Single),
            (r'"[^"\r\n]*"', String.Double),
            (rf"@{_NAME}", Name.Label),
            # Only a param's type follows a colon, and there `bytes` is no variable.
            (rf"(:)([ \t\r\n]*)({'|'.join(TYPES)}){_END}", bygroups(Punctuation, Whitespace, Keyword.Type)),
            *(_words_of(role) for role in Role),
            (words(FUNCTIONS, suffix=r"(?=[ \t\r\n]*\()"), Name.Builtin),
            (words(tuple(BY_NAME), suffix=_END), Name.Variable.Global),
            (_NAME, Name),
            (r"[0-9][0-9_]*\.[0-9]+", Number.Float, "unit"),
            (r"[0-9][0-9_]*", Number.Integer, "unit"),
            (r"[<>=!]=|[<>+\-*/]", Operator),
            (r"[=:(),]", Punctuation),
        ],
        "unit": [
            (words([u for u in UNITS if u.isalpha()], suffix=_END), Keyword.Type, "#pop"),
            (r"%", Keyword.Type, "#pop"),
            (_NAME, Error, "#pop"),
            default("#pop"),
        ],
    }
