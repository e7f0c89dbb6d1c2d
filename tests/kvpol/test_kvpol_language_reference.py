"""`docs/language.md` says what the language does: its examples are run, and what is generated is in step.

After a change of the grammar, the schema or the tables of words, run `make docs`.
"""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from kvmove.kvpol.analyse import analyse
from kvmove.kvpol.grammar import grammar
from kvmove.kvpol.scope import FUNCTIONS
from kvmove.kvpol.source import Source
from kvmove.kvpol.syntax import KEYWORDS
from kvmove.kvpol.units import TYPES, UNITS
from kvmove.kvpol.words import FUNCTION_WORDS, TYPE_WORDS, UNIT_WORDS, WORDS

REFERENCE = Path(__file__).parents[2] / "docs" / "language.md"
TEXT = REFERENCE.read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```kvpol\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
WRONG = re.findall(r"^```kvpol wrong\n(.*?)^```\n```text\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
GENERATOR = runpy.run_path(str(REFERENCE.parent / "write_generated.py"), run_name="generator")


def test_examples_are_found() -> None:
    """The reference has examples of both kinds."""
    assert len(EXAMPLES) >= 5
    assert WRONG


@pytest.mark.parametrize("text", EXAMPLES)
def test_example_is_accepted(text: str) -> None:
    """An example is a policy without a finding."""
    assert analyse(Source("example.kvpol", text)).findings == ()


@pytest.mark.parametrize(("text", "report"), WRONG)
def test_wrong_example_is_reported_as_shown(text: str, report: str) -> None:
    """A wrong example has the findings that stand below it."""
    assert analyse(Source("example.kvpol", text)).report() + "\n" == report


def test_what_is_generated_is_in_step() -> None:
    """The tables and the syntax are what the grammar, the schema and the tables of words say today."""
    assert GENERATOR["in_step"](TEXT) == TEXT, "run `make docs`"


def test_every_part_that_can_be_generated_is_there_once() -> None:
    """No part of the reference was lost with its markers, and no marker names a part that nobody writes."""
    assert sorted(GENERATOR["parts_in"](TEXT)) == sorted(GENERATOR["PARTS"])
    assert TEXT.count("<!-- generated:") == TEXT.count("<!-- end of") == len(GENERATOR["PARTS"])


def test_the_tables_of_words_are_complete() -> None:
    """Each keyword, function, type and unit of the language has its line, and nothing else has one."""
    assert WORDS.keys() == set(KEYWORDS)
    assert FUNCTION_WORDS.keys() == set(FUNCTIONS)
    assert TYPE_WORDS.keys() == TYPES.keys()
    assert UNIT_WORDS.keys() == {u for u in UNITS if u}


def test_the_syntax_has_every_rule_of_the_grammar() -> None:
    """No rule of the grammar is missing from the reference, and no token is left unexplained."""
    syntax = GENERATOR["syntax"]()
    defined = set(re.findall(r"^(\w+) = ", syntax, re.MULTILINE))
    assert {str(r.origin.name) for r in grammar().rules if not r.origin.name.startswith("__")} <= defined
    outside = re.sub(r'"[^"]*"|= /.*/$', "", syntax, flags=re.MULTILINE)
    assert set(re.findall(r"\b[A-Z]{2,}\b", outside)) <= defined
