"""Random histories of a host tier against a model of lists that are searched from end to end."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kvmove import HostTier, Refused

KEYS = st.lists(st.integers(0, 11), unique=True, max_size=6)


@dataclass
class Entry:
    """A key of the model."""

    block: int
    storing: bool = True
    forgotten: bool = False
    pins: int = 0

    @property
    def ready(self) -> bool:
        return not self.storing and not self.forgotten


class TierHistory(RuleBasedStateMachine):
    """`order` has every ready key, pinned or not, the least recently used first."""

    eviction = "lru"

    @initialize(num_blocks=st.integers(1, 8))
    def start(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.tier = HostTier(num_blocks, eviction=self.eviction)
        self.entries: dict[int, Entry] = {}
        self.order: list[int] = []

    def make_newest(self, keys: list[int]) -> None:
        for key in keys[::-1]:
            if key in self.order:
                self.order.remove(key)
            self.order.append(key)

    def forget(self, key: int) -> None:
        entry = self.entries[key]
        if key in self.order:
            self.order.remove(key)
        entry.forgotten = True
        if not entry.storing and not entry.pins:
            del self.entries[key]

    @rule(keys=st.lists(st.integers(0, 11), max_size=6))
    def lookup(self, keys: list[int]) -> None:
        ready = [key in self.entries and self.entries[key].ready for key in keys]
        assert self.tier.lookup(keys) == (*ready, False).index(False)

    @rule(keys=KEYS)
    def prepare_store(self, keys: list[int]) -> None:
        missing = [key for key in keys if key not in self.entries]
        free = self.num_blocks - len(self.entries)
        evictable = [key for key in self.order if not self.entries[key].pins and key not in keys]
        evicted = evictable[: max(0, len(missing) - free)]
        granted = missing[: free + len(evicted)]
        for key in evicted:
            self.forget(key)
        grant = self.tier.prepare_store(keys)
        assert grant.evicted_keys == tuple(evicted)
        assert grant.keys == tuple(granted)
        used = {entry.block for entry in self.entries.values()}
        blocks = grant.blocks.tolist()
        assert len(set(blocks)) == len(blocks) == len(granted)
        assert used.isdisjoint(blocks)
        assert all(0 <= block < self.num_blocks for block in blocks)
        self.entries.update({key: Entry(block) for key, block in zip(granted, blocks, strict=True)})

    def end_store(self, verb: str, keys: list[int]) -> None:
        if not all(key in self.entries and self.entries[key].storing for key in keys):
            with pytest.raises(Refused):
                getattr(self.tier, verb)(keys)
            return
        getattr(self.tier, verb)(keys)
        for key in keys:
            self.entries[key].storing = False
            if self.entries[key].forgotten or verb == "fail_store":
                del self.entries[key]
        if verb == "complete_store":
            self.make_newest([key for key in keys if key in self.entries])

    # Keys drawn blindly are rarely all being stored, so most histories draw among those that are.
    @rule(data=st.data(), verb=st.sampled_from(["complete_store", "complete_store", "fail_store"]))
    def end_a_store(self, data: st.DataObject, verb: str) -> None:
        storing = [key for key, entry in self.entries.items() if entry.storing]
        if storing:
            self.end_store(verb, data.draw(st.lists(st.sampled_from(storing), unique=True)))

    @rule(keys=KEYS, verb=st.sampled_from(["complete_store", "fail_store"]))
    def end_any_store(self, keys: list[int], verb: str) -> None:
        self.end_store(verb, keys)

    def load(self, keys: list[int]) -> None:
        if not all(key in self.entries and self.entries[key].ready for key in keys):
            with pytest.raises(Refused):
                self.tier.prepare_load(keys)
            return
        assert self.tier.prepare_load(keys).tolist() == [self.entries[key].block for key in keys]
        for key in keys:
            self.entries[key].pins += 1

    @rule(data=st.data())
    def prepare_a_load(self, data: st.DataObject) -> None:
        if self.order:
            self.load(data.draw(st.lists(st.sampled_from(self.order), unique=True)))

    @rule(keys=KEYS)
    def prepare_any_load(self, keys: list[int]) -> None:
        self.load(keys)

    def end_load(self, keys: list[int]) -> None:
        if not all(key in self.entries and self.entries[key].pins for key in keys):
            with pytest.raises(Refused):
                self.tier.complete_load(keys)
            return
        self.tier.complete_load(keys)
        for key in keys[::-1]:
            entry = self.entries[key]
            entry.pins -= 1
            if not entry.pins and entry.forgotten:
                del self.entries[key]
            elif not entry.pins:
                self.make_newest([key])

    @rule(data=st.data())
    def complete_a_load(self, data: st.DataObject) -> None:
        pinned = [key for key, entry in self.entries.items() if entry.pins]
        if pinned:
            self.end_load(data.draw(st.lists(st.sampled_from(pinned), unique=True)))

    @rule(keys=KEYS)
    def complete_any_load(self, keys: list[int]) -> None:
        self.end_load(keys)

    @rule(keys=st.lists(st.integers(0, 11), max_size=6))
    def touch(self, keys: list[int]) -> None:
        self.tier.touch(keys)
        self.make_newest([key for key in keys if key in self.order and not self.entries[key].pins])

    @rule(keys=st.lists(st.integers(0, 11), max_size=3))
    def discard(self, keys: list[int]) -> None:
        self.tier.discard(keys)
        for key in keys:
            if key in self.entries:
                self.forget(key)

    @rule()
    def clear(self) -> None:
        self.tier.clear()
        for key in list(self.entries):
            self.forget(key)

    @invariant()
    def the_tier_is_the_models(self) -> None:
        self.tier.check_integrity()
        entries = self.entries.values()
        assert self.tier.free_blocks == self.num_blocks - len(entries)
        assert self.tier.num_ready == len(self.order) == sum(entry.ready for entry in entries)
        statistics = self.tier.statistics()
        assert statistics.pinned_blocks == sum(entry.pins > 0 for entry in entries)
        assert statistics.leaving_blocks == sum(entry.forgotten for entry in entries)
        blocks = [self.entries[key].block for key in self.order if not self.entries[key].pins]
        assert list(self.tier._order) == blocks

    def teardown(self) -> None:
        """End every transfer and clear: no block is lost."""
        if not hasattr(self, "tier"):
            return
        self.tier.clear()
        for key, entry in self.entries.items():
            if entry.storing:
                self.tier.complete_store([key])
            for _ in range(entry.pins):
                self.tier.complete_load([key])
        assert self.tier.free_blocks == self.num_blocks
        self.tier.check_integrity()


TestTierHistory = TierHistory.TestCase
TestTierHistory.settings = settings(max_examples=200, stateful_step_count=50)


def trace_of(seed: int) -> list[Any]:
    """Run a long random history and return all that the tier answered."""
    rng = random.Random(seed)
    tier = HostTier(40)
    storing: list[tuple[Any, ...]] = []
    trace: list[Any] = []
    for _ in range(400):
        start = rng.randrange(100)
        keys = [b"%d" % key for key in range(start, start + rng.randrange(1, 12))]
        found = tier.lookup(keys)
        loaded = tier.prepare_load(keys[:found])
        grant = tier.prepare_store(keys)
        storing.append(grant.keys)
        trace.append((found, loaded.tolist(), grant.keys, grant.blocks.tolist(), grant.evicted_keys))
        if rng.random() < 0.8:
            tier.complete_store(storing.pop(rng.randrange(len(storing))))
        tier.complete_load(keys[:found])
        tier.touch(keys)
    return [*trace, tier.statistics()]


def test_the_same_seed_gives_the_same_tier_trace() -> None:
    """Which blocks are granted and which keys go depends on the calls alone, not on hashes of bytes."""
    assert trace_of(1) == trace_of(1)
    assert trace_of(1) != trace_of(2)
