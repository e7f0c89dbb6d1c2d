"""Places in a text as the Language Server Protocol counts them: lines, and code units of an agreed encoding.

The protocol ends a line at `\\n`, `\\r\\n` or `\\r` and at nothing else, and counts UTF-16 code units unless client and
server agree on another encoding: an emoji before a mistake takes two columns.
"""

from __future__ import annotations

import re
from bisect import bisect_right

from lsprotocol.types import Position, PositionEncodingKind, Range

from kvmove.kvpol.source import Span

_LINE_END = re.compile(r"\r\n|\r|\n")


class Positions:
    """Translates between characters of `text` and positions in `encoding`."""

    def __init__(self, text: str, encoding: PositionEncodingKind | str = PositionEncodingKind.Utf16) -> None:
        self._text, self._encoding = text, encoding
        ends = list(_LINE_END.finditer(text))
        self._starts = [0, *(m.end() for m in ends)]
        self._ends = [*(m.start() for m in ends), len(text)]

    def position(self, offset: int) -> Position:
        """The position of the character at `offset`; one past the end of the text is its end."""
        line = bisect_right(self._starts, offset) - 1
        start = self._starts[line]
        return Position(line, self._units(self._text[start : min(offset, self._ends[line])]))

    def range(self, span: Span) -> Range:
        """The range of the characters of `span`."""
        return Range(self.position(span.start), self.position(span.end))

    def offset(self, position: Position) -> int:
        """The character at `position`. What lies beyond a line is its end, beyond the text the end of that."""
        if position.line >= len(self._starts):
            return len(self._text)
        offset, end = self._starts[position.line], self._ends[position.line]
        left = position.character
        while offset < end and (left := left - self._units(self._text[offset])) >= 0:
            offset += 1
        return offset

    def _units(self, text: str) -> int:
        if self._encoding == PositionEncodingKind.Utf8:
            return len(text.encode("utf-8", "surrogatepass"))
        if self._encoding == PositionEncodingKind.Utf32 or text.isascii():
            return len(text)
        return len(text.encode("utf-16-le", "surrogatepass")) // 2
