"""Queues of blocks that any block can leave at once: doubly linked rings through two arrays."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence


class BlockRings:
    """`num_rings` queues, of which a block is in one at most, in eight bytes a block; an ordered dict takes a hundred.

    Following `newer` from a ring's anchor goes from its oldest block to its newest one, and back to the anchor. The
    anchors are numbered from `num_blocks` on. The links of a block that is in no ring mean nothing.
    """

    __slots__ = ("_num_blocks", "_older", "newer", "sizes")

    def __init__(self, num_blocks: int, num_rings: int) -> None:
        self._num_blocks = num_blocks
        self.newer = array("I", range(num_blocks + num_rings))
        self._older = array("I", range(num_blocks + num_rings))
        self.sizes = [0] * num_rings

    def anchor(self, ring: int) -> int:
        """What stands for the end of a ring among its blocks."""
        return self._num_blocks + ring

    def append(self, blocks: Sequence[int], ring: int) -> None:
        """Put blocks that are in no ring at the newest end of this one, the last one newest."""
        newer, older = self.newer, self._older
        anchor = self._num_blocks + ring
        newest = older[anchor]
        for block in blocks:
            newer[newest] = block
            older[block] = newest
            newest = block
        newer[newest] = anchor
        older[anchor] = newest
        self.sizes[ring] += len(blocks)

    def remove(self, blocks: Sequence[int], ring: int) -> None:
        """Take blocks out of the ring that they are in."""
        newer, older = self.newer, self._older
        for block in blocks:
            after, before = newer[block], older[block]
            newer[before] = after
            older[after] = before
        self.sizes[ring] -= len(blocks)

    def blocks(self, ring: int) -> Iterator[int]:
        """The blocks of a ring, the oldest first."""
        anchor = self._num_blocks + ring
        block = self.newer[anchor]
        while block != anchor:
            yield block
            block = self.newer[block]
