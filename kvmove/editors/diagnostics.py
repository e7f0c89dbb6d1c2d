"""The checker's findings as an editor shows them, and their fixes as quick fixes."""

from __future__ import annotations

from collections.abc import Iterator

from lsprotocol import types

from kvmove.editors.document import Document
from kvmove.editors.positions import Positions
from kvmove.kvpol.findings import Finding, Fix
from kvmove.kvpol.pages import local_page_uri
from kvmove.kvpol.source import quoted


def diagnostics(document: Document, positions: Positions, uri: str) -> list[types.Diagnostic]:
    """Every finding of the policy at `uri`."""
    return [_diagnostic(f, positions, uri) for f in document.findings]


def quick_fixes(document: Document, positions: Positions, uri: str, chosen: types.Range) -> list[types.CodeAction]:
    """The fixes of the findings that touch `chosen`."""
    low, high = positions.offset(chosen.start), positions.offset(chosen.end)
    return [
        types.CodeAction(
            title=_title(fix, document),
            kind=types.CodeActionKind.QuickFix,
            diagnostics=[_diagnostic(finding, positions, uri)],
            is_preferred=True,
            edit=types.WorkspaceEdit(changes={uri: [types.TextEdit(positions.range(fix.span), fix.text)]}),
        )
        for finding, fix in _fixable(document)
        if (finding.span.start <= high and low <= finding.span.end) or (fix.span.start <= high and low <= fix.span.end)
    ]


def _fixable(document: Document) -> Iterator[tuple[Finding, Fix]]:
    return ((f, f.fix) for f in document.findings if f.fix is not None)


def _diagnostic(finding: Finding, positions: Positions, uri: str) -> types.Diagnostic:
    lines = [finding.message]
    lines += [f"note: {n.message}" for n in finding.notes if n.span is None]
    lines += [f"help: {finding.help}"] if finding.help else []
    related = [
        types.DiagnosticRelatedInformation(types.Location(uri, positions.range(n.span)), n.message)
        for n in finding.notes
        if n.span is not None
    ]
    return types.Diagnostic(
        range=positions.range(finding.span),
        message="\n".join(lines),
        severity=types.DiagnosticSeverity.Error if finding.is_error else types.DiagnosticSeverity.Warning,
        code=finding.code,
        code_description=types.CodeDescription(link) if (link := local_page_uri(finding.code)) else None,
        source="kvmove",
        related_information=related or None,
    )


def _title(fix: Fix, document: Document) -> str:
    replaced = document.source.slice(fix.span)
    if not fix.text:
        return f"Remove {quoted(replaced)}"
    if not replaced:
        return f"Insert {quoted(fix.text)}"
    return f"Replace {quoted(replaced)} by {quoted(fix.text)}"
