"""Findings as text: the message, the place, the source line with carets under it, notes and help apart."""

from __future__ import annotations

from collections.abc import Iterable

from kvmove.kvpol.findings import Finding
from kvmove.kvpol.source import Source, Span, printable

MAX_LINE = 160  # characters of a source line that are shown


def render_all(findings: Iterable[Finding], source: Source) -> str:
    """The findings one after the other, an empty line between them."""
    return "\n\n".join(render(f, source) for f in findings)


def render(finding: Finding, source: Source) -> str:
    """One finding as plain text, without an end of line after it."""
    code = f"[{finding.code}]" if finding.code else ""
    line = source.line_of(finding.span.start)
    margin = " " * len(str(max([line, *(source.line_of(n.span.start) for n in finding.notes if n.span)])))
    lines = [f"{finding.severity}{code}: {finding.message}"]
    lines += _snippet(source, finding.span, margin, "-->")
    for note in finding.notes:
        lines.append(f"{margin} = note: {note.message}")
        if note.span is not None:
            lines += _snippet(source, note.span, margin, ":::")
    if finding.help is not None:
        lines.append(f"{margin} = help: {finding.help}")
    return "\n".join(lines)


def _snippet(source: Source, span: Span, margin: str, arrow: str) -> list[str]:
    number, column = source.line_of(span.start), source.column_of(span.start)
    text = source.line(number)
    start = min(column - 1, len(text))
    # A span over several lines is underlined to the end of its first.
    end = max(min(start + span.end - span.start, len(text)), start + 1)
    first = 0
    if end > MAX_LINE:
        first = max(0, start - MAX_LINE // 2)
        end = min(end, first + MAX_LINE)
    # Escapes and tabs change widths, so the caret's column is measured on what is shown.
    before = _shown(text[first:start])
    marked = _shown(text[start:end])
    after = _shown(text[end : first + MAX_LINE])
    return [
        f"{margin}{arrow} {printable(source.name)}:{number}:{column}",
        f"{margin} |",
        f"{number:>{len(margin)}} | {before}{marked}{after}".rstrip(),
        f"{margin} | {' ' * len(before)}{'^' * max(1, len(marked))}",
    ]


def _shown(text: str) -> str:
    return printable(text.replace("\t", "    "))
