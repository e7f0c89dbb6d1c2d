"""`docs/language.md` says what the language does: its examples are run, its table is the schema's.

After a change of the schema, write the table with

    KVMOVE_WRITE_GOLDEN=1 pytest tests/kvpol/test_kvpol_language_reference.py
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from kvmove import schema
from kvmove.kvpol.analyse import analyse
from kvmove.kvpol.source import Source
from kvmove.kvpol.units import UNITS

REFERENCE = Path(__file__).parents[2] / "docs" / "language.md"
TEXT = REFERENCE.read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```kvpol\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
WRONG = re.findall(r"^```kvpol wrong\n(.*?)^```\n```text\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
TABLE = re.compile(r"(?<=\|---\|---\|---\|---\|---\|---\|---\|\n)(.*?)(?=\n\n)", re.DOTALL)


def table() -> str:
    rows = []
    for v in schema.VARIABLES:
        unknown = "yes" if v.optional else ""
        rows.append(f"| `{v.name}` | {v.unit.value} | {v.low} | {v.high} | {v.scope.value} | {unknown} | {v.doc} |")
    return "\n".join(rows)


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


def test_variable_table_is_the_schemas() -> None:
    """The table lists every variable of the schema with its unit, range, scope and meaning."""
    found = TABLE.search(TEXT)
    assert found is not None
    if os.environ.get("KVMOVE_WRITE_GOLDEN"):
        REFERENCE.write_text(TEXT[: found.start()] + table() + TEXT[found.end() :], encoding="utf-8")
    else:
        assert found[1] == table()


def test_units_are_all_named() -> None:
    """Every unit of the language is in the reference."""
    assert [u for u in UNITS if u and f"`{u}`" not in TEXT] == []
