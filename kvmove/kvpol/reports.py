"""What was found in several policy files, for programs: as JSON, and as the annotations that GitHub Actions reads.

`sarif` has the format of code scanning services, `render` the one for people.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kvmove.kvpol.findings import Finding
from kvmove.kvpol.places import place_of
from kvmove.kvpol.source import Source, Span


@dataclass(frozen=True, slots=True)
class FileReport:
    """One file: its text with what was found in it, or why it cannot be used at all."""

    path: str
    source: Source | None
    findings: Sequence[Finding] = ()
    problem: str | None = None


def as_json(reports: Sequence[FileReport]) -> dict[str, Any]:
    """Every finding as plain values. Lines and columns count from 1, columns in UTF-16 code units; ends are exclusive.

    `version` grows when a key changes its meaning or goes; new keys may come at any time.
    """
    findings = [_finding(r.path, r.source, f) for r in reports if r.source is not None for f in r.findings]
    problems = [{"file": r.path, "message": r.problem} for r in reports if r.problem is not None]
    return {"version": 1, "findings": findings, "problems": problems}


def _finding(path: str, source: Source, finding: Finding) -> dict[str, Any]:
    fix = finding.fix
    return {
        "file": path,
        "code": finding.code,
        "severity": str(finding.severity),
        "message": finding.message,
        **_where(source, finding.span),
        "help": finding.help,
        "notes": [
            {"message": n.message} if n.span is None else {"message": n.message, **_where(source, n.span)}
            for n in finding.notes
        ],
        "fix": None if fix is None else {**_where(source, fix.span), "text": fix.text},
    }


def _where(source: Source, span: Span) -> dict[str, int]:
    place = place_of(source, span)
    return {"line": place.line, "column": place.column, "end_line": place.end_line, "end_column": place.end_column}


def as_annotations(reports: Sequence[FileReport]) -> list[str]:
    """Workflow commands of GitHub Actions: each finding appears beside its line in a pull request."""
    lines: list[str] = []
    for report in reports:
        if report.problem:
            lines.append(_command("error", report.problem, {"file": report.path, "title": "kvmove"}))
        if report.source is not None:
            lines += [_annotation(report, report.source, f) for f in report.findings]
    return lines


def _annotation(report: FileReport, source: Source, finding: Finding) -> str:
    place = place_of(source, finding.span)
    properties: dict[str, str | int] = {"file": report.path, "line": place.line, "endLine": place.end_line}
    if place.line == place.end_line:  # GitHub takes columns of one line only
        properties |= {"col": place.column, "endColumn": place.end_column}
    properties["title"] = f"kvmove {finding.code}"
    message = finding.message if finding.help is None else f"{finding.message}\nhelp: {finding.help}"
    return _command(str(finding.severity), message, properties)


def _command(name: str, message: str, properties: dict[str, str | int]) -> str:
    written = ",".join(f"{key}={_escaped(str(value), in_property=True)}" for key, value in properties.items())
    return f"::{name} {written}::{_escaped(message)}"


def _escaped(text: str, *, in_property: bool = False) -> str:
    text = text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")  # a file's name may be no UTF-8
    escapes = {"%": "%25", "\r": "%0D", "\n": "%0A"}
    if in_property:
        escapes |= {":": "%3A", ",": "%2C"}
    return "".join(escapes.get(c, c) for c in text)
