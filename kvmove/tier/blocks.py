"""The blocks of a host tier: what state each is in, which key it has and how many loads hold it."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Hashable

from kvmove.errors import InternalError

# Plain ints in a bytearray: a lookup compares one per key, and an enum member a block would take eight bytes.
FREE = 0
STORING = 1  # granted to a store that has not ended: not served
READY = 2  # served; pinned by any number of loads, or a candidate for eviction
LEAVING_STORE = 3  # discarded while being stored: freed when the store ends, however it ends
LEAVING_LOADS = 4  # discarded while pinned: freed when the last load that holds it ends


class BlockTable:
    """State, key and pins of every block, with the free blocks on a stack and the blocks of each state counted.

    Between taking and freeing, a block belongs to one key, and the key is in the index.
    """

    __slots__ = ("_free", "index", "keys", "num_in_state", "num_pinned", "pins", "states")

    def __init__(self, num_blocks: int) -> None:
        self.index: dict[Hashable, int] = {}
        self.keys: list[Hashable] = [None] * num_blocks
        self.states = bytearray(num_blocks)
        self.pins = array("I", bytes(4 * num_blocks))
        self.num_in_state = [num_blocks, 0, 0, 0, 0]
        self.num_pinned = 0
        self._free = array("I", range(num_blocks - 1, -1, -1))  # the lowest block is taken first

    @property
    def num_free(self) -> int:
        """Blocks that hold nothing."""
        return len(self._free)

    def take(self, count: int) -> list[int]:
        """Take `count` free blocks, in ascending order: neighbours in a prefix then tend to be neighbours in
        the pool, and copies of adjacent host blocks can be merged into one.
        """
        start = len(self._free) - count
        blocks = sorted(self._free[start:])
        del self._free[start:]
        return blocks

    def assign(self, block: int, key: Hashable) -> None:
        """Give a taken block to a key that is to be stored in it."""
        self.index[key] = block
        self.keys[block] = key
        self.set_state(block, STORING)

    def free(self, block: int) -> None:
        """Forget a block's key and contents."""
        del self.index[self.keys[block]]
        self.keys[block] = None
        self.set_state(block, FREE)
        self._free.append(block)

    def set_state(self, block: int, state: int) -> None:
        """Move a block from one state to another."""
        self.num_in_state[self.states[block]] -= 1
        self.num_in_state[state] += 1
        self.states[block] = state

    def state_of(self, key: Hashable) -> int:
        """Return the state of the key's block; FREE where the key has none."""
        block = self.index.get(key)
        return FREE if block is None else self.states[block]

    def pin(self, block: int) -> bool:
        """Pin a block once more, and return whether it was not pinned before."""
        self.pins[block] += 1
        first = self.pins[block] == 1
        self.num_pinned += first
        return first

    def unpin(self, block: int) -> bool:
        """Take one pin off a block, and return whether it was the last."""
        self.pins[block] -= 1
        last = self.pins[block] == 0
        self.num_pinned -= last
        return last

    def check_integrity(self) -> None:
        """Raise `InternalError` where index, states, pins, free blocks and counts disagree; O(blocks)."""
        free = set(self._free)
        if len(free) != len(self._free):
            raise InternalError("a free block is on the stack twice")
        for block, state in enumerate(self.states):
            if (state == FREE) != (block in free):
                raise InternalError(f"block {block} has state {state}; on the stack of free blocks: {block in free}")
            if state != FREE and self.index.get(self.keys[block]) != block:
                raise InternalError(f"block {block} has key {self.keys[block]!r}, which the index does not give it")
            if (self.pins[block] > 0 and state not in (READY, LEAVING_LOADS)) or (
                self.pins[block] == 0 and state == LEAVING_LOADS
            ):
                raise InternalError(f"block {block} has state {state} and {self.pins[block]} pins")
        if len(self.index) + len(free) != len(self.states):
            raise InternalError(f"{len(self.index)} keys and {len(free)} free blocks of {len(self.states)} blocks")
        counted = Counter(self.states)
        if [counted[state] for state in range(len(self.num_in_state))] != self.num_in_state:
            raise InternalError(f"blocks by state are {counted}, counted were {self.num_in_state}")
        if sum(1 for pins in self.pins if pins) != self.num_pinned:
            raise InternalError(f"{self.num_pinned} pinned blocks were counted, pins are {self.pins}")
