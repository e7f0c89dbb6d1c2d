"""What the strategies draw: policies that are always accepted, and records at the edges where policies differ."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, find, given, seed, settings
from hypothesis import strategies as st

from kvmove import Hit, Policy, Refused, schema
from kvmove.kvpol import tree
from kvmove.kvpol.analyse import analyse
from kvmove.kvpol.findings import Findings
from kvmove.kvpol.format import format_text, lay_out
from kvmove.kvpol.lexer import tokenize
from kvmove.kvpol.source import Source
from kvmove.kvpol.syntax import KEYWORDS
from kvmove.kvpol.units import UNITS, parse_quantity
from kvmove.kvpol.whole import MAX_MAGNITUDE
from kvmove.testing import Situation, hits, policies, situations, steps, terms
from kvmove.testing.parts import PARTS, with_parts
from kvmove.testing.tape import Tape

COMPARISONS = {"<", "<=", ">", ">=", "==", "!="}
FUNCTIONS = {"min", "max", "abs", "clamp", "known"}


def sample(strategy: st.SearchStrategy[Any], count: int) -> list[Any]:
    drawn: list[Any] = []

    @seed(0)
    @settings(max_examples=count, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    @given(strategy)
    def draw(x: Any) -> None:
        drawn.append(x)

    draw()
    return drawn


TEXTS = sample(policies(), 300)


@settings(max_examples=100)
@given(policies())
def test_every_policy_is_accepted_as_it_is_laid_out(text: str) -> None:
    """Nothing is filtered, so nothing may be refused; and `kvmove fmt` changes nothing."""
    analysis = analyse(Source("drawn.kvpol", text))
    assert analysis.program is not None, analysis.report()
    assert format_text(text) == text


@settings(max_examples=25)
@given(st.data(), st.integers(0, 12), st.integers(0, 8))
def test_large_and_deep_ones_too(data: st.DataObject, max_rules: int, max_depth: int) -> None:
    """Whatever was asked for."""
    text = data.draw(policies(max_rules=max_rules, max_depth=max_depth))
    analysis = analyse(Source("drawn.kvpol", text))
    assert analysis.program is not None, analysis.report()
    assert sum(rule.condition is not None for rule in analysis.file.rules) <= max_rules


@pytest.mark.parametrize("wrong", [{"max_rules": -1}, {"max_rules": 101}, {"max_depth": -1}, {"max_depth": 9}])
def test_sizes_out_of_range_are_refused(wrong: dict[str, int]) -> None:
    """Before anything is drawn."""
    with pytest.raises(Refused, match="are possible"):
        policies(**wrong)


def test_they_use_the_whole_language() -> None:
    """Every keyword, operator, function, unit and variable comes up in 300 of them."""
    found = Counter(t.text for text in TEXTS for t in tokenize(Source("x", text), Findings()))
    assert set(KEYWORDS) <= found.keys()
    assert COMPARISONS | FUNCTIONS | set("+-*/") <= found.keys()
    assert {v.name for v in schema.VARIABLES} <= found.keys()
    quantities = [text for text in found if text[0].isdigit()]
    suffixes = {re.sub(r"^[0-9.]+", "", text) for text in quantities}
    assert suffixes == set(UNITS)
    assert any("." in text for text in quantities)
    defined = {f"{kind}{i}" for kind, count in (("p", 2), ("x", 3), ("@r", 5)) for i in range(count)}
    assert defined <= found.keys()


def test_constants_stand_beside_each_other_and_beside_the_budget() -> None:
    """One policy in five has two constants that differ by one unit, and one in three compares at the budget's edge."""
    beside = 0
    for text in TEXTS:
        written = re.findall(r"(?<![\w.])[0-9][0-9.]*(?:%|[A-Za-z]+)?", text)
        amounts = {parse_quantity(w) for w in written}
        beside += any((value + 1, dimension) in amounts for value, dimension in amounts if dimension.bytes)
    at_budget = sum(bool(re.search(r"bytes( \+ 1B)? <=? budget_remaining", text)) for text in TEXTS)
    assert beside >= len(TEXTS) / 5
    assert at_budget >= len(TEXTS) / 3


def smallest(strategy: st.SearchStrategy[str], holds: Callable[[str], bool]) -> str:
    return find(strategy, holds, settings=settings(max_examples=500, database=None, derandomize=True))


SHRUNK = {
    "a decision": (
        lambda text: "recompute if" in text,
        "recompute if bytes <= budget_remaining\nasync\n",
    ),
    "a let in use": (
        lambda text: bool(re.search(r"^ *sync .*if x\d$", text, re.MULTILINE)),
        "let x0 = bytes <= budget_remaining\n\nsync if x0\nasync\n",
    ),
}


@pytest.mark.parametrize("name", SHRUNK)
def test_policies_shrink_to_what_matters(name: str) -> None:
    """No other statement is left, and what is left is plain."""
    holds, expected = SHRUNK[name]
    assert smallest(policies(), holds) == expected


def test_a_tape_reads_zeros_after_its_end() -> None:
    """And a part of it does not touch what follows."""
    tape = Tape(bytes([3, 5, 7]))
    part = tape.part(1)
    assert (part.byte(), part.byte(), tape.byte(), tape.pick("abc"), tape.below(9)) == (3, 0, 5, "b", 0)


def test_terms_never_pass_the_checkers_bound() -> None:
    """What could is None, and the bound of what is given is at least the checker's."""
    large = terms.atom("bytes", schema.MAX_BYTES)
    square = terms.product(large, large)
    assert square is not None
    assert square.above == schema.MAX_BYTES**2
    assert terms.product(square, large) is None
    assert terms.quotient(square, square) is not None
    assert MAX_MAGNITUDE // 2 < square.above * schema.MAX_TIME * 2 < MAX_MAGNITUDE * 1000


def test_terms_have_the_parentheses_that_they_need() -> None:
    """A looser one inside a tighter one."""
    a, b = terms.atom("bytes", 1), terms.atom("budget", 1)
    added = terms.total("+", (a, b))
    assert added is not None
    claims = [terms.comparison(("<",), (added, a)), terms.comparison(("<",), (a, b))]
    shown = [
        terms.product(added, a), terms.negative(added), terms.total("-", (a, added)), terms.grouped(a),
        terms.every((terms.some(claims), claims[0])), terms.opposite(terms.every(claims)), terms.call("min", added, b),
    ]  # fmt: skip
    assert [" ".join(t.text for t in term.tokens) for term in shown if term is not None] == [
        "( bytes + budget ) * bytes",
        "- ( bytes + budget )",
        "bytes - ( bytes + budget )",
        "( bytes )",
        "( bytes + budget < bytes or bytes < budget ) and bytes + budget < bytes",
        "not ( bytes + budget < bytes and bytes < budget )",
        "min ( bytes + budget , budget )",
    ]


def test_statements_are_laid_out_from_their_tokens() -> None:
    """As the formatter lays out their text."""
    text = 'policy "x"\nlet a = bytes\nsync if a <= budget\n@b async\nassert not defer\n'
    tokens = tokenize(Source("x", text), Findings())
    starts = [i for i, t in enumerate(tokens) if t.text in ("policy", "let", "sync", "@b", "assert")]
    statements = [tokens[a:b] for a, b in zip(starts, [*starts[1:], len(tokens)], strict=True)]
    blocks = re.sub(r"\n(let|sync|assert)", r"\n\n\1", text)
    assert lay_out(statements) == format_text(blocks)
    assert lay_out([]) == ""


POLICY = Policy.parse(
    "param small: tokens = 100tok\nsync if bytes <= 3MiB and tokens < small or step_time > 2ms\nasync\n"
)


def test_records_are_drawn_at_the_edges_of_a_policy() -> None:
    """Each of its amounts, and one less and one more; and what it does not read mostly has its simplest value."""
    drawn: list[Situation] = sample(situations(policy=POLICY), 300)
    for amount, values in (
        (3 << 20, {x.hit.bytes for x in drawn}),
        (100, {x.hit.tokens for x in drawn}),
        (2_000_000, {x.step.step_time_ns for x in drawn}),
    ):
        assert {amount - 1, amount, amount + 1} <= values
    assert sum(x.hit.waited_ns == 0 for x in drawn) > len(drawn) / 2
    assert any(x.step.step_time_ns is None for x in drawn)


def test_records_are_drawn_at_the_edge_of_the_budget() -> None:
    """The hit's bytes are what is left of it, or one beside."""
    off = Counter(x.hit.bytes - x.step.budget_remaining_bytes for x in sample(situations(), 300))
    assert min(off[-1], off[0], off[1]) >= 5


@settings(max_examples=100)
@given(hits(max_bytes=1 << 20, max_tokens=64), steps(max_budget_bytes=1 << 10))
def test_records_keep_to_the_limits_asked_for(hit: Hit, step: Any) -> None:
    """Beside those of the schema, which building them checks."""
    assert hit.bytes <= 1 << 20
    assert hit.tokens <= 64
    assert step.budget_remaining_bytes <= step.budget_bytes <= 1 << 10


@settings(max_examples=200)
@given(hits(max_bytes=1 << 20, max_tokens=300), PARTS)
def test_hits_of_parts_are_hits(hit: Hit, parts: int) -> None:
    """Building one checks it; where nothing but cuts is stated, the hit stays what it was."""
    parted = with_parts(replace(hit, sizes=None, cuts=None), parts, 1 << 20)
    assert parted.bytes <= 1 << 20 or parted.bytes == hit.bytes
    assert parted.tokens == hit.tokens
    if parts % 4 < 2:
        assert (parted.bytes, parted.blocks, parted.sizes) == (hit.bytes, hit.blocks, None)


def test_some_hits_have_parts_of_their_own() -> None:
    """With a policy, only where it cuts hits."""
    cut = Policy.parse("sync at most budget_remaining\nasync\n")
    drawn: list[Situation] = sample(situations(policy=cut), 300)
    assert any(x.hit.sizes is not None and x.hit.sizes.has_windows for x in drawn)
    assert any(x.hit.sizes is not None and not x.hit.sizes.has_windows for x in drawn)
    assert sum(x.hit.cuts is not None for x in drawn) >= 10
    assert all(x.hit.sizes is x.hit.cuts is None for x in sample(situations(policy=POLICY), 100))
    assert any(hit.sizes is not None for hit in sample(hits(), 300))


def test_the_trees_of_drawn_policies_have_every_kind_of_node() -> None:
    """So that whoever tests with them tests all of the language."""
    kinds = set()
    for text in TEXTS[:100]:
        waiting: list[Any] = list(analyse(Source("x", text)).file.statements)
        while waiting:
            node = waiting.pop()
            kinds.add(type(node).__name__)
            for slot in getattr(node, "__slots__", ()):
                value = getattr(node, slot)
                waiting += value if isinstance(value, tuple) else [value]
    every = {tree.Param, tree.Let, tree.Rule, tree.Assert, tree.Outcome, *tree.Expr.__args__}
    assert {kind.__name__ for kind in every} <= kinds
