"""What a tier tells a router, its size in bytes, and how it finds prefixes that lie scattered."""

from __future__ import annotations

import random
from collections.abc import Hashable
from typing import Any

import pytest

from kvmove import HostTier, Refused
from kvmove.tier import EventKind, TierEvent


class Router:
    """What a router believes that a tier serves."""

    def __init__(self) -> None:
        self.keys: set[Hashable] = set()
        self.next_number = 0

    def apply(self, events: list[TierEvent]) -> None:
        for event in events:
            assert event.number == self.next_number
            self.next_number += 1
            if event.kind is EventKind.RESET:
                self.keys = set(event.keys)
            elif event.kind is EventKind.STORED:
                assert self.keys.isdisjoint(event.keys)
                self.keys |= set(event.keys)
            else:
                assert self.keys.issuperset(event.keys)
                self.keys -= set(event.keys)


@pytest.mark.parametrize("eviction", ["lru", "s3fifo"])
@pytest.mark.parametrize("every", [1, 7, 60])  # the last is so rare that events are dropped meanwhile
def test_a_router_that_applies_the_events_knows_what_is_served(eviction: str, every: int) -> None:
    """After stores, failures, evictions, loads, discards and clears; also where it did not listen for long."""
    rng = random.Random(every)
    tier = HostTier(12, eviction=eviction, events=True)
    router = Router()
    kinds: set[EventKind] = set()
    storing: list[Hashable] = []
    loading: list[Hashable] = []
    for turn in range(1500):
        keys = rng.sample(range(20), rng.randrange(1, 6))
        verb = rng.choice(["store", "store", "end", "end", "fail", "load", "unload", "discard", "other"])
        if verb == "store":
            storing += tier.prepare_store(keys).keys
        elif verb in ("end", "fail"):
            ended = [storing.pop() for _ in range(min(3, len(storing)))]
            (tier.complete_store if verb == "end" else tier.fail_store)(ended)
        elif verb == "load" and not loading:
            loading = list(keys[: tier.lookup(keys)])
            tier.prepare_load(loading)
        elif verb == "unload":
            tier.complete_load(loading)
            loading = []
        elif verb == "discard":
            tier.discard(keys[:2])
        elif turn % 40 == 0:
            tier.clear()
        else:
            tier.touch(keys)
        if turn % every == 0:
            events = tier.take_events()
            kinds |= {event.kind for event in events}
            router.apply(events)
            assert router.keys == set(tier.ready_keys()) == {k for k in range(20) if tier.lookup([k])}
        tier.check_integrity()
    assert kinds == set(EventKind)


def test_events_say_what_happened_in_order() -> None:
    """A failed store and a key that was discarded while it was stored were never served, so nothing is said of them."""
    tier = HostTier(2, events=True)
    tier.prepare_store(["a", "b"])
    assert tier.take_events() == []
    tier.complete_store(["a"])
    tier.discard(["b"])
    tier.complete_store(["b"])
    tier.prepare_store(["c", "d"])
    tier.fail_store(["c", "d"])
    assert tier.take_events() == [
        TierEvent(0, EventKind.STORED, ("a",)),
        TierEvent(1, EventKind.REMOVED, ("a",)),
    ]
    tier.clear()
    assert tier.take_events() == [TierEvent(2, EventKind.RESET, ())]
    assert tier.take_events() == []


def test_events_are_refused_where_none_are_noted() -> None:
    """The message says how to have them."""
    with pytest.raises(Refused, match="events=True"):
        HostTier(2).take_events()


def test_a_tier_can_be_given_in_bytes() -> None:
    """Whole blocks count; the rest of the bytes is of no use."""
    tier = HostTier.of_bytes(1000, block_bytes=300, eviction="s3fifo")
    tier.prepare_store(["a"])
    now = tier.statistics()
    assert (tier.num_blocks, now.block_bytes, now.capacity_bytes, now.used_bytes) == (3, 300, 900, 300)
    unknown = HostTier(3).statistics()
    assert (unknown.block_bytes, unknown.capacity_bytes, unknown.used_bytes) == (None, None, None)


@pytest.mark.parametrize(("capacity", "block"), [(299, 300), (0, 1), (300, 0), (300.0, 1), (300, True)])
def test_a_capacity_without_room_for_a_block_is_refused(capacity: Any, block: Any) -> None:
    """The message has both numbers."""
    with pytest.raises(Refused, match=f"capacity_bytes is {capacity} and block_bytes {block}"):
        HostTier.of_bytes(capacity, block_bytes=block)
    with pytest.raises(Refused, match="block_bytes is 0"):
        HostTier(1, block_bytes=0)


@pytest.mark.parametrize("shuffled", [False, True])
def test_prefixes_are_found_however_they_lie(shuffled: bool) -> None:
    """Neighbouring blocks are compared many at a time; holes, keys in flight and other prefixes end a run."""
    rng = random.Random(3)
    tier = HostTier(600)
    prompts = [[b"%d.%d" % (p, i) for i in range(150)] for p in range(3)]
    order = [key for keys in prompts for key in keys]
    if shuffled:
        rng.shuffle(order)
    block_of: dict[Hashable, int] = {}
    while order:
        part, order = order[: rng.randrange(1, 50)], order[rng.randrange(1, 50) :]
        grant = tier.prepare_store(part)
        block_of.update(zip(grant.keys, grant.blocks.tolist(), strict=True))
        tier.complete_store(grant.keys)
    for keys in prompts:
        tier.prepare_store([key for key in keys if key not in block_of])  # in flight: not found
    for _ in range(300):
        keys = rng.choice(prompts)
        first = rng.randrange(len(keys))
        wanted = keys[first : first + rng.randrange(1, 150)] + rng.choice([[], ["missing"], prompts[0][:3]])
        found = tier.lookup(tuple(wanted))
        expected = next((i for i, key in enumerate(wanted) if key not in block_of), len(wanted))
        assert found == expected
        loaded = list(dict.fromkeys(wanted[:found]))
        assert tier.prepare_load(loaded).tolist() == [block_of[key] for key in loaded]
        tier.complete_load(loaded)
    tier.check_integrity()
