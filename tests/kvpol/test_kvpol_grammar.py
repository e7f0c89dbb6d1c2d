"""The grammar has no conflicts, and reads words and labels whole."""

from __future__ import annotations

import pytest

from kvmove import Action, Policy, PolicyError
from kvmove.kvpol.grammar import build, grammar, grammar_text
from kvmove.kvpol.syntax import KEYWORDS


def test_grammar_has_no_conflicts() -> None:
    """Lark builds the grammar in strict mode: no conflict between rules, no overlap between tokens."""
    pytest.importorskip("interegular")
    assert build(strict=True).parse("sync if bytes <= budget_remaining")


def test_parser_is_built_once() -> None:
    """The second parse uses the parser of the first."""
    assert grammar() is grammar()


def test_andb_is_a_name() -> None:
    """`a andb` is not `a and b`: a keyword ends where its word ends."""
    with pytest.raises(PolicyError, match="found `andb`"):
        Policy.parse("param a: bool = true\nparam b: bool = true\nsync if a andb")


def test_label_may_be_any_word() -> None:
    """A label is one token, so it may be a word of the language."""
    rules = Policy.parse("@defer defer if bytes > 3B\n@sync sync if bytes > 2B\n@if async").rules
    assert [(r.label, r.action) for r in rules] == [
        ("defer", Action.DEFER), ("sync", Action.SYNC), ("if", Action.ASYNC),
    ]  # fmt: skip


@pytest.mark.parametrize("word", KEYWORDS)
def test_keywords_are_reserved(word: str) -> None:
    """No word of the language can be the name of a let."""
    with pytest.raises(PolicyError, match=f"`{word}` is a word of the language"):
        Policy.parse(f"let {word} = 3B\nsync if bytes < 3B")


def test_keywords_are_the_grammars() -> None:
    """The list of keywords that messages use is the grammar's."""
    lark = build()
    words = {str(t.pattern.value) for t in lark.terminals if t.pattern.type == "str" and str(t.pattern.value).isalpha()}
    assert words == set(KEYWORDS)


def test_statements_need_no_newlines() -> None:
    """A policy on one line is the policy on several."""
    text = (
        'policy "p"\nparam n: number = -3\nlet x = -bytes\nsync if x < -2B\n@a async if running > n\ndefer\nassert sync'
    )
    one_line = Policy.parse(text.replace("\n", " "))
    assert [r.text for r in one_line.rules] == [r.text for r in Policy.parse(text).rules]


def test_precedence() -> None:
    """`not` binds tighter than `and`, that tighter than `or`; minus binds tighter than `*`, that tighter than `+`."""
    grouped = Policy.parse("sync if (not (bytes < 3B)) or ((bytes < 5B) and ((1B + (2 * (-1B))) < 0B))")
    plain = Policy.parse("sync if not bytes < 3B or bytes < 5B and 1B + 2 * -1B < 0B")
    assert plain.decide.__code__.co_code == grouped.decide.__code__.co_code


def test_grammar_file_is_ascii_and_commented() -> None:
    """The grammar is a reference that people read: plain text with comments."""
    assert grammar_text().isascii()
    assert grammar_text().count("//") > 10
