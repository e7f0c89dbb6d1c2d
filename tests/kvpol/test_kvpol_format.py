"""`format_text`: one layout for every policy, and nothing of it lost."""

from __future__ import annotations

import re
from dataclasses import fields, is_dataclass
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kvmove.errors import PolicyError
from kvmove.kvpol.comments import gap_between
from kvmove.kvpol.findings import Findings
from kvmove.kvpol.format import format_text
from kvmove.kvpol.lexer import Token, tokenize
from kvmove.kvpol.parser import parse
from kvmove.kvpol.source import Source, Span
from kvmove.kvpol.wrapping import WIDTH
from kvmove.testing import policies

SHIPPED = sorted((Path(__file__).parents[2] / "policies").glob("*.kvpol"))


def tokens_of(text: str) -> list[Token]:
    return tokenize(Source("p.kvpol", text), Findings())


def tree_of(text: str) -> object:
    findings = Findings()
    file = parse(Source("p.kvpol", text), findings)
    assert not findings.has_errors, text
    return without_spans(file)


def without_spans(node: object) -> object:
    """The tree as nested tuples that compare by value."""
    if isinstance(node, tuple):
        return tuple(without_spans(item) for item in node)
    if is_dataclass(node) and not isinstance(node, Span):
        kept = (getattr(node, f.name) for f in fields(node))
        return type(node).__name__, *(without_spans(value) for value in kept if not isinstance(value, Span))
    return node


def comments_of(text: str) -> list[tuple[int, str, bool]]:
    """Every comment: the tokens before it, its text, and whether it stands on the line of the last of them."""
    ends = [0, *(t.span.end for t in tokens_of(text))]
    starts = [*(t.span.start for t in tokens_of(text)), len(text)]
    return [
        (i, comment.text, comment.trails)
        for i, (end, start) in enumerate(zip(ends, starts, strict=True))
        for comment in gap_between(text, end, start).comments
    ]


def code_lines(text: str) -> list[str]:
    return [line for line in text.split("\n") if line.strip() and not line.strip().startswith("#")]


SPACES = ["", " ", "  ", "\t", "\n", "\n\n", " \n\n\n  ", "\n      "]
COMMENTS = ["#", "# why", "#: \t", '# "if" @x and', "## é \u2028 x", "#\x0b"]


@st.composite
def scattered(draw: st.DrawFn) -> str:
    """A policy whose tokens stand anywhere, with comments between them."""
    tokens = tokens_of(draw(policies(max_rules=4, max_depth=2)))
    # One draw for all the places: a policy has hundreds.
    random = Random(draw(st.integers(0, 1 << 32)))
    spread, comment = random.random(), random.random() / 4
    text = ""
    for token in tokens:
        if random.random() < spread:
            text += random.choice(SPACES)
        while random.random() < comment:
            text += f"{random.choice(COMMENTS)}\n{random.choice(SPACES)}"
        if re.search(r"\w$", text) and re.match(r"\w", token.text):
            text += " "
        text += token.text
    return text + random.choice(["", " # last", "\n# last\n", "\n\n"])


@settings(max_examples=40)
@given(scattered())
@example("# only a comment")
@example("#a\n\n\n#b\n\n\nasync#c\n      #d")
@example("sync if (bytes # a\n < # b\n 3B) # c\nasync")
def test_formatting_keeps_everything_but_white_space(text: str) -> None:
    """The tree is the same, each comment follows the token it followed, and formatting again changes nothing."""
    formatted = format_text(text)
    assert tree_of(formatted) == tree_of(text)
    assert comments_of(formatted) == comments_of(text)
    assert format_text(formatted) == formatted
    assert formatted == "" or formatted[-1] == "\n" != formatted[-2:]
    assert "\n\n\n" not in formatted
    assert all(line == line.rstrip(" \t") for line in formatted.split("\n"))


@settings(max_examples=25)
@given(policies(max_rules=4))
def test_layout_depends_on_tokens_alone(text: str) -> None:
    """Without comments and empty lines, every spelling of a policy has one layout."""
    squeezed = " ".join(t.text for t in tokens_of(text))
    scattered_text = "\n".join(t.text for t in tokens_of(text))
    assert format_text(squeezed) == format_text(scattered_text)


@settings(max_examples=25)
@given(policies(max_rules=4, max_depth=4))
def test_lines_are_long_only_where_no_operator_could_break_them(text: str) -> None:
    """A line over the width has no `and` or `or` outside parentheses but for the one that it starts with."""
    for line in code_lines(format_text(text)):
        if len(line) <= WIDTH:
            continue
        depth = 0
        for before, token in pairwise(tokens_of(line.strip().removeprefix("and ").removeprefix("or "))):
            depth += (before.kind == "LPAR") - (before.kind == "RPAR")
            assert depth != 0 or token.kind not in ("AND", "OR"), line


@pytest.mark.parametrize("path", SHIPPED, ids=lambda p: p.stem)
def test_shipped_policies_are_formatted(path: Path) -> None:
    """Every policy that comes with kvmove has the layout already."""
    text = path.read_text(encoding="utf-8")
    assert format_text(text) == text


def test_other_line_ends_and_a_byte_order_mark_are_dropped() -> None:
    """A file of another system gets line feeds, one at its end, and no byte order mark."""
    text = "# a\nparam budget: bytes = 1MiB\n\nsync if bytes <= budget # b\nasync"
    wanted = format_text(text)
    assert format_text("\ufeff" + text.replace("\n", "\r\n")) == wanted
    assert format_text(text.replace("\n", "\r")) == wanted
    assert wanted.endswith("async\n")


@pytest.mark.parametrize("text", ["", "\n\n", " \t\r\n"])
def test_nothing_stays_nothing(text: str) -> None:
    """A text without tokens and comments becomes empty."""
    assert format_text(text) == ""


def test_names_and_units_need_not_be_right() -> None:
    """Only syntax has to be right: a policy with a mistake can be laid out while it is being written."""
    assert format_text("sync  if byts<3mb") == "sync if byts < 3mb\n"


def test_a_syntax_error_is_refused_with_every_finding() -> None:
    """What cannot be parsed is not laid out, and each of its mistakes is named."""
    with pytest.raises(PolicyError, match=r"broken\.kvpol:1:15") as e:
        format_text("sync if bytes <\nlet x = 3B\nparam y bytes = 3B\nasync", name="broken.kvpol")
    assert len(e.value.findings) == 2
    with pytest.raises(PolicyError, match="64 KiB"):
        format_text("# " + "x" * (70 << 10))


def test_a_layout_over_the_size_limit_is_refused() -> None:
    """A file close to the limit whose layout would pass it is left alone: its text would no longer be a policy."""
    long = "n" * 4_000
    text = f"param {long}: bytes = 1B\n" + "".join(f"param p{i}: bytes = 1B\n" for i in range(30))
    with pytest.raises(PolicyError, match="formatted, this policy would be larger than 64 KiB"):
        format_text(text)


def test_deep_and_long_expressions_are_formatted() -> None:
    """What the limits of the language admit does not overflow the stack, and stays the same tree."""
    for text in (
        "sync if " + "(" * 64 + "bytes" + ")" * 64 + " < 3B and " + " and ".join(["waited < 3ns"] * 300),
        "sync if " + " or ".join(["waited<3ns and deferrals<3"] * 400),
        "sync if " + "not " * 60 + "(" + " or ".join(["running < 3"] * 100) + ")",
    ):
        formatted = format_text(text)
        assert tree_of(formatted) == tree_of(text)
        assert format_text(formatted) == formatted
