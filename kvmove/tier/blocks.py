"""The blocks of a host tier: what state each is in, which key it has and how many loads hold it."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Hashable, Sequence
from itertools import takewhile
from operator import eq

from kvmove.errors import InternalError

# Plain ints in a bytearray: a lookup compares one per key, and an enum member a block would take eight bytes.
FREE = 0
STORING = 1  # granted to a store that has not ended: not served
READY = 2  # served; pinned by any number of loads, or a candidate for eviction
LEAVING_STORE = 3  # discarded while being stored: freed when the store ends, however it ends
LEAVING_LOADS = 4  # discarded while pinned: freed when the last load that holds it ends


_READY_BYTE = bytes((READY,))
_FIRST_COMPARED = 8  # keys at first, then four times as many each time: few where a run is short


class BlockTable:
    """State, key and pins of every block, with the free blocks on a stack and the blocks of each state counted.

    Between taking and freeing, a block belongs to one key, and the key is in the index.
    """

    __slots__ = ("_free", "hashes", "index", "keys", "num_in_state", "num_pinned", "pins", "states")

    def __init__(self, num_blocks: int) -> None:
        self.index: dict[Hashable, int] = {}
        self.keys: list[Hashable] = [None] * num_blocks
        self.hashes = array("q", bytes(8 * num_blocks))  # of the keys; a free block has an old one
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
        self.hashes[block] = hash(key)
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

    def ready_runs(self, keys: Sequence[Hashable]) -> list[tuple[int, int]]:
        """The blocks of the leading keys that are ready, as runs of neighbours: (first block, how many).

        A prefix that was stored at once lies in neighbouring blocks, mostly. So one key is looked for in the index,
        and those after it are compared with what the next blocks hold, many at a time and without hashing: in a
        large tier, an index entry for each key would be a cache miss for each.
        """
        index, states = self.index, self.states
        wanted = keys if type(keys) is list else list(keys)
        runs: list[tuple[int, int]] = []
        found = 0
        while found < len(wanted):
            block = index.get(wanted[found])
            if block is None or states[block] != READY:
                break
            if not found and self._holds_all(block, wanted):
                return [(block, len(wanted))]
            length = 1 + self._neighbours(block + 1, wanted, found + 1)
            runs.append((block, length))
            found += length
        return runs

    def holds_chain(self, keys: Sequence[Hashable], hashes: array[int]) -> bool:
        """Whether the whole chain is ready in neighbouring blocks: the usual case of a prefix, told in a microsecond.

        Each key of a chain stands for all before it, so that the last one says which chain it is. The hashes say that
        the blocks in between are the chain's; looking at the keys themselves would be a cache miss for each.
        """
        block = self.index.get(keys[0]) if keys else None
        if block is None:
            return False
        end = block + len(keys)
        return (
            self.hashes[block:end] == hashes
            and self.keys[end - 1] == keys[-1]
            and not self.states[block:end].strip(_READY_BYTE)
        )

    def _holds_all(self, block: int, keys: list[Hashable]) -> bool:
        """Whether all these keys are ready in the blocks from this one on: the usual case, and the quickest to find."""
        end = block + len(keys)
        return self.keys[block:end] == keys and not self.states[block:end].strip(_READY_BYTE)

    def _neighbours(self, block: int, keys: list[Hashable], first: int) -> int:
        """How many of `keys[first:]` are ready in the blocks from `block` on, one after the other."""
        width, found = _FIRST_COMPARED, 0
        while True:
            wanted = keys[first + found : first + found + width]
            held = self.keys[block + found : block + found + width]
            if not wanted or held != wanted:
                break
            found += len(wanted)
            width *= 4
        found += len(list(takewhile(bool, map(eq, held, wanted))))
        states = self.states[block : block + found]
        return found - len(states.lstrip(_READY_BYTE))

    def pin(self, blocks: Sequence[int]) -> list[int]:
        """Pin distinct blocks once more, and return those that were not pinned before."""
        pins = self.pins
        first = [block for block in blocks if not pins[block]]
        for block in blocks:
            pins[block] += 1
        self.num_pinned += len(first)
        return first

    def unpin(self, blocks: Sequence[int]) -> list[int]:
        """Take one pin off distinct blocks, and return those whose last it was."""
        pins = self.pins
        for block in blocks:
            pins[block] -= 1
        last = [block for block in blocks if not pins[block]]
        self.num_pinned -= len(last)
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
            if state != FREE and self.hashes[block] != hash(self.keys[block]):
                raise InternalError(f"block {block} has the hash of another key than {self.keys[block]!r}")
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
