"""A tape of bytes from which choices are read: one draw of hypothesis where there would be hundreds.

A draw costs hypothesis about 0.1 ms, and a policy has a hundred choices. Bytes shrink well if 0 is the simplest
choice everywhere, and if one choice does not change the meaning of all that follow. So the tape is cut into parts of
fixed places, one for each statement, and a part that is at its end goes on with zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Tape:
    """Choices, each from the next byte of `data`."""

    __slots__ = ("_at", "_data")

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def byte(self) -> int:
        """The next byte; 0 when there is none."""
        at = self._at
        self._at = at + 1
        return self._data[at] if at < len(self._data) else 0

    def below(self, count: int) -> int:
        """A number in [0, count), of at most 256."""
        return self.byte() % count

    def pick(self, items: Sequence[T]) -> T:
        """One of at most 256 items; the first one is the simplest."""
        return items[self.byte() % len(items)]

    def part(self, length: int) -> Tape:
        """The next `length` bytes as a tape of their own."""
        at = self._at
        self._at = at + length
        return Tape(self._data[at : at + length])
