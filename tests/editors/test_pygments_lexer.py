"""The Pygments lexer colours every policy that parses, with the words of the language itself."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pygments.token import Error, Keyword, Name, Number, Operator, Punctuation, String, Token

from kvmove import schema
from kvmove.editors.pygments_lexer import KvpolLexer
from kvmove.kvpol.findings import Findings
from kvmove.kvpol.grammar import grammar
from kvmove.kvpol.lexer import tokenize
from kvmove.kvpol.scope import FUNCTIONS
from kvmove.kvpol.source import Source
from kvmove.kvpol.syntax import KEYWORDS
from kvmove.kvpol.units import TYPES, UNITS

ROOT = Path(__file__).parents[2]
POLICIES = sorted((ROOT / "policies").glob("*.kvpol"))


def tokens(text: str) -> list[tuple[object, str]]:
    return [(kind, part) for kind, part in KvpolLexer(stripnl=False, ensurenl=False).get_tokens(text) if part]


@pytest.mark.parametrize("path", POLICIES, ids=lambda p: p.stem)
def test_a_shipped_policy_has_no_error_token(path: Path) -> None:
    """Each token of a shipped policy has a kind, and together they are its text."""
    text = path.read_text(encoding="utf-8")
    found = tokens(text)
    assert [part for kind, part in found if kind in Error or kind is Token] == []
    assert "".join(part for _, part in found) == text


@pytest.mark.parametrize("word", KEYWORDS)
def test_every_keyword_is_coloured_as_a_word_of_the_language(word: str) -> None:
    """No keyword is taken for a name, and none colours the start of a longer name."""
    ((kind, part),) = tokens(word)
    assert part == word
    assert kind in Keyword or kind is Operator.Word
    assert tokens(word + "_x") == [(Name, word + "_x")]


def test_names_of_the_language_are_told_from_names_of_the_file() -> None:
    """Variables, functions, types and units have kinds of their own, from the tables of the language."""
    for v in schema.VARIABLES:
        assert tokens(v.name) == [(Name.Variable.Global, v.name)]
    for function in FUNCTIONS:
        assert tokens(function + "(")[0] == (Name.Builtin, function)
    for type_name in TYPES:
        assert tokens(f"param x: {type_name} =")[-3] == (Keyword.Type, type_name)
    for unit in filter(None, UNITS):
        assert tokens("1.5" + unit) == [(Number.Float, "1.5"), (Keyword.Type, unit)]
    assert tokens("mine") == [(Name, "mine")]


def test_an_unknown_unit_is_an_error_token() -> None:
    """What the checker refuses inside a quantity stands out while it is typed."""
    assert (Error, "mb") in tokens("param budget: bytes = 64mb")


SIGNS = sorted({str(t.pattern.value) for t in grammar().terminals if t.pattern.type == "str"} - set(KEYWORDS))


@pytest.mark.parametrize("sign", SIGNS)
def test_every_sign_of_the_grammar_is_coloured(sign: str) -> None:
    """An operator or a bracket that the grammar gains is one token here too."""
    ((kind, part),) = tokens(sign)
    assert part == sign
    assert kind is Operator or kind is Punctuation


@given(st.lists(st.sampled_from([*KEYWORDS, *SIGNS, *schema.BY_NAME, "3B", "50%", "1_0.5ms", "@a", '"s"', "x"])))
def test_tokens_end_where_the_language_ends_them(parts: list[str]) -> None:
    """On any row of tokens the highlighter's boundaries include the parser's."""
    text = " ".join(parts)
    ends, at = set(), 0
    for _, part in tokens(text):
        at += len(part)
        ends.add(at)
    assert at == len(text)
    assert {t.span.end for t in tokenize(Source("x", text), Findings())} <= ends
    assert all(kind not in Error for kind, _ in tokens(text))


def test_a_string_hides_what_looks_like_a_comment() -> None:
    """`#` inside a policy's name begins no comment."""
    assert tokens('policy "a # b"')[-1] == (String.Double, '"a # b"')


def test_the_entry_point_names_the_lexer() -> None:
    """Pygments finds the lexer by the entry point that pyproject declares."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    ((name, value),) = project["entry-points"]["pygments.lexers"].items()
    assert name in KvpolLexer.aliases
    assert EntryPoint(name, value, "pygments.lexers").load() is KvpolLexer


def test_loading_the_lexer_is_cheap() -> None:
    """Pygments loads every lexer that is installed to look one up, so this one brings no parser along."""
    code = "import sys, kvmove.editors.pygments_lexer; print(*{'lark', 'torch', 'numpy', 'pygls'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.split() == []
