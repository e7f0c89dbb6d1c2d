"""What the host tier promises, call by call."""

from __future__ import annotations

import tracemalloc
from array import array
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np
import pytest

from kvmove import HostTier, InternalError, Refused


def fill(tier: HostTier, keys: Sequence[Hashable]) -> list[int]:
    """Store keys to the end and return their blocks."""
    grant = tier.prepare_store(keys)
    assert list(grant.keys) == list(keys)
    tier.complete_store(keys)
    return [int(block) for block in grant.blocks]


def test_a_key_is_served_once_its_store_has_completed() -> None:
    """Not before: its block may hold the bytes of another key still."""
    tier = HostTier(4)
    grant = tier.prepare_store([b"a", b"b"])
    assert grant.keys == (b"a", b"b")
    assert tier.lookup([b"a", b"b"]) == 0
    with pytest.raises(Refused, match="key b'a' is not ready"):
        tier.prepare_load([b"a"])
    tier.complete_store([b"b"])
    assert tier.lookup([b"a", b"b"]) == 0
    tier.complete_store([b"a"])
    assert tier.lookup([b"a", b"b", b"c"]) == 2
    assert tier.prepare_load([b"b", b"a"]).tolist() == grant.blocks.tolist()[::-1]
    tier.check_integrity()


def test_lookup_counts_leading_keys_only() -> None:
    """A key behind a gap is of no use to a prefix."""
    tier = HostTier(4)
    fill(tier, ["a", "c"])
    assert tier.lookup(["a", "b", "c"]) == 1
    assert tier.lookup(["b", "c"]) == 0
    assert tier.lookup([]) == 0


def test_blocks_come_as_read_only_int64_arrays() -> None:
    """A caller cannot change what it was granted, and an empty grant is an array too."""
    tier = HostTier(2)
    grant = tier.prepare_store([1])
    tier.complete_store([1])
    for blocks in (grant.blocks, tier.prepare_load([1]), tier.prepare_load([]), tier.prepare_store([]).blocks):
        assert blocks.dtype == np.int64
        assert blocks.ndim == 1
        assert not blocks.flags.writeable


def test_a_prefix_gets_neighbouring_blocks() -> None:
    """Ascending blocks, also after evictions, let copies of adjacent host blocks be merged."""
    tier = HostTier(6)
    assert fill(tier, list(range(6))) == [0, 1, 2, 3, 4, 5]
    assert fill(tier, [10, 11, 12]) == [3, 4, 5]
    tier.clear()
    assert fill(tier, [20, 21, 22, 23, 24, 25]) == [0, 1, 2, 3, 4, 5]


def test_keys_that_are_there_or_on_the_way_are_left_out_of_a_store() -> None:
    """Storing twice would give one key two blocks."""
    tier = HostTier(8)
    fill(tier, ["ready"])
    tier.prepare_store(["storing"])
    grant = tier.prepare_store(["ready", "storing", "new"])
    assert grant.keys == ("new",)
    assert grant.evicted_keys == ()


def test_the_tail_of_the_least_recently_used_prefix_goes_first() -> None:
    """A shorter prefix is a shorter hit; a prefix without its head is none."""
    tier = HostTier(6)
    fill(tier, ["a0", "a1", "a2"])
    fill(tier, ["b0", "b1", "b2"])
    assert tier.prepare_store(["c0"]).evicted_keys == ("a2",)
    assert tier.lookup(["a0", "a1", "a2"]) == 2
    assert tier.prepare_store(["c1", "c2", "c3"]).evicted_keys == ("a1", "a0", "b2")


def test_a_touched_prefix_outlives_an_untouched_one() -> None:
    """Touching makes a prefix the most recent, its head more so than its tail; a repeated key counts once."""
    tier = HostTier(4)
    fill(tier, ["a0", "a1"])
    fill(tier, ["b0", "b1"])
    tier.touch(["a0", "a1", "a0", "missing"])
    assert tier.prepare_store(["c0", "c1", "c2"]).evicted_keys == ("b1", "b0", "a1")


def test_touching_the_whole_restores_the_order_of_a_prefix_stored_in_parts() -> None:
    """Otherwise the head, stored first, is the oldest."""
    for touched, first_to_go in ((False, "a0"), (True, "a1")):
        tier = HostTier(2)
        fill(tier, ["a0"])
        fill(tier, ["a1"])
        if touched:
            tier.touch(["a0", "a1"])
        assert tier.prepare_store(["b0"]).evicted_keys == (first_to_go,)


def test_a_load_is_a_use() -> None:
    """What was loaded last goes last."""
    tier = HostTier(2)
    fill(tier, ["a"])
    fill(tier, ["b"])
    tier.prepare_load(["a"])
    tier.complete_load(["a"])
    assert tier.prepare_store(["c"]).evicted_keys == ("b",)


def test_a_pinned_block_is_not_evicted_until_its_last_load_ends() -> None:
    """Two loads of one key count twice."""
    tier = HostTier(1)
    fill(tier, ["a"])
    tier.prepare_load(["a"])
    tier.prepare_load(["a"])
    for _ in range(2):
        assert tier.prepare_store(["b"]).keys == ()
        tier.complete_load(["a"])
    assert tier.prepare_store(["b"]).evicted_keys == ("a",)


def test_a_store_never_evicts_keys_of_its_own_call() -> None:
    """The head of a prefix is not given up for its tail, even when it is the oldest of all."""
    tier = HostTier(3)
    fill(tier, ["a0"])
    fill(tier, ["b0", "b1"])
    grant = tier.prepare_store(["a0", "a1", "a2", "a3"])
    assert grant.evicted_keys == ("b1", "b0")
    assert grant.keys == ("a1", "a2")
    assert tier.lookup(["a0"]) == 1


def test_a_leading_part_is_granted_when_there_is_not_room_for_all() -> None:
    """Blocks that are pinned or being stored make no room; nothing is raised, and the shortage is counted."""
    tier = HostTier(4)
    fill(tier, ["pinned"])
    tier.prepare_load(["pinned"])
    tier.prepare_store(["storing"])
    grant = tier.prepare_store(["a", "b", "c"])
    assert grant.keys == ("a", "b")
    assert tier.prepare_store(["d"]).keys == ()
    assert tier.statistics().keys_without_room == 2
    tier.check_integrity()


def test_a_failed_store_frees_its_block() -> None:
    """The key can be stored again."""
    tier = HostTier(2)
    tier.prepare_store(["a", "b"])
    tier.fail_store(["b", "a"])
    assert tier.free_blocks == 2
    assert tier.lookup(["a"]) == 0
    fill(tier, ["a", "b"])


def test_a_discarded_key_is_gone_at_once() -> None:
    """Its block is free; unknown and repeated keys do not matter."""
    tier = HostTier(2)
    fill(tier, ["a", "b"])
    tier.discard(["a", "a", "unknown"])
    assert (tier.lookup(["a"]), tier.lookup(["b"])) == (0, 1)
    assert (tier.free_blocks, tier.num_ready) == (1, 1)
    assert tier.statistics().keys_discarded == 1


@pytest.mark.parametrize("forget", [lambda t: t.discard(["a"]), lambda t: t.clear()], ids=["discard", "clear"])
def test_a_pinned_key_that_is_forgotten_leaves_when_its_last_load_ends(forget: Callable[[HostTier], None]) -> None:
    """It is not served meanwhile, and its block is not given away under the load."""
    tier = HostTier(1)
    fill(tier, ["a"])
    tier.prepare_load(["a"])
    tier.prepare_load(["a"])
    forget(tier)
    forget(tier)
    assert tier.lookup(["a"]) == 0
    with pytest.raises(Refused, match="not ready"):
        tier.prepare_load(["a"])
    for free in (0, 1):
        assert tier.prepare_store(["a", "b"]).keys == ()
        tier.complete_load(["a"])
        assert tier.free_blocks == free
        tier.check_integrity()
    assert tier.statistics().keys_discarded == 1
    fill(tier, ["a"])


@pytest.mark.parametrize("end", ["complete_store", "fail_store"])
def test_a_key_forgotten_while_it_is_stored_leaves_when_the_store_ends(end: str) -> None:
    """However the store ends, the key is not served."""
    tier = HostTier(1)
    tier.prepare_store(["a"])
    tier.clear()
    assert tier.prepare_store(["a"]).keys == ()
    assert tier.statistics().leaving_blocks == 1
    getattr(tier, end)(["a"])
    assert (tier.lookup(["a"]), tier.free_blocks) == (0, 1)
    with pytest.raises(Refused, match="not being stored"):
        tier.complete_store(["a"])
    fill(tier, ["a"])


def test_refused_calls_name_the_key_and_change_nothing() -> None:
    """A good key before the bad one is not pinned, completed or freed."""
    tier = HostTier(4)
    fill(tier, ["ready"])
    tier.prepare_store(["storing"])
    before = tier.statistics()
    calls: list[tuple[Callable[[], Any], str]] = [
        (lambda: tier.prepare_load(["ready", "missing"]), "prepare_load: key 'missing' is not ready"),
        (lambda: tier.prepare_load(["ready", "storing"]), "prepare_load: key 'storing' is not ready"),
        (lambda: tier.complete_load(["ready"]), "complete_load: no load holds key 'ready'"),
        (lambda: tier.complete_load(["missing"]), "complete_load: no load holds key 'missing'"),
        (lambda: tier.complete_store(["storing", "ready"]), "complete_store: key 'ready' is not being stored"),
        (lambda: tier.fail_store(["storing", "missing"]), "fail_store: key 'missing' is not being stored"),
        (lambda: tier.prepare_load(["ready", "ready"]), "prepare_load: key 'ready' is given twice"),
        (lambda: tier.complete_load(["ready", "ready"]), "complete_load: key 'ready' is given twice"),
        (lambda: tier.prepare_store(["x", "y", "x"]), "prepare_store: key 'x' is given twice"),
        (lambda: tier.complete_store(["storing", "storing"]), "complete_store: key 'storing' is given twice"),
        (lambda: tier.fail_store(["storing", "storing"]), "fail_store: key 'storing' is given twice"),
    ]
    for call, message in calls:
        with pytest.raises(Refused, match=message):
            call()
        tier.check_integrity()
        assert tier.statistics() == before


@pytest.mark.parametrize("num_blocks", [0, -1, 1.0, None, True, 1 << 40])
def test_a_size_out_of_range_is_refused(num_blocks: Any) -> None:
    """A tier has at least one block, and a number of them that its arrays can index."""
    with pytest.raises(Refused, match="num_blocks"):
        HostTier(num_blocks)


def test_an_unknown_eviction_policy_is_refused_with_the_known_ones() -> None:
    """The message says what there is."""
    with pytest.raises(Refused, match="'mru'; there is lru, s3fifo"):
        HostTier(1, eviction="mru")


def test_statistics_count_blocks_and_keys() -> None:
    """The states add up to the tier, and a snapshot does not change."""
    tier = HostTier(6)
    fill(tier, ["a", "b", "c"])
    tier.lookup(["a", "b", "x"])
    tier.prepare_load(["a", "b"])
    tier.discard(["a"])
    tier.prepare_store(["d", "e"])
    tier.fail_store(["e"])
    now = tier.statistics()
    assert (now.free_blocks, now.ready_blocks, now.storing_blocks, now.leaving_blocks) == (2, 2, 1, 1)
    assert now.pinned_blocks == 2
    assert (now.keys_looked_up, now.keys_found, now.keys_stored, now.keys_failed) == (3, 2, 3, 1)
    tier.complete_load(["a", "b"])
    assert now.keys_loaded == 0
    later = tier.statistics()
    assert (later.keys_loaded, later.pinned_blocks, later.leaving_blocks) == (2, 0, 0)


def test_integrity_check_notices_a_broken_index() -> None:
    """The check is not vacuous."""
    tier = HostTier(2)
    fill(tier, ["a", "b"])
    tier._table.index["a"] = tier._table.index["b"]
    with pytest.raises(InternalError):
        tier.check_integrity()


# A dict of 22,000 keys that sees evictions grows to just above a power of two: the worst case.
@pytest.mark.parametrize(("num_blocks", "eviction"), [(20_000, "lru"), (22_000, "lru"), (22_000, "s3fifo")])
def test_a_full_tier_costs_at_most_two_hundred_bytes_a_block(num_blocks: int, eviction: str) -> None:
    """Beyond the keys themselves, after as many evictions as there are blocks."""
    keys = [b"%8d" % n for n in range(2 * num_blocks)]
    tracemalloc.start()
    try:
        tier = HostTier(num_blocks, eviction=eviction)
        for start in range(0, len(keys), 100):
            fill(tier, keys[start : start + 100])
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert tier.num_ready == num_blocks
    assert held <= 200 * num_blocks


def test_a_chain_is_found_by_its_hashes_as_by_its_keys() -> None:
    """In neighbouring blocks or not, evicted in the middle, stored half, ending elsewhere, or with equal hashes."""
    chain = [f"{i}".encode() for i in range(8)]
    hashes = array("q", map(hash, chain))
    tier = HostTier(16)
    assert tier.lookup(chain, hashes) == tier.lookup([], array("q")) == 0
    assert tier.prepare_store(chain[:3]).keys == tuple(chain[:3])
    assert tier.lookup(chain, hashes) == 0
    tier.complete_store(chain[:3])
    assert tier.lookup(chain, hashes) == tier.lookup(chain[:3], hashes[:3]) == 3
    tier.complete_store(tier.prepare_store([b"between"]).keys)
    tier.complete_store(tier.prepare_store(chain[3:]).keys)
    assert tier.lookup(chain, hashes) == 8
    tier.discard([chain[5]])
    assert tier.lookup(chain, hashes) == tier.lookup(chain[:6], hashes[:6]) == 5
    tier.check_integrity()
    # -1 and -2 have the same hash, and are the ends of different chains.
    assert hash(-1) == hash(-2)
    tier.complete_store(tier.prepare_store(["head", -1]).keys)
    assert tier.lookup(["head", -1], array("q", [hash("head"), hash(-1)])) == 2
    assert tier.lookup(["head", -2], array("q", [hash("head"), hash(-2)])) == 1
