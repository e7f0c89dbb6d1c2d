"""The text of a policy, and places in it."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from itertools import accumulate, repeat
from operator import add

MAX_SHOWN = 40  # characters of the user's text that a message repeats


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """Characters [start, end) of a source text."""

    start: int
    end: int

    def to(self, other: Span) -> Span:
        """The span from the start of this one to the end of `other`."""
        return Span(self.start, other.end)


@dataclass(frozen=True, slots=True)
class Source:
    """A policy's text with the name that messages give it: a path, or `<policy>` for text from a program."""

    name: str
    text: str
    _line_starts: tuple[int, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # Split at "\n" only: the other separators that str.splitlines knows are ordinary characters here.
        # No Python per line: this is done before a text of a million empty lines is refused.
        lengths = map(add, map(len, self.text.split("\n")), repeat(1))
        object.__setattr__(self, "_line_starts", (0, *accumulate(lengths)))

    def line_of(self, offset: int) -> int:
        """The line, counted from 1, that holds the character at `offset`."""
        last = len(self._line_starts) - 2
        return min(bisect_right(self._line_starts, offset) - 1, last) + 1

    def column_of(self, offset: int) -> int:
        """The column, counted from 1, of the character at `offset`."""
        return offset - self._line_starts[self.line_of(offset) - 1] + 1

    def line(self, number: int) -> str:
        """Line `number`, counted from 1, without its end."""
        start, after = self._line_starts[number - 1], self._line_starts[number]
        return self.text[start : after - 1].rstrip("\r")

    def slice(self, span: Span) -> str:
        """The text that `span` covers."""
        return self.text[span.start : span.end]


def quoted(text: str) -> str:
    """The user's text for a message: in backticks, cut short, with what is not printable made visible."""
    shown = text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 3] + "..."
    return "`" + printable(shown) + "`"


def printable(text: str) -> str:
    """`text` with every character that a terminal would act on shown as an escape."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
