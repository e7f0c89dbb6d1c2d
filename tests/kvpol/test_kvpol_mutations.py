"""Damaged policies: whatever is cut out of a policy, put in, swapped or flipped, there are findings and no crash."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kvmove.errors import PolicyError
from kvmove.kvpol import Policy
from kvmove.kvpol.analyse import Analysis, analyse
from kvmove.kvpol.limits import decode
from kvmove.kvpol.reports import FileReport, as_annotations, as_json
from kvmove.kvpol.sarif import as_sarif
from kvmove.kvpol.source import Source
from kvmove.kvpol.syntax import KEYWORDS
from kvmove.testing import policies

ROOT = Path(__file__).parents[2]
SHIPPED = [p.read_text(encoding="utf-8") for p in sorted((ROOT / "policies").glob("*.kvpol"))]
GOLDEN = [p.read_text(encoding="utf-8") for p in sorted((Path(__file__).parent / "golden").glob("*.kvpol"))]
SCRAPS = [
    *KEYWORDS, *"()+-*/<>:=,@#\"'.;&|!{}\n\r\t\0", "<=", "==", "@a", "budget", "bytes", "load_time", "min(", "known(",
    "0", "3B", "64 MiB", "5tok", "1.5", "2ms", "50%", '"n"', "9" * 40, "x" * 300, "(" * 70, "not " * 70, "1B+" * 20,
    "\u2028", "\ufeff", "\ud800", "\U0001f680", "\x1b[2J", "e\u0301",
]  # fmt: skip


@st.composite
def mutations(draw: st.DrawFn, texts: st.SearchStrategy[str]) -> str:
    """A text of `texts` after a few edits: a part deleted, doubled, moved, replaced, or a scrap put in."""
    text = draw(texts)
    for _ in range(draw(st.integers(1, 4))):
        low = draw(st.integers(0, len(text)))
        high = min(len(text), low + draw(st.integers(0, 12)))
        part = text[low:high]
        match draw(st.sampled_from(["delete", "double", "move", "scrap", "replace"])):
            case "delete":
                text = text[:low] + text[high:]
            case "double":
                text = text[:high] + part + text[high:]
            case "move":
                rest = text[:low] + text[high:]
                to = draw(st.integers(0, len(rest)))
                text = rest[:to] + part + rest[to:]
            case "scrap":
                text = text[:low] + draw(st.sampled_from(SCRAPS)) + text[low:]
            case _:
                text = text[:low] + draw(st.text(st.characters(exclude_categories=()), max_size=3)) + text[high:]
    return text


def examine(source: Source) -> Analysis | None:
    """Check `source` in every way, and report what is found in every format. Any other error fails the test."""
    try:
        analysis = analyse(source, strict=True)
    except PolicyError:
        return None
    places = [f.span for f in analysis.findings]
    places += [n.span for f in analysis.findings for n in f.notes if n.span is not None]
    places += [f.fix.span for f in analysis.findings if f.fix is not None]
    assert all(0 <= p.start <= p.end <= len(source.text) for p in places)
    assert len(set(analysis.findings)) == len(analysis.findings)
    assert all(f.code and f.message and f.message.isprintable() for f in analysis.findings)
    reports = [FileReport("p.kvpol", source, analysis.findings)]
    assert analysis.report().count("\n --> ") <= len(analysis.findings)
    assert len(as_annotations(reports)) == len(analysis.findings)
    json.dumps([as_json(reports), as_sarif(reports)], allow_nan=False).encode("ascii")
    is_wrong = any(f.is_error for f in analysis.findings)
    assert (analysis.program is None) == is_wrong
    if not is_wrong:
        assert Policy.parse(source.text).rules  # what the checker accepts compiles
    return analysis


@settings(max_examples=120)
@given(mutations(st.sampled_from([*SHIPPED, *GOLDEN])))
@example("sync if (\x00")
@example('policy "\x85"')
@example("@")
@example("let\nlet\nlet")
@example("param budget")
@example("sync at")
@example("assert")
def test_damaged_policies_never_crash(text: str) -> None:
    """A policy that ships, or one full of mistakes, is still findings after a few edits."""
    examine(Source("p.kvpol", text))


@settings(max_examples=40)
@given(mutations(policies()))
def test_damaged_random_policies_never_crash(text: str) -> None:
    """So is a policy of any shape."""
    examine(Source("p.kvpol", text))


@settings(max_examples=80)
@given(st.sampled_from([t.encode() for t in SHIPPED]), st.data())
def test_flipped_bytes_never_crash(data: bytes, drawn: st.DataObject) -> None:
    """A file with flipped, lost and added bytes is a policy, findings, or not UTF-8 text, and that is said."""
    damaged = bytearray(data)
    for _ in range(drawn.draw(st.integers(1, 5), "edits")):
        at = drawn.draw(st.integers(0, len(damaged) - 1), "at")
        match drawn.draw(st.sampled_from(["flip", "lose", "add"])):
            case "flip":
                damaged[at] ^= 1 << drawn.draw(st.integers(0, 7), "bit")
            case "lose":
                del damaged[at]
            case _:
                damaged.insert(at, drawn.draw(st.integers(0, 255), "byte"))
    try:
        source = decode(bytes(damaged), "p.kvpol")
    except PolicyError as error:
        said = str(error)
    else:
        said = ""
        examine(source)
    assert said == "" or said.startswith("p.kvpol: not ")


@pytest.mark.parametrize("text", SHIPPED)
def test_every_beginning_of_a_policy_is_checked(text: str) -> None:
    """A file half written, cut at any line or in its middle, is findings about its end."""
    cuts = [i for i, c in enumerate(text) if c == "\n"] + list(range(0, len(text), 41))
    for cut in cuts:
        examine(Source("p.kvpol", text[:cut]))
