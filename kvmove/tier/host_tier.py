"""The index of a host tier: from keys to host blocks, with what may be loaded, stored and evicted."""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING

from kvmove.errors import InternalError, Refused
from kvmove.tier.blocks import FREE, LEAVING_LOADS, LEAVING_STORE, READY, STORING, BlockTable
from kvmove.tier.events import EventKind, EventLog, TierEvent
from kvmove.tier.eviction import EVICTION_POLICIES
from kvmove.tier.records import StoreGrant, TierStatistics

if TYPE_CHECKING:
    from kvmove.transfers import IndexArray

MAX_BLOCKS = 1 << 31  # block numbers and the eviction order's links fit 32 bits with room for an anchor


class HostTier:
    """Which host block holds which key. It moves no bytes: the engine does, between a prepare and a complete.

    The life of a key:

    1. Missing. `prepare_store` grants it a block, if there is room.
    2. Being stored: it holds the block, and is not served. `complete_store` leads to 3, `fail_store` to 1.
    3. Ready: `lookup` counts it. `prepare_load` pins it, once per load, and `complete_load` takes one pin off.
       While it is unpinned, another key's store may evict it (1).
    4. Leaving: `discard` or `clear` took it from 2 or 3 while a store or a load still used its block. It is not
       served, and cannot be stored again, so that the end of a transfer always means one block; when the
       store, or the last load, ends, however it ends, its block is free (1). A ready key that nothing uses goes
       to 1 at once.

    A load that failed is completed like one that succeeded; where its contents are in doubt, `discard` it first.

    Keys are hashable values that do not change, in the order of the prompt where they form a prefix. Calls are
    for one thread. A call that is refused changes nothing. The cost of every call is proportional to the keys
    in it (`clear`: to the keys in the tier), not to the size of the tier; for `prepare_store` in the mean, since
    the index, a dict, is rebuilt now and then: with a million blocks, once in some hundred thousand keys, for
    about 70 ms. A block costs at most 200 bytes beyond its key.

    Args:
        num_blocks: host blocks of the pool, numbered from 0.
        eviction: which block goes first; a name in `EVICTION_POLICIES`. `lru`: the one that was used least recently.
            `s3fifo`: among those that were never used since they were stored, the oldest; a scan of prompts that
            never return does not flush what does.
        block_bytes: bytes of a host block, for statistics in bytes; None: they are not known here.
        events: whether to note what `take_events` returns.

    Raises:
        Refused: an argument is out of range or unknown.
    """

    def __init__(
        self, num_blocks: int, *, eviction: str = "lru", block_bytes: int | None = None, events: bool = False
    ) -> None:
        if type(num_blocks) is not int or not 1 <= num_blocks <= MAX_BLOCKS:
            raise Refused(f"num_blocks is {num_blocks!r}; an int in [1, {MAX_BLOCKS}] is needed")
        if eviction not in EVICTION_POLICIES:
            raise Refused(f"eviction is {eviction!r}; there is {', '.join(sorted(EVICTION_POLICIES))}")
        if block_bytes is not None and (type(block_bytes) is not int or block_bytes < 1):
            raise Refused(f"block_bytes is {block_bytes!r}; an int of at least 1 is needed, or None")
        self._num_blocks = num_blocks
        self._block_bytes = block_bytes
        self._events = EventLog(max_keys=2 * num_blocks) if events else None
        self._table = BlockTable(num_blocks)
        self._order = EVICTION_POLICIES[eviction](num_blocks)
        self._keys_looked_up = 0
        self._keys_found = 0
        self._keys_loaded = 0
        self._keys_stored = 0
        self._keys_failed = 0
        self._keys_evicted = 0
        self._keys_discarded = 0
        self._keys_without_room = 0

    @classmethod
    def of_bytes(
        cls, capacity_bytes: int, *, block_bytes: int, eviction: str = "lru", events: bool = False
    ) -> HostTier:
        """The tier of as many whole blocks of `block_bytes` as fit into `capacity_bytes`.

        Raises:
            Refused: not one block fits, or an argument is out of range or unknown.
        """
        if type(capacity_bytes) is not int or type(block_bytes) is not int or not 1 <= block_bytes <= capacity_bytes:
            raise Refused(
                f"capacity_bytes is {capacity_bytes!r} and block_bytes {block_bytes!r}; ints that leave room for one "
                "block are needed"
            )
        return cls(capacity_bytes // block_bytes, eviction=eviction, block_bytes=block_bytes, events=events)

    @property
    def num_blocks(self) -> int:
        """Host blocks, whatever they hold."""
        return self._num_blocks

    @property
    def free_blocks(self) -> int:
        """Blocks that hold nothing, so that a store takes them before it evicts."""
        return self._table.num_free

    @property
    def num_ready(self) -> int:
        """Keys that a lookup finds."""
        return self._table.num_in_state[READY]

    def lookup(self, keys: Sequence[Hashable], hashes: array[int] | None = None) -> int:
        """Return how many leading keys are ready to load: the longest prefix that is served. It is not a use: see
        `touch`.

        Args:
            keys: what is looked for.
            hashes: `hash` of each key, as an array of type `q`, where the keys are a chain: each stands for all before
                it. A chain that was stored at once is then found several times as fast.
        """
        if hashes is not None and self._table.holds_chain(keys, hashes):
            found = len(keys)
        else:
            found = sum(length for _, length in self._table.ready_runs(keys))
        self._keys_looked_up += len(keys)
        self._keys_found += found
        return found

    def prepare_load(self, keys: Sequence[Hashable]) -> IndexArray:
        """Pin the keys' blocks and return them: read-only int64 of shape (keys,), block i for `keys[i]`.

        The blocks keep their contents until `complete_load` has been called for them as often as this.

        Raises:
            Refused: a key is not ready, or is given twice. Nothing is pinned.
        """
        self._require_distinct("prepare_load", keys)
        table = self._table
        blocks = [block for first, length in table.ready_runs(keys) for block in range(first, first + length)]
        if len(blocks) < len(keys):
            raise Refused(
                f"prepare_load: key {keys[len(blocks)]!r} is not ready to load; ask lookup() again, in the same step "
                "as this call"
            )
        self._order.hold(table.pin(blocks))
        return _index_array(blocks)

    def complete_load(self, keys: Sequence[Hashable]) -> None:
        """Take off one pin per key, because a load that held them ended. A key without pins is then the newest.

        Call it once no device reads the blocks any more, also for loads that failed or were cancelled.

        Raises:
            Refused: no load holds a key, or a key is given twice. No pin is taken off.
        """
        self._require_distinct("complete_load", keys)
        table = self._table
        index, pins, states = table.index, table.pins, table.states
        blocks: list[int] = []
        for key in reversed(keys):  # the head last, as in touch()
            block = index.get(key)
            if block is None or not pins[block]:
                raise Refused(f"complete_load: no load holds key {key!r}; complete each prepare_load() once")
            blocks.append(block)
        last = table.unpin(blocks)
        self._order.release([block for block in last if states[block] == READY])
        for block in last:
            if states[block] == LEAVING_LOADS:
                table.free(block)
        self._keys_loaded += len(keys)

    def prepare_store(self, keys: Sequence[Hashable]) -> StoreGrant:
        """Grant blocks for the keys that are missing, evicting others where no block is free.

        Keys that are ready, being stored or leaving are left out. None of `keys` is evicted for another of them.
        When there is not room for all, because the rest of the tier is pinned, being stored or in `keys`, a
        leading part of the missing keys is granted, perhaps none: a prefix without its head is of no use.

        The granted keys are to be given to `complete_store` or `fail_store`, in any grouping and order.

        Raises:
            Refused: a key is given twice. Nothing is granted.
        """
        self._require_distinct("prepare_store", keys)
        table = self._table
        missing = [key for key in keys if key not in table.index]
        evicted: list[Hashable] = []
        if len(missing) > table.num_free:
            spared = {table.index[key] for key in keys if key in table.index}
            for block in self._order.evict(len(missing) - table.num_free, spared):
                evicted.append(table.keys[block])
                table.free(block)
        self._note(EventKind.REMOVED, evicted)
        granted = missing[: table.num_free]
        blocks = table.take(len(granted))
        for key, block in zip(granted, blocks, strict=True):
            table.assign(block, key)
        self._keys_evicted += len(evicted)
        self._keys_without_room += len(missing) - len(granted)
        return StoreGrant(tuple(granted), _index_array(blocks), tuple(evicted))

    def complete_store(self, keys: Sequence[Hashable]) -> None:
        """Make stored keys ready, and the most recently used. Those discarded meanwhile are freed instead.

        Call it once every device that writes the blocks has reported the end of its part.

        Raises:
            Refused: a key is not being stored, or is given twice. No key becomes ready.
        """
        table = self._table
        self._require_storing("complete_store", keys)
        if self._events is not None:
            self._events.add(EventKind.STORED, [key for key in keys if table.state_of(key) == STORING])
        for key in reversed(keys):  # the head last, as in touch()
            block = table.index[key]
            if table.states[block] == LEAVING_STORE:
                table.free(block)
            else:
                table.set_state(block, READY)
                self._order.insert(block, key)
                self._keys_stored += 1

    def fail_store(self, keys: Sequence[Hashable]) -> None:
        """Forget keys whose store failed or was never submitted, and free their blocks.

        Call it once no device writes the blocks any more.

        Raises:
            Refused: a key is not being stored, or is given twice. No key is forgotten.
        """
        self._require_storing("fail_store", keys)
        for key in reversed(keys):  # so that the next grant takes the head's block first
            self._table.free(self._table.index[key])
        self._keys_failed += len(keys)

    def touch(self, keys: Sequence[Hashable]) -> None:
        """Note a use of a prefix. Keys that are missing, being stored or pinned are passed over.

        The keys are touched from the last to the first, so that the head is the most recently used one and
        the tail goes first: a prefix that lost its tail is a shorter hit, one that lost its head is none. A
        prefix that was stored in several parts keeps that order only if it is touched as a whole afterwards.
        """
        states, pins = self._table.states, self._table.pins
        found = map(self._table.index.get, reversed(dict.fromkeys(keys)))
        self._order.touch(
            [block for block in found if block is not None and states[block] == READY and not pins[block]]
        )

    def discard(self, keys: Sequence[Hashable]) -> None:
        """Serve these keys no more; blocks in use are freed when their transfers end. Unknown keys are fine."""
        for key in keys:
            block = self._table.index.get(key)
            if block is not None:
                if self._table.states[block] == READY:
                    self._note(EventKind.REMOVED, (key,))
                self._discard_block(block)

    def clear(self) -> None:
        """Discard every key, as after a change of weights; blocks in use are freed when their transfers end."""
        self._note(EventKind.RESET, ())
        for block in list(self._table.index.values()):
            self._discard_block(block)

    def take_events(self) -> list[TierEvent]:
        """What became of keys since the last call, in order, for a router that wants to know who serves what.

        Applied one after the other to a set, these events leave the keys that `lookup` finds.

        Raises:
            Refused: the tier was made without `events=True`.
        """
        if self._events is None:
            raise Refused("take_events: no events are noted; make the tier with events=True")
        return self._events.take(self.ready_keys)

    def ready_keys(self) -> list[Hashable]:
        """Every key that a lookup finds, in no order; O(keys in the tier)."""
        states = self._table.states
        return [key for key, block in self._table.index.items() if states[block] == READY]

    def statistics(self) -> TierStatistics:
        """Return what the tier holds now, and what happened since it was made."""
        num_in_state = self._table.num_in_state
        return TierStatistics(
            num_blocks=self._num_blocks,
            block_bytes=self._block_bytes,
            free_blocks=num_in_state[FREE],
            ready_blocks=num_in_state[READY],
            storing_blocks=num_in_state[STORING],
            leaving_blocks=num_in_state[LEAVING_STORE] + num_in_state[LEAVING_LOADS],
            pinned_blocks=self._table.num_pinned,
            keys_looked_up=self._keys_looked_up,
            keys_found=self._keys_found,
            keys_loaded=self._keys_loaded,
            keys_stored=self._keys_stored,
            keys_failed=self._keys_failed,
            keys_evicted=self._keys_evicted,
            keys_discarded=self._keys_discarded,
            keys_without_room=self._keys_without_room,
        )

    def check_integrity(self) -> None:
        """Raise `InternalError` where an invariant is broken; O(num_blocks), for tests and debugging."""
        table = self._table
        table.check_integrity()
        candidates = list(self._order)
        expected = {b for b in range(self._num_blocks) if table.states[b] == READY and table.pins[b] == 0}
        if len(candidates) != len(self._order) or len(candidates) != len(expected) or set(candidates) != expected:
            raise InternalError(f"candidates for eviction are {candidates}, unpinned ready blocks {expected}")

    def _note(self, kind: EventKind, keys: Sequence[Hashable]) -> None:
        if self._events is not None:
            self._events.add(kind, keys)

    def _discard_block(self, block: int) -> None:
        table = self._table
        state = table.states[block]
        if state == STORING:
            table.set_state(block, LEAVING_STORE)
        elif state == READY and table.pins[block]:
            table.set_state(block, LEAVING_LOADS)
        elif state == READY:
            self._order.discard(block)
            table.free(block)
        else:
            return  # leaving already
        self._keys_discarded += 1

    def _require_storing(self, call: str, keys: Sequence[Hashable]) -> None:
        self._require_distinct(call, keys)
        for key in keys:
            if self._table.state_of(key) not in (STORING, LEAVING_STORE):
                raise Refused(f"{call}: key {key!r} is not being stored; end each granted key once")

    def _require_distinct(self, call: str, keys: Sequence[Hashable]) -> None:
        if len(set(keys)) == len(keys):
            return
        seen: set[Hashable] = set()
        for key in keys:
            if key in seen:
                raise Refused(f"{call}: key {key!r} is given twice; pass each key once")
            seen.add(key)


def _index_array(blocks: list[int]) -> IndexArray:
    import numpy as np

    array = np.array(blocks, dtype=np.int64)
    array.flags.writeable = False
    return array
