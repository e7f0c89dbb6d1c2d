"""Formatting as an edit of the lines that change, so that the cursor and the folds of the others stay."""

from __future__ import annotations

from itertools import takewhile

from lsprotocol.types import TextEdit

from kvmove.editors.positions import Positions
from kvmove.errors import PolicyError
from kvmove.kvpol.format import format_text
from kvmove.kvpol.source import Span


def formatting_edits(text: str, positions: Positions) -> list[TextEdit]:
    """The edit that `kvmove fmt` would make; none where nothing changes, or the text does not parse."""
    try:
        formatted = format_text(text)
    except PolicyError:
        return []  # its diagnostics say why already, and formatting on save must not nag
    old, new = text.splitlines(keepends=True), formatted.splitlines(keepends=True)
    first = _common(old, new)
    last = _common(old[first:][::-1], new[first:][::-1])
    old_part, new_part = old[first : len(old) - last], new[first : len(new) - last]
    if not old_part and not new_part:
        return []
    start = sum(map(len, old[:first]))
    return [TextEdit(positions.range(Span(start, start + sum(map(len, old_part)))), "".join(new_part))]


def _common(a: list[str], b: list[str]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))
