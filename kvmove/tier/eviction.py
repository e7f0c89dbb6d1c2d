"""Which block goes first when the host tier is full."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Hashable, Iterator
from typing import Protocol


class EvictionPolicy(Protocol):
    """Orders the blocks that may be evicted: those that are ready and that no load holds.

    The tier says what happens to a block, in these pairs: `insert` when it becomes ready, and `evict` or
    `discard` when its contents go; `hold` when a first load pins it, and `release` when the last one ends.
    Between `hold` and `release` a block is no candidate. When its contents are dropped while it is held, it is not
    released: the next call for it is an `insert`. Every call but `evict` is to be O(1).
    """

    def __len__(self) -> int:
        """Return the number of candidates."""

    def __iter__(self) -> Iterator[int]:
        """Go through the candidates, the first to be evicted first; for tests and debugging."""

    def insert(self, block: int, key: Hashable) -> None:
        """Make a block a candidate that was none; `key` is for policies that remember evicted keys."""

    def touch(self, block: int) -> None:
        """Note a use of a candidate."""

    def hold(self, block: int) -> None:
        """Take a candidate out for as long as loads hold it."""

    def release(self, block: int) -> None:
        """Make a held block a candidate again; the load was a use."""

    def discard(self, block: int) -> None:
        """Forget a candidate whose contents were dropped on request, so that they say nothing about use."""

    def evict(self, count: int, spared: Collection[int]) -> list[int]:
        """Take out up to `count` candidates that are not in `spared`, and return them in the order they go.

        O(count + len(spared)) where the policy can.
        """


class LeastRecentlyUsed:
    """Evicts the candidate that was used least recently.

    The order is a doubly linked ring through two arrays indexed by block: eight bytes a block, where an ordered
    dict would take more than a hundred. The ring's anchor has the index `num_blocks`; following `_newer` from
    it goes from the least to the most recently used block. The links of a block outside the ring mean nothing.
    """

    __slots__ = ("_anchor", "_newer", "_num_candidates", "_older")

    def __init__(self, num_blocks: int) -> None:
        self._anchor = num_blocks
        self._newer = array("I", range(num_blocks + 1))
        self._older = array("I", range(num_blocks + 1))
        self._num_candidates = 0

    def __len__(self) -> int:
        return self._num_candidates

    def __iter__(self) -> Iterator[int]:
        block = self._newer[self._anchor]
        while block != self._anchor:
            yield block
            block = self._newer[block]

    def insert(self, block: int, key: Hashable) -> None:
        self._link(block)

    def touch(self, block: int) -> None:
        self._unlink(block)
        self._link(block)

    def hold(self, block: int) -> None:
        self._unlink(block)

    def release(self, block: int) -> None:
        self._link(block)

    def discard(self, block: int) -> None:
        self._unlink(block)

    def evict(self, count: int, spared: Collection[int]) -> list[int]:
        chosen: list[int] = []
        block = self._newer[self._anchor]
        while len(chosen) < count and block != self._anchor:
            newer = self._newer[block]
            if block not in spared:
                self._unlink(block)
                chosen.append(block)
            block = newer
        return chosen

    def _link(self, block: int) -> None:
        """Put a block that is outside the ring at its most recently used end."""
        newest = self._older[self._anchor]
        self._newer[newest] = block
        self._older[block] = newest
        self._newer[block] = self._anchor
        self._older[self._anchor] = block
        self._num_candidates += 1

    def _unlink(self, block: int) -> None:
        newer, older = self._newer[block], self._older[block]
        self._newer[older] = newer
        self._older[newer] = older
        self._num_candidates -= 1


EVICTION_POLICIES: dict[str, Callable[[int], EvictionPolicy]] = {"lru": LeastRecentlyUsed}
