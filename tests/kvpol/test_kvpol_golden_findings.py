"""What a reader sees for every kind of mistake, as files.

Each `golden/NAME.kvpol` is checked (`strict.kvpol` as `kvmove check --strict` does), and its findings have to be
`golden/NAME.txt`. After a change that is meant, write the new texts with

    KVMOVE_WRITE_GOLDEN=1 pytest tests/kvpol/test_kvpol_golden_findings.py

and read the difference before committing it.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kvmove.errors import PolicyError
from kvmove.kvpol.analyse import analyse
from kvmove.kvpol.findings import Severity
from kvmove.kvpol.source import Source

GOLDEN = Path(__file__).parent / "golden"


def report(path: Path) -> str:
    try:
        analysis = analyse(Source(path.name, path.read_text(encoding="utf-8")), strict=path.stem == "strict")
    except PolicyError as e:
        return f"{e}\n"
    return analysis.report() + "\n"


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.kvpol")), ids=lambda p: p.stem)
def test_findings_read_as_before(path: Path) -> None:
    """The findings of a policy full of mistakes are those of the golden file."""
    expected = path.with_suffix(".txt")
    if os.environ.get("KVMOVE_WRITE_GOLDEN"):
        expected.write_text(report(path), encoding="utf-8")
    assert report(path) == expected.read_text(encoding="utf-8")


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.kvpol")), ids=lambda p: p.stem)
def test_findings_keep_the_style(path: Path) -> None:
    """A message is lower case without a full stop, and speaks of no Python type."""
    source = Source(path.name, path.read_text(encoding="utf-8"))
    for finding in analyse(source, strict=True).findings:
        texts = [finding.message, *(note.message for note in finding.notes), *([finding.help] if finding.help else [])]
        for text in texts:
            assert text[0] in "`@0123456789" or text[0].islower()
            assert not text.endswith(".")
            assert not any(word in text for word in ("NoneType", "Fraction", "str ", "Token", "Error"))
        assert 0 <= finding.span.start < finding.span.end <= len(source.text)
        assert finding.severity in (Severity.ERROR, Severity.WARNING)


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.kvpol")), ids=lambda p: p.stem)
def test_fixes_remove_their_finding(path: Path) -> None:
    """Making the edit that a finding offers removes that finding and brings no other error to its place."""
    source = Source(path.name, path.read_text(encoding="utf-8"))
    for finding in analyse(source).findings:
        if finding.fix is None:
            continue
        span, text = finding.fix.span, finding.fix.text
        edited = Source(path.name, source.text[: span.start] + text + source.text[span.end :])
        left = [f.message for f in analyse(edited).findings if f.span.start == finding.span.start]
        assert finding.message not in left
