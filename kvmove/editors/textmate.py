"""A TextMate grammar for policies: for VS Code, and for other editors that highlight with one.

`make docs` writes it to `editors/vscode`. Its words are the language's own tables, as those of the Pygments lexer are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from kvmove.kvpol.scope import FUNCTIONS
from kvmove.kvpol.units import TYPES, UNITS
from kvmove.kvpol.words import WORDS, Role
from kvmove.schema import BY_NAME

_SCOPE_OF_ROLE = {
    Role.STATEMENT: "storage.type.statement",
    Role.DECISION: "keyword.control.decision",
    Role.CLAUSE: "keyword.control.clause",
    Role.CONNECTIVE: "keyword.operator.logical",
    Role.CONSTANT: "constant.language",
}
# A word begins and ends where its characters do: `andb` is a name. (`\\b` counts letters that no name can have.)
_BEGIN, _END = "(?<![A-Za-z0-9_])", "(?![A-Za-z0-9_])"
_NAME = "[A-Za-z_][A-Za-z0-9_]*"


def textmate_grammar() -> dict[str, Any]:
    """The grammar as its JSON file has it. Earlier patterns win."""
    units = _any(sorted((u for u in UNITS if u), key=len, reverse=True))
    patterns = [
        _match("comment.line.number-sign", "#.*$"),
        {
            "name": "string.quoted.double.kvpol",
            "begin": '"',
            "end": '"|(?=$)',  # a string ends on its line, so one that is not closed yet does not colour the rest
        },
        _match("entity.name.tag.label", f"@{_NAME}"),
        # Only a param's type follows a colon, and there `bytes` is no variable.
        _captured(rf"(:)\s*({_any(TYPES)}){_END}", "punctuation.separator.type", "support.type"),
        _captured(
            rf"{_BEGIN}(param|let)\s+({_NAME})", _SCOPE_OF_ROLE[Role.STATEMENT], "entity.name.variable.definition"
        ),
        *(_words(_SCOPE_OF_ROLE[role], [w for w, word in WORDS.items() if word.role is role]) for role in Role),
        _match("support.function", rf"{_BEGIN}({_any(FUNCTIONS)})(?=\s*\()"),
        _words("variable.language", BY_NAME),
        _match("variable.other", f"{_BEGIN}{_NAME}"),
        _captured(rf"([0-9][0-9_]*(?:\.[0-9]+)?)({units}){_END}", "constant.numeric", "keyword.other.unit"),
        _captured(rf"([0-9][0-9_]*(?:\.[0-9]+)?)({_NAME})", "constant.numeric", "invalid.illegal.unit"),
        _match("constant.numeric", r"[0-9][0-9_]*(?:\.[0-9]+)?"),
        _match("keyword.operator", r"[<>=!]=|[<>+\-*/]"),
        _match("punctuation", "[=:(),]"),
    ]
    return {
        "$schema": "https://raw.githubusercontent.com/martinring/tmlanguage/master/tmlanguage.json",
        "name": "kvmove policy",
        "scopeName": "source.kvpol",
        "fileTypes": ["kvpol"],
        "patterns": patterns,
    }


def _any(words: Iterable[str]) -> str:
    return "|".join(re.escape(w) for w in words)


def _words(scope: str, words: Iterable[str]) -> dict[str, Any]:
    return _match(scope, f"{_BEGIN}({_any(words)}){_END}")


def _match(scope: str, pattern: str) -> dict[str, Any]:
    return {"name": f"{scope}.kvpol", "match": pattern}


def _captured(pattern: str, *scopes: str) -> dict[str, Any]:
    return {"match": pattern, "captures": {str(i): {"name": f"{scope}.kvpol"} for i, scope in enumerate(scopes, 1)}}
