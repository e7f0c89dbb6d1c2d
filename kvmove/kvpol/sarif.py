"""What was found in policy files as SARIF 2.1.0, the format that code scanning services and viewers read.

Columns count UTF-16 code units from 1, which the run says (`columnKind`). A file below the current folder has a path
relative to it, with the base `%SRCROOT%`, so that a report does not depend on where a checkout is.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path
from typing import Any
from urllib.parse import quote

from kvmove import __version__
from kvmove.kvpol.codes import CODES, Code
from kvmove.kvpol.findings import Finding, Fix, Note
from kvmove.kvpol.pages import local_page_uri, page
from kvmove.kvpol.places import place_of
from kvmove.kvpol.reports import FileReport
from kvmove.kvpol.source import Source, Span

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
BASE = "%SRCROOT%"


def as_sarif(reports: Sequence[FileReport]) -> dict[str, Any]:
    """A SARIF log with one run. Its rules are the codes that were found, with their pages."""
    found = {f.code for report in reports for f in report.findings}
    rules = [code for name, code in CODES.items() if name in found]
    driver: dict[str, Any] = {
        "name": "kvmove",
        "semanticVersion": __version__,
        "rules": [_rule(code) for code in rules],
    }
    home = _project_url("Homepage", "Repository", "Source")
    if home:
        driver["informationUri"] = home
    index = {code.name: i for i, code in enumerate(rules)}
    run = {
        "tool": {"driver": driver},
        "columnKind": "utf16CodeUnits",
        "newlineSequences": ["\r\n", "\n"],
        "originalUriBaseIds": {BASE: {"description": {"text": "The folder in which kvmove was run."}}},
        "invocations": [_invocation(reports)],
        "artifacts": [{"location": location(r.path), "sourceLanguage": "kvpol"} for r in reports if r.source],
        "results": list(_results(reports, index)),
    }
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


def _rule(code: Code) -> dict[str, Any]:
    text = page(code)
    about = text.split("\n## ")[0].split("\n", 1)[1].strip()
    rule: dict[str, Any] = {
        "id": code.name,
        "shortDescription": {"text": code.title},
        "fullDescription": {"text": about or code.title},
        "help": {"text": f"`kvmove explain {code.name}` explains it.", "markdown": text},
        "defaultConfiguration": {"level": str(code.severity)},
    }
    uri = help_uri(code)
    if uri:
        rule["helpUri"] = uri
    return rule


def help_uri(code: Code) -> str | None:
    """Where the page of `code` is: below the documentation that the package names, else on this machine."""
    documentation = _project_url("Documentation")
    return f"{documentation.rstrip('/')}/errors/{code.name}.md" if documentation else local_page_uri(code.name)


def _project_url(*labels: str) -> str | None:
    try:
        written = metadata("kvmove").get_all("Project-URL") or []
    except PackageNotFoundError:  # a tree that is not installed
        return None
    urls = dict(line.split(", ", 1) for line in written if ", " in line)
    return next((urls[label] for label in labels if label in urls), None)


def _invocation(reports: Sequence[FileReport]) -> dict[str, Any]:
    problems = [(r.path, r.problem) for r in reports if r.problem]
    invocation: dict[str, Any] = {"executionSuccessful": not problems}
    if problems:
        invocation["toolExecutionNotifications"] = [
            {
                "level": "error",
                "message": {"text": problem},
                "locations": [{"physicalLocation": {"artifactLocation": location(path)}}],
            }
            for path, problem in problems
        ]
    return invocation


def _results(reports: Sequence[FileReport], index: dict[str, int]) -> Iterator[dict[str, Any]]:
    for report in reports:
        if report.source is not None:
            for finding in report.findings:
                yield _result(report.path, report.source, finding, index)


def _result(path: str, source: Source, finding: Finding, index: dict[str, int]) -> dict[str, Any]:
    code = finding.code or ""
    lines = [finding.message, *(f"note: {n.message}" for n in finding.notes if n.span is None)]
    lines += [f"help: {finding.help}"] if finding.help else []
    result: dict[str, Any] = {
        "ruleId": code,
        "ruleIndex": index[code],
        "level": str(finding.severity),
        "message": {"text": "\n".join(lines)},
        "locations": [{"physicalLocation": _physical(path, source, finding.span)}],
    }
    related = [_related(path, source, n, n.span, i) for i, n in enumerate(finding.notes) if n.span is not None]
    if related:
        result["relatedLocations"] = related
    if finding.fix is not None:
        result["fixes"] = [_fix(path, source, finding.fix)]
    return result


def _physical(path: str, source: Source, span: Span) -> dict[str, Any]:
    region = _region(source, span)
    region["snippet"] = {"text": source.slice(span)}
    return {"artifactLocation": location(path), "region": region}


def _region(source: Source, span: Span) -> dict[str, Any]:
    p = place_of(source, span)
    return {"startLine": p.line, "startColumn": p.column, "endLine": p.end_line, "endColumn": p.end_column}


def _related(path: str, source: Source, note: Note, span: Span, id: int) -> dict[str, Any]:
    return {"id": id, "message": {"text": note.message}, "physicalLocation": _physical(path, source, span)}


def _fix(path: str, source: Source, fix: Fix) -> dict[str, Any]:
    replacement = {"deletedRegion": _region(source, fix.span), "insertedContent": {"text": fix.text}}
    return {
        "description": {"text": f"Write `{fix.text}`." if fix.text else "Leave it out."},
        "artifactChanges": [{"artifactLocation": location(path), "replacements": [replacement]}],
    }


def location(path: str) -> dict[str, str]:
    """Where the file `path` is: below the current folder relative to `%SRCROOT%`, else an absolute address."""
    if path == "-":
        return {"uri": "stdin.kvpol", "uriBaseId": BASE}
    whole = Path(os.path.abspath(path))
    try:
        # A name may hold bytes that are no UTF-8 text, which Python keeps as lone surrogates.
        inside = whole.relative_to(Path.cwd()).as_posix()
        return {"uri": quote(os.fsencode(inside)), "uriBaseId": BASE}
    except ValueError:
        return {"uri": whole.as_uri()}
