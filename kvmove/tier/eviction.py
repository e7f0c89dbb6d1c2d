"""Which block goes first when the host tier is full."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from typing import Protocol

from kvmove.tier.rings import BlockRings
from kvmove.tier.s3fifo import S3Fifo


class EvictionPolicy(Protocol):
    """Orders the blocks that may be evicted: those that are ready and that no load holds.

    The tier says what happens to a block, in these pairs: `insert` when it becomes ready, and `evict` or
    `discard` when its contents go; `hold` when a first load pins it, and `release` when the last one ends.
    Between `hold` and `release` a block is no candidate. When its contents are dropped while it is held, it is not
    released: the next call for it is an `insert`, or none. Every call is to be O(1) for each block in it.
    """

    def __len__(self) -> int:
        """Return the number of candidates."""

    def __iter__(self) -> Iterator[int]:
        """Go through the candidates, the first to be evicted first; for tests and debugging."""

    def insert(self, block: int, key: Hashable) -> None:
        """Make a block a candidate that was none; `key` is for policies that remember evicted keys."""

    def touch(self, blocks: Sequence[int]) -> None:
        """Note a use of distinct candidates, the last one latest."""

    def hold(self, blocks: Sequence[int]) -> None:
        """Take candidates out for as long as loads hold them."""

    def release(self, blocks: Sequence[int]) -> None:
        """Make held blocks candidates again; the load was a use, of the last one latest."""

    def discard(self, block: int) -> None:
        """Forget a candidate whose contents were dropped on request, so that they say nothing about use."""

    def evict(self, count: int, spared: Collection[int]) -> list[int]:
        """Take out up to `count` candidates that are not in `spared`, and return them in the order they go.

        O(count + len(spared)) where the policy can.
        """


class LeastRecentlyUsed:
    """Evicts the candidate that was used least recently."""

    __slots__ = ("_order",)

    def __init__(self, num_blocks: int) -> None:
        self._order = BlockRings(num_blocks, 1)

    def __len__(self) -> int:
        return self._order.sizes[0]

    def __iter__(self) -> Iterator[int]:
        return self._order.blocks(0)

    def insert(self, block: int, key: Hashable) -> None:
        self._order.append((block,), 0)

    def touch(self, blocks: Sequence[int]) -> None:
        self._order.remove(blocks, 0)
        self._order.append(blocks, 0)

    def hold(self, blocks: Sequence[int]) -> None:
        self._order.remove(blocks, 0)

    def release(self, blocks: Sequence[int]) -> None:
        self._order.append(blocks, 0)

    def discard(self, block: int) -> None:
        self._order.remove((block,), 0)

    def evict(self, count: int, spared: Collection[int]) -> list[int]:
        newer, end = self._order.newer, self._order.anchor(0)
        chosen: list[int] = []
        block = newer[end]
        while len(chosen) < count and block != end:
            following = newer[block]
            if block not in spared:
                self._order.remove((block,), 0)
                chosen.append(block)
            block = following
        return chosen


EVICTION_POLICIES: dict[str, Callable[[int], EvictionPolicy]] = {"lru": LeastRecentlyUsed, "s3fifo": S3Fifo}
