"""What a router is told of a tier: which keys it serves from now on, and which no more."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from enum import StrEnum


class EventKind(StrEnum):
    """What became of the keys of an event."""

    STORED = "stored"  # served from now on
    REMOVED = "removed"  # served no more
    RESET = "reset"  # these keys are all that is served; forget what was said before


@dataclass(frozen=True, slots=True)
class TierEvent:
    """One change. `number` counts a tier's events from 0 without a gap, so that who misses one notices."""

    number: int
    kind: EventKind
    keys: tuple[Hashable, ...]


class EventLog:
    """The changes since they were last taken, in their order.

    Where nobody takes them, `max_keys` bounds what is kept: beyond it they are dropped, and what is taken next is
    one RESET with all keys that are served then.
    """

    __slots__ = ("_is_overfull", "_max_keys", "_next_number", "_num_keys", "_pending")

    def __init__(self, max_keys: int) -> None:
        self._max_keys = max_keys
        self._next_number = 0
        self._pending: list[tuple[EventKind, tuple[Hashable, ...]]] = []
        self._num_keys = 0
        self._is_overfull = False

    def add(self, kind: EventKind, keys: Iterable[Hashable]) -> None:
        """Note a change; without keys it is none, but for a RESET, before which nothing matters."""
        noted = tuple(keys)
        if kind is EventKind.RESET:
            self._forget()
            self._is_overfull = False
        elif not noted or self._is_overfull:
            return
        self._pending.append((kind, noted))
        self._num_keys += len(noted)
        if self._num_keys > self._max_keys:
            self._forget()
            self._is_overfull = True

    def take(self, served: Callable[[], Iterable[Hashable]]) -> list[TierEvent]:
        """Return the changes, and start anew; `served` gives all keys that are served now, for a RESET."""
        pending = [(EventKind.RESET, tuple(served()))] if self._is_overfull else self._pending
        self._pending, self._num_keys, self._is_overfull = [], 0, False
        first = self._next_number
        self._next_number += len(pending)
        return [TierEvent(first + i, kind, keys) for i, (kind, keys) in enumerate(pending)]

    def _forget(self) -> None:
        self._pending, self._num_keys = [], 0
