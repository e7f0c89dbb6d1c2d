"""An engine's GPU block cache in plain Python: who holds which slot, and which slot still holds which block."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from kvmove.errors import InternalError


class SlotCache:
    """The slots of one group: taken by requests, shared between those with the same prefix, kept when let go.

    A slot without a holder is free, in the order in which it was let go; as long as nobody takes it, it still serves
    the block that it holds.
    """

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self.holders: dict[int, int] = {}  # slot -> how many hold it
        self.slot_of: dict[int, int] = {}  # block hash -> slot
        self._hash_of: dict[int, int] = {}
        self.free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_slots))

    def copy(self) -> SlotCache:
        """The same state, to go back to."""
        other = SlotCache(0)
        other.num_slots = self.num_slots
        other.holders, other.slot_of = dict(self.holders), dict(self.slot_of)
        other._hash_of, other.free = dict(self._hash_of), self.free.copy()
        return other

    def take(self) -> int:
        """A free slot, which serves nothing any more."""
        slot, _ = self.free.popitem(last=False)
        self.forget(slot)
        self.holders[slot] = 1
        return slot

    def share(self, block_hash: int) -> int:
        """One more holder of the slot with this block."""
        slot = self.slot_of[block_hash]
        self.holders[slot] = self.holders.get(slot, 0) + 1
        self.free.pop(slot, None)
        return slot

    def let_go(self, slots: Iterable[int]) -> None:
        """One holder less of each slot; negative ones are none. The last ones of a prefix are reused first."""
        for slot in reversed([slot for slot in slots if slot >= 0]):
            self.holders[slot] -= 1
            if not self.holders[slot]:
                del self.holders[slot]
                self.free[slot] = None

    def keep(self, slot: int, block_hash: int) -> None:
        """Let the slot serve this block, unless another one does."""
        if block_hash not in self.slot_of and slot not in self._hash_of:
            self.slot_of[block_hash] = slot
            self._hash_of[slot] = block_hash

    def forget(self, slot: int) -> None:
        """Serve nothing from this slot."""
        block_hash = self._hash_of.pop(slot, None)
        if block_hash is not None:
            del self.slot_of[block_hash]

    def forget_all(self) -> None:
        """Serve nothing, as after a change of weights."""
        self.slot_of.clear()
        self._hash_of.clear()

    def check_integrity(self, held: Iterable[int]) -> None:
        """Raise `InternalError` where a slot is both free and held, or held by others than the tables `held` say."""
        counts: dict[int, int] = {}
        for slot in held:
            if slot >= 0:
                counts[slot] = counts.get(slot, 0) + 1
        if counts != self.holders:
            raise InternalError(f"slots are held {self.holders}, tables hold {counts}")
        if self.free.keys() & counts.keys() or len(self.free) + len(counts) != self.num_slots:
            raise InternalError(f"slots free {list(self.free)}, held {counts}, of {self.num_slots}")
