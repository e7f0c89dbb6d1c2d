"""The simulated GPU cache: what it promises by name, and its random histories against a dumb model."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvmove.errors import InternalError
from kvmove.replay.gpu_cache import GpuCache


def _cached(num_slots: int, keys: list[int]) -> GpuCache:
    """A cache that holds these blocks for nobody, the first as the latest to be evicted."""
    cache = GpuCache(num_slots)
    slots = cache.allocate(len(keys))
    assert slots is not None
    for slot, key in zip(slots, keys, strict=True):
        cache.publish(slot, key)
    cache.release(slots)
    return cache


def test_a_held_slot_is_never_handed_out():
    """Allocating everything else leaves a shared slot alone."""
    cache = _cached(4, [1, 2])
    shared = cache.match([1])
    cache.share(shared)
    others = cache.allocate(3)
    assert others is not None
    assert not set(shared) & set(others)
    assert cache.allocate(1) is None


def test_an_allocation_that_does_not_fit_changes_nothing():
    """No block is evicted for an allocation that is refused."""
    cache = _cached(3, [1, 2])
    assert cache.allocate(4) is None
    assert len(cache.match([1, 2])) == 2
    assert cache.evictions == 0
    assert cache.available == 3


def test_a_prefix_loses_its_tail_first():
    """Of blocks that were released together, the last of the prompt is evicted first."""
    cache = _cached(3, [1, 2, 3])
    cache.allocate(1)
    assert len(cache.match([1, 2, 3])) == 2
    cache.allocate(1)
    assert len(cache.match([1, 2, 3])) == 1


def test_a_match_ends_at_the_first_missing_block():
    """Blocks behind a gap are no prefix."""
    cache = _cached(3, [1, 3])
    assert len(cache.match([1, 2, 3])) == 1
    assert cache.match([2, 3]) == []


def test_the_second_slot_of_a_block_is_not_found():
    """Two requests that computed the same block each keep a slot; the first one's is reused, the other's is free."""
    cache = GpuCache(3)
    first, second = cache.allocate(1), cache.allocate(1)
    assert first is not None
    assert second is not None
    cache.publish(first[0], 7)
    cache.publish(second[0], 7)
    assert cache.match([7]) == first
    cache.release(second)
    cache.release(first)
    assert cache.match([7]) == first
    cache.check_integrity()


def test_releasing_or_publishing_a_free_slot_is_a_bug():
    """What only a broken engine does is reported as one."""
    cache = GpuCache(2)
    with pytest.raises(InternalError, match="nobody holds it"):
        cache.release([0])
    with pytest.raises(InternalError, match="cannot be published"):
        cache.publish(0, 1)


KEYS = st.integers(0, 7)


class CacheHistories(RuleBasedStateMachine):
    """Holders, blocks and the order of eviction in lists that are searched from end to end."""

    @initialize(num_slots=st.integers(1, 6))
    def start(self, num_slots: int) -> None:
        self.cache = GpuCache(num_slots)
        self.num_slots = num_slots
        self.held: list[list[int]] = []  # one list a holder
        self.key_of: dict[int, int] = {}
        self.evictable: list[int] = []  # the next to be evicted first

    @rule(count=st.integers(0, 7))
    def allocate(self, count: int) -> None:
        holding = {slot for slots in self.held for slot in slots}
        slots = self.cache.allocate(count)
        if count > self.num_slots - len(holding):
            assert slots is None
            return
        assert slots is not None
        assert len(set(slots)) == count
        assert not holding & set(slots)
        empty = self.num_slots - len(holding) - len(self.evictable)
        evicted, self.evictable = self.evictable[: max(0, count - empty)], self.evictable[max(0, count - empty) :]
        assert set(evicted) <= set(slots)
        for slot in evicted:
            del self.key_of[slot]
        assert not set(slots) & set(self.key_of)
        self.held.append(slots)

    @rule(keys=st.lists(KEYS, unique=True, max_size=4))
    def share_a_match(self, keys: list[int]) -> None:
        slots = self.cache.match(keys)
        slot_of = {key: slot for slot, key in self.key_of.items()}
        expected = []
        for key in keys:
            if key not in slot_of:
                break
            expected.append(slot_of[key])
        assert slots == expected
        self.cache.share(slots)
        self.evictable = [slot for slot in self.evictable if slot not in slots]
        self.held.append(slots)

    @precondition(lambda self: any(self.held))
    @rule(data=st.data(), key=KEYS)
    def publish(self, data: st.DataObject, key: int) -> None:
        unpublished = sorted({s for slots in self.held for s in slots if s not in self.key_of})
        if unpublished:
            slot = data.draw(st.sampled_from(unpublished))
            self.cache.publish(slot, key)
            if key not in self.key_of.values():
                self.key_of[slot] = key

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        slots = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        self.cache.release(slots)
        still_held = {slot for others in self.held for slot in others}
        self.evictable += [s for s in reversed(slots) if s in self.key_of and s not in still_held]

    @invariant()
    def agrees(self) -> None:
        holding = {slot for slots in self.held for slot in slots}
        assert self.cache.available == self.num_slots - len(holding)
        assert self.cache.held == len(holding)
        self.cache.check_integrity()


CacheHistories.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestCacheHistories = CacheHistories.TestCase
