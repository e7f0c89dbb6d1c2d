"""The grammar has no conflicts, and reads words and labels whole."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lark import Lark, UnexpectedToken

from kvmove import Action, Policy, PolicyError
from kvmove.kvpol import lalr, tree
from kvmove.kvpol.findings import Findings
from kvmove.kvpol.grammar import build, grammar, grammar_text
from kvmove.kvpol.lexer import tokenize
from kvmove.kvpol.source import Source
from kvmove.kvpol.syntax import KEYWORDS
from kvmove.testing import policies


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


LARK = Lark(grammar_text(), parser="lalr", lexer="basic", propagate_positions=True, maybe_placeholders=False)
TEXTS = [p.read_text(encoding="utf-8") for p in sorted((Path(__file__).parents[2] / "policies").glob("*.kvpol"))]
TEXTS += [
    "assert not sync implies (bytes < 3B)", "sync if ((a))", "let x = -(a+b)*c/d - -e assert sync or async", "async\n",
    "@a @b", "sync at most (3B) if not (not (true)) defer", "let a = f((x), (y)) let b = g()", "param a: bool = true",
    "param b: time = -3s assert not defer", "async if (a or b) and (c) or 1B < b <= 3B", 'policy "x"', "sync if", ")",
    "",
]  # fmt: skip
KINDS = {
    "header": tree.Header, "param": tree.Param, "let": tree.Let, "rule": tree.Rule, "assertion": tree.Assert,
    "outcome": tree.Outcome, "any_of": tree.AnyOf, "all_of": tree.AllOf, "inverse": tree.Not, "compare": tree.Compare,
    "sum_of": tree.SumOf, "product_of": tree.ProductOf, "negate": tree.Negate, "quantity": tree.Quantity,
    "name": tree.Name, "boolean": tree.Boolean, "call": tree.Call,
}  # fmt: skip
PARENTHESES_COUNT = (tree.Header, tree.Param, tree.Let, tree.Rule, tree.Assert, tree.Call)  # in what such a node covers


def nodes_of(node: Any) -> Iterator[Any]:
    """Every node at and below `node`, except the constant of a param, which lark leaves a token."""
    if isinstance(node, list | tuple):
        for each in node:
            yield from nodes_of(each)
    elif type(node) in KINDS.values():
        yield node
        if not isinstance(node, tree.Param):
            yield from (n for name in node.__slots__ for n in nodes_of(getattr(node, name)))


def assert_read_as_lark_does(text: str) -> None:
    tokens = tokenize(Source("a.kvpol", text), Findings())
    found = lalr.read(tokens)
    try:
        expected = LARK.parse(text)
    except UnexpectedToken as e:
        at = [i for i, t in enumerate(tokens) if t.span.start == e.token.start_pos and e.token.type != "$END"]
        assert found == (at[0] if at else len(tokens))
        return
    assert isinstance(found, list)
    theirs = [t for t in expected.iter_subtrees_topdown() if t.data in KINDS]
    ours = list(nodes_of(found))
    assert Counter(type(n) for n in ours) == Counter(KINDS[t.data] for t in theirs)
    assert {(type(n), n.span.start, n.span.end) for n in ours if isinstance(n, PARENTHESES_COUNT)} == {
        (KINDS[t.data], t.meta.start_pos, t.meta.end_pos) for t in theirs if KINDS[t.data] in PARENTHESES_COUNT
    }


@pytest.mark.parametrize("text", TEXTS)
def test_a_policy_is_read_as_lark_reads_it(text: str) -> None:
    """The nodes and their places are those of lark's own tree, and a text fails at the same token."""
    assert_read_as_lark_does(text)


@settings(max_examples=60)
@given(policies(), st.data())
def test_any_part_of_a_policy_is_read_as_lark_reads_it(text: str, data: st.DataObject) -> None:
    """So are those of any policy, and of any part of one."""
    low = data.draw(st.integers(0, len(text)), "from")
    words = text[low : low + data.draw(st.integers(0, 60), "length")]
    if '"' not in words:  # half a string is no token
        assert_read_as_lark_does(words)
    assert_read_as_lark_does(text)
