"""The VS Code extension has a grammar with exactly the language's words, and a manifest whose files are there."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path
from typing import Any

import pytest

from kvmove import schema
from kvmove.editors.textmate import textmate_grammar
from kvmove.kvpol.grammar import grammar
from kvmove.kvpol.scope import FUNCTIONS
from kvmove.kvpol.syntax import KEYWORDS
from kvmove.kvpol.units import TYPES, UNITS

ROOT = Path(__file__).parents[2]
EXTENSION = ROOT / "editors" / "vscode"
MANIFEST = json.loads((EXTENSION / "package.json").read_text(encoding="utf-8"))
GRAMMAR = json.loads((EXTENSION / "syntaxes" / "kvpol.tmLanguage.json").read_text(encoding="utf-8"))
POLICIES = sorted((ROOT / "policies").glob("*.kvpol"))
# What the patterns use is the same in Oniguruma, which editors have, and in Python.
PATTERNS: list[tuple[str, re.Pattern[str], dict[str, Any]]] = [
    (p.get("name", ""), re.compile(p["match"], re.MULTILINE), p.get("captures", {}))
    for p in GRAMMAR["patterns"]
    if "match" in p
]


def scopes(text: str) -> list[tuple[str, str]]:
    """Each coloured part of one line with its scope: the earliest match wins, then the earliest pattern."""
    found, at = [], 0
    while at < len(text):
        matches = [(m.start(), i, m) for i, (_, p, _) in enumerate(PATTERNS) if (m := p.search(text, at)) and m[0]]
        if not matches:
            break
        _, i, match = min(matches, key=lambda m: m[:2])
        name, _, captures = PATTERNS[i]
        if captures:
            found += [(match[int(n)], c["name"].removesuffix(".kvpol")) for n, c in captures.items()]
        else:
            found.append((match[0], name.removesuffix(".kvpol")))
        at = match.end()
    return found


def listed(scope: str) -> set[str]:
    """The words that the grammar lists under scopes that start with `scope`."""
    lists = [p["match"] for p in GRAMMAR["patterns"] if p.get("name", "").startswith(scope)]
    return {w for text in lists for w in re.sub(r"\(\?[^()]*\)", "", text).strip("()").split("|")}


def test_the_file_is_in_step_with_the_language() -> None:
    """The grammar in the extension is the one that the language's tables give."""
    generator = runpy.run_path(str(ROOT / "docs" / "write_generated.py"), run_name="generator")
    written = (EXTENSION / "syntaxes" / "kvpol.tmLanguage.json").read_text(encoding="utf-8")
    assert written == generator["textmate"](), "run `make docs`"
    assert textmate_grammar() == GRAMMAR


def test_its_keywords_are_the_languages() -> None:
    """The file lists every keyword and every variable of the schema, and no other word as one."""
    keywords = listed("storage.type") | listed("keyword.control") | listed("keyword.operator.logical")
    assert keywords | listed("constant.language") == set(KEYWORDS)
    assert listed("variable.language") == schema.BY_NAME.keys()


@pytest.mark.parametrize("word", KEYWORDS)
def test_a_keyword_colours_no_part_of_a_longer_name(word: str) -> None:
    """A keyword is one where it stands alone."""
    ((part, scope),) = scopes(word)
    assert part == word
    assert not scope.startswith("variable")
    assert scopes(word + "_x") == [(word + "_x", "variable.other")]
    assert scopes("x" + word) == [("x" + word, "variable.other")]


def test_words_of_the_language_have_scopes_of_their_own() -> None:
    """Variables, functions, types, units and labels are told apart, and an unknown unit is marked."""
    for variable in schema.BY_NAME:
        assert scopes(variable) == [(variable, "variable.language")]
    for function in FUNCTIONS:
        assert scopes(function + "(")[0] == (function, "support.function")
    for name in TYPES:
        assert scopes(f"param x: {name} =")[3] == (name, "support.type")
    for unit in filter(None, UNITS):
        assert scopes("1_0.5" + unit) == [("1_0.5", "constant.numeric"), (unit, "keyword.other.unit")]
    assert scopes("64mb") == [("64", "constant.numeric"), ("mb", "invalid.illegal.unit")]
    assert scopes("@sync sync")[0] == ("@sync", "entity.name.tag.label")
    assert scopes("async # if 3B") == [("async", "keyword.control.decision"), ("# if 3B", "comment.line.number-sign")]


def test_every_sign_of_the_grammar_is_coloured() -> None:
    """An operator or a bracket that the language gains is one part here too."""
    for terminal in grammar().terminals:
        sign = str(terminal.pattern.value)
        if terminal.pattern.type == "str" and sign not in KEYWORDS:
            assert [part for part, _ in scopes(sign)] == [sign]


@pytest.mark.parametrize("path", POLICIES, ids=lambda p: p.stem)
def test_a_shipped_policy_is_coloured_whole(path: Path) -> None:
    """Outside its strings, each character of a shipped policy that is no white space has a scope."""
    for line in path.read_text(encoding="utf-8").splitlines():
        if '"' not in line:
            found = scopes(line)
            assert "".join(line.split()) == "".join("".join(part.split()) for part, _ in found)
            assert all(not scope.startswith("invalid") for _, scope in found)


def test_the_manifest_names_files_that_are_there() -> None:
    """The language and its grammar point at each other and at files of the folder."""
    (language,), (contributed,) = MANIFEST["contributes"]["languages"], MANIFEST["contributes"]["grammars"]
    assert language["extensions"] == [".kvpol"]
    assert contributed["language"] == language["id"]
    assert contributed["scopeName"] == GRAMMAR["scopeName"]
    assert json.loads((EXTENSION / contributed["path"]).read_text(encoding="utf-8")) == GRAMMAR
    configuration = json.loads((EXTENSION / language["configuration"]).read_text(encoding="utf-8"))
    assert configuration["comments"] == {"lineComment": "#"}
    word = re.compile(configuration["wordPattern"])
    assert [m[0] for m in word.finditer("@a sync if x_1<=64MiB")] == ["@a", "sync", "if", "x_1", "64MiB"]
