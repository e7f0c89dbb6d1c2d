"""Whatever is in the editor while somebody types, every answer of the language server is one, and inside the text."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("lsprotocol", reason="needs the extra lsp")

from hypothesis import example, given
from hypothesis import strategies as st
from lsprotocol import types

from kvmove import schema
from kvmove.editors.completion import completions
from kvmove.editors.diagnostics import diagnostics, quick_fixes
from kvmove.editors.document import Document
from kvmove.editors.formatting import formatting_edits
from kvmove.editors.hover import hover
from kvmove.editors.names import occurrences_at
from kvmove.editors.positions import Positions
from kvmove.editors.symbols import document_symbols
from kvmove.kvpol.source import Source
from kvmove.kvpol.syntax import KEYWORDS

URI = "file:///edited.kvpol"
POLICIES = [p.read_text(encoding="utf-8") for p in sorted((Path(__file__).parents[2] / "policies").glob("*.kvpol"))]
PARTS = [
    *KEYWORDS, *(v.name for v in schema.VARIABLES), "min(", "clamp(", "known(", "(", ")", ",", ":", "=", "==", "<",
    "<=", "+", "/", "-", "3B", "64MiB", "4096", "64 mb", "1.", "0.5ms", "50%", "@", "@a", '"', '"a"', "#", "\n", "\r\n",
    "\t", "x", "small", "\U0001f680", "\u2028", "é", "&&", "$",
]  # fmt: skip


def ask_everything(text: str, cursor: int) -> None:
    document, positions = Document(Source(URI, text), strict=True), Positions(text)

    def is_inside(place: types.Range) -> bool:
        return 0 <= positions.offset(place.start) <= positions.offset(place.end) <= len(text) and (
            positions.position(positions.offset(place.end)) == place.end
        )

    found = diagnostics(document, positions, URI)
    assert all(is_inside(d.range) and d.message for d in found)
    whole = types.Range(types.Position(0, 0), positions.position(len(text)))
    for action in quick_fixes(document, positions, URI, whole):
        assert action.edit is not None
        assert action.edit.changes is not None
        assert all(isinstance(e, types.TextEdit) and is_inside(e.range) for e in action.edit.changes[URI])
    said = hover(document, cursor)
    assert said is None or (said[0] and said[1].start <= cursor <= said[1].end <= len(text))
    for item in completions(document, positions, cursor):
        assert isinstance(item.text_edit, types.TextEdit)
        assert is_inside(item.text_edit.range)
        assert item.text_edit.range.end == positions.position(cursor)
    name = occurrences_at(document, cursor)
    assert name is None or all(text[p.start : p.end] == name.name for p in name.places)
    assert all(is_inside(s.range) and s.name for s in document_symbols(document, positions))
    edits = formatting_edits(document.source.text, positions)
    assert all(is_inside(e.range) for e in edits)
    assert not (edits and any(d.severity is types.DiagnosticSeverity.Error and str(d.code) < "KV1" for d in found))


@given(st.sampled_from(POLICIES), st.data())
def test_a_policy_that_is_typed_so_far_is_answered(policy: str, data: st.DataObject) -> None:
    """Every beginning of a shipped policy has answers, with the cursor anywhere in it."""
    text = policy[: data.draw(st.integers(0, len(policy)), "typed")]
    ask_everything(text, data.draw(st.integers(0, len(text)), "cursor"))


@given(st.lists(st.sampled_from(PARTS), max_size=14), st.sampled_from(["", " "]), st.data())
@example(["3MiB"], "", None)
@example(["1.5B"], "", None)
def test_any_row_of_words_is_answered(parts: list[str], between: str, data: st.DataObject | None) -> None:
    """Words, signs, line ends and characters of no policy have answers in any order."""
    text = between.join(parts)
    ask_everything(text, data.draw(st.integers(0, len(text)), "cursor") if data else 0)


@pytest.mark.parametrize(
    "text",
    [
        "\0",
        "\ud800",
        "\ufeffasync\n",
        "a" * (70 << 10),
        "(" * 4000,
        "not " * 4000,
        "sync if " + "1+" * 2000,
        "# \r# \rasync",
    ],
    ids=["nul", "surrogate", "mark", "size", "nesting", "not", "chain", "carriage returns"],
)
def test_what_no_policy_can_be_is_answered(text: str) -> None:
    """A text beyond the limits of the language, or no text at all, is no traceback."""
    ask_everything(text, 0)
    ask_everything(text, len(text))


@pytest.mark.parametrize(
    ("text", "some", "none"),
    [
        ("", {"policy", "param", "let", "sync", "defer", "assert"}, {"if", "and", "bytes", "min"}),
        ("sync ", {"if", "at", "async"}, {"most", "bytes", "or"}),
        ("sync at ", {"most"}, {"if", "bytes"}),
        ("sync if ", {"bytes", "not", "known"}, {"load_bytes", "sync", "and"}),
        ("sync if bytes <= 1MiB ", {"and", "or", "let"}, {"bytes", "at"}),
        ("param x: ", {"bytes", "bool"}, {"load_time", "sync"}),
        ("param x: bytes = 64", {"MiB", "tok", "%"}, {"bytes"}),
        ("assert ", {"sync", "load_bytes", "not"}, {"if"}),
        ("let a = running\nsync if ", {"a", "bytes"}, set()),
        ("sync if ((\nlet b = 3B\ndefer if ", {"b", "bytes"}, {"let"}),
        ("let ", set(), {"bytes", "sync", "min"}),
        ("# sync if ", set(), {"bytes", "sync"}),
    ],
)  # fmt: skip
def test_completion_offers_what_can_stand_there(text: str, some: set[str], none: set[str]) -> None:
    """At the end of an unfinished text, what the grammar accepts is offered, and nothing else."""
    document, positions = Document(Source(URI, text)), Positions(text)
    offered = {item.label for item in completions(document, positions, len(text))}
    assert some <= offered
    assert not none & offered
