"""Which slot of the GPU cache holds which block: allocation, sharing and reuse. It moves no bytes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from kvmove.errors import InternalError


class GpuCache:
    """The slots of a simulated engine's cache.

    The life of a slot:

    1. Free: holds nothing of use.
    2. Held: `allocate` gave it to one request, or `share` to one more. `publish` says which block it holds, and
       from then on `match` finds it.
    3. Cached: nobody holds it any more, but it keeps its block. `share` leads back to 2; `allocate` takes the
       least recently released one when no slot is free, and then its block is forgotten.

    A slot that nobody holds and that was never published is free again at once.
    """

    def __init__(self, num_slots: int) -> None:
        self._num_slots = num_slots
        self._free = list(range(num_slots - 1, -1, -1))
        self._cached: OrderedDict[int, None] = OrderedDict()  # least recently released first
        self._holders = [0] * num_slots
        self._key_of: list[int | None] = [None] * num_slots
        self._slot_of: dict[int, int] = {}
        self.evictions = 0

    @property
    def available(self) -> int:
        """Slots that `allocate` can give out."""
        return len(self._free) + len(self._cached)

    @property
    def held(self) -> int:
        """Slots that some request holds."""
        return self._num_slots - self.available

    def match(self, keys: Iterable[int]) -> list[int]:
        """The slots of the longest leading run of keys that are here. Share them before `allocate` takes them."""
        slots = []
        for key in keys:
            slot = self._slot_of.get(key)
            if slot is None:
                break
            slots.append(slot)
        return slots

    def share(self, slots: Iterable[int]) -> None:
        """Hold matched slots once more."""
        for slot in slots:
            if self._holders[slot] == 0:
                del self._cached[slot]
            self._holders[slot] += 1

    def allocate(self, count: int) -> list[int] | None:
        """`count` slots for one request to hold, or None, with nothing changed, when there are not as many."""
        if count > self.available:
            return None
        while len(self._free) < count:
            slot, _ = self._cached.popitem(last=False)
            self._forget(slot)
            self._free.append(slot)
            self.evictions += 1
        slots = [self._free.pop() for _ in range(count)]
        for slot in slots:
            self._holders[slot] = 1
        return slots

    def publish(self, slot: int, key: int) -> None:
        """Let others find the block that a held slot now holds; where another slot has it already, nothing changes."""
        if self._holders[slot] == 0 or self._key_of[slot] is not None:
            raise InternalError(
                f"slot {slot} cannot be published: {self._holders[slot]} holders, block {self._key_of[slot]}"
            )
        if key not in self._slot_of:
            self._slot_of[key] = slot
            self._key_of[slot] = key

    def release(self, slots: Sequence[int]) -> None:
        """Hold these slots once less. The last ones become the first to be taken: a prefix loses its tail first."""
        for slot in reversed(slots):
            if self._holders[slot] == 0:
                raise InternalError(f"slot {slot} is released, but nobody holds it")
            self._holders[slot] -= 1
            if self._holders[slot] == 0:
                if self._key_of[slot] is None:
                    self._free.append(slot)
                else:
                    self._cached[slot] = None

    def check_integrity(self) -> None:
        """Raise `InternalError` where an invariant is broken; O(slots)."""
        unheld = [slot for slot in range(self._num_slots) if self._holders[slot] == 0]
        if sorted([*self._free, *self._cached]) != unheld:
            raise InternalError(
                f"nobody holds slots {unheld}, but {self._free} are free and {list(self._cached)} cached"
            )
        if any(self._key_of[slot] is not None for slot in self._free):
            raise InternalError("a free slot holds a block")
        if any(self._key_of[slot] is None for slot in self._cached):
            raise InternalError("a cached slot holds no block")
        published = {key: slot for slot, key in enumerate(self._key_of) if key is not None}
        if published != self._slot_of:
            raise InternalError("the index from blocks to slots does not match the slots")

    def _forget(self, slot: int) -> None:
        key = self._key_of[slot]
        if key is None:
            raise InternalError(f"cached slot {slot} holds no block")
        del self._slot_of[key]
        self._key_of[slot] = None
