"""Places in a policy as tools count them: lines from 1, and columns from 1 in UTF-16 code units.

That is how SARIF viewers, GitHub and editors count unless they are told otherwise; an emoji takes two columns.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvmove.kvpol.source import Source, Span


@dataclass(frozen=True, slots=True)
class Place:
    """From the first character of a span to the one after its last."""

    line: int
    column: int
    end_line: int
    end_column: int


def place_of(source: Source, span: Span) -> Place:
    """Where `span` is; that of an insertion is empty."""
    return Place(*_position(source, span.start), *_position(source, span.end))


def _position(source: Source, offset: int) -> tuple[int, int]:
    number = source.line_of(offset)
    before = source.line(number)[: source.column_of(offset) - 1]
    return number, len(before.encode("utf-16-le", "surrogatepass")) // 2 + 1
