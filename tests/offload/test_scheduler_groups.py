"""Several groups of layers, and chunks of several blocks: which blocks are loaded, stored and counted."""

from __future__ import annotations

from array import array
from collections.abc import Hashable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvmove.offload import Group, GroupKind, LookupKind
from kvmove.offload.lookup import PrefixSearch
from kvmove.records import Action
from kvmove.testing.offload_calls import BLOCK_TOKENS, Driver
from kvmove.tier import HostTier

FULL = Group(block_bytes=100)
WINDOW = Group(block_bytes=30, kind=GroupKind.WINDOW, window_blocks=2)
STATE = Group(block_bytes=7, kind=GroupKind.STATE)


def test_windows_and_states_load_only_what_the_next_token_needs() -> None:
    """Bytes are exact per group, and so are places."""
    driver = Driver("sync", groups=[FULL, WINDOW, STATE], budget_bytes=1 << 20)
    driver.store("abcdef")
    driver.arrive("r", "abcdefg")
    driver.begin()
    found, decision = driver.ask("r", cached_tokens=4)
    assert decision is not None
    assert found.blocks == 5
    assert found.bytes == decision.bytes == 5 * 100 + 2 * 30 + 7
    driver.alloc("r", range(20, 28), range(40, 48), range(60, 68))
    plan = driver.build()
    parts = plan.sync_loads[0].groups
    assert [(p.group, p.position, p.slots.tolist()) for p in parts] == [
        (0, 1, [21, 22, 23, 24, 25]),
        (1, 4, [44, 45]),
        (2, 5, [65]),
    ]
    assert sum(len(p.slots) * g.block_bytes for p, g in zip(parts, [FULL, WINDOW, STATE], strict=True)) == found.bytes


def test_a_window_that_reaches_into_the_gpu_cache_loads_less() -> None:
    """Only blocks beyond the cached ones cross."""
    driver = Driver("sync", groups=[FULL, WINDOW], budget_bytes=1 << 20)
    driver.store("abcd")
    driver.arrive("r", "abcd")
    driver.begin()
    found, _ = driver.ask("r", cached_tokens=12)
    assert (found.blocks, found.bytes) == (1, 130)


def test_what_lies_before_a_loaded_window_is_never_stored() -> None:
    """Its slots hold garbage: the request stores what it computes, not what the load left out."""
    driver = Driver("sync", groups=[FULL, WINDOW])
    driver.store("abcdef")
    driver.arrive("r", "abcdefg")
    driver.begin()
    driver.load("r", range(20, 28))
    plan = driver.build()
    driver.report(plan.jobs)
    # The tier loses all of the prefix meanwhile, so it would be stored anew.
    driver.tier.clear()
    driver.scheduler.computed("r", 28)
    (store,) = driver.step().stores
    assert [(p.group, p.position, len(p.slots)) for p in store.groups] == [(0, 0, 7), (1, 4, 3)]


def test_what_lies_before_a_cached_window_is_never_stored() -> None:
    """Of a prefix in the GPU cache, a window's last blocks are there, and no older ones for sure."""
    driver = Driver(groups=[FULL, WINDOW, STATE])
    driver.arrive("r", "abcdef")
    driver.begin()
    driver.scheduler.lookup("r", 16)
    driver.alloc("r", range(7))
    driver.build()
    driver.scheduler.computed("r", 24)
    (store,) = driver.step().stores
    assert [(p.group, p.position, len(p.slots)) for p in store.groups] == [(0, 0, 6), (1, 2, 4), (2, 3, 3)]


def test_blocks_without_a_slot_are_left_out_of_a_store() -> None:
    """A window's blocks that the engine freed while the request ran; the other group's are stored."""
    driver = Driver(groups=[FULL, WINDOW])
    driver.arrive("r", "abcd")
    driver.begin()
    driver.alloc("r", range(5), [-1, 11, -1, 13, 14])
    driver.build()
    driver.scheduler.computed("r", 16)
    (store,) = driver.step().stores
    assert [(p.group, p.slots.tolist()) for p in store.groups] == [(0, [0, 1, 2, 3]), (1, [11]), (1, [13])]


def test_a_hit_with_windows_ends_at_a_block() -> None:
    """A state cannot be wound back by a token, so the last block of a whole prompt is computed."""
    driver = Driver("sync", groups=[FULL, STATE])
    driver.store("abcd")
    driver.arrive("r", "abcd", extra_tokens=0)
    driver.begin()
    found, _ = driver.ask("r")
    assert (found.blocks, found.tokens) == (3, 12)


def test_a_missing_window_shortens_the_hit_for_every_group() -> None:
    """The hit ends where the window's last blocks are there."""
    driver = Driver("sync", groups=[FULL, WINDOW])
    driver.store("abcdef")
    driver.tier.discard([("abcde", 1)])
    driver.arrive("r", "abcdef")
    driver.begin()
    found, _ = driver.ask("r")
    assert found.blocks == 4
    driver.tier.discard([("abc", 1)])
    found, _ = driver.ask("r")
    assert found.blocks == 2


def test_a_policy_cuts_a_hit_only_where_every_window_is_there() -> None:
    """`at most` takes the last cut whose window is in the tier."""
    driver = Driver("sync at most 16tok\nasync", groups=[FULL, WINDOW], budget_bytes=1 << 20)
    driver.store("abcdef")
    driver.tier.discard([("abc", 1)])  # cuts behind c and d need it
    driver.arrive("r", "abcdef")
    driver.begin()
    _, decision = driver.ask("r")
    assert decision is not None
    assert (decision.action, decision.blocks, decision.partial) == (Action.SYNC, 2, True)


def test_loads_start_and_end_inside_a_chunk() -> None:
    """With 3 blocks a chunk: places count from the chunk's start, and the last chunk is taken in part."""
    driver = Driver("sync at most 24tok\nasync", blocks_per_chunk=3, budget_bytes=1 << 20)
    driver.store("abc")
    driver.arrive("r", "abc", extra_tokens=0)
    driver.begin()
    found, decision = driver.ask("r", cached_tokens=BLOCK_TOKENS)
    assert decision is not None
    assert (found.blocks, found.tokens, decision.blocks) == (8, 8 * BLOCK_TOKENS - 1, 6)
    driver.alloc("r", range(20, 29))
    part = driver.build().sync_loads[0].groups[0]
    assert (part.keys, part.first, part.position) == (("a", "ab", "abc"), 1, 1)
    assert part.slots.tolist() == list(range(21, 27))
    assert part.part().blocks.tolist() == part.blocks.tolist()


def test_chunks_are_stored_whole() -> None:
    """A chunk is stored once all its blocks are computed."""
    driver = Driver(blocks_per_chunk=3)
    driver.arrive("r", "ab")
    driver.begin()
    driver.alloc("r", range(7))
    driver.build()
    driver.scheduler.computed("r", 23)
    (store,) = driver.step().stores
    assert (store.groups[0].keys, store.groups[0].slots.tolist(), store.bytes) == (("a",), [0, 1, 2], 300)


def test_groups_in_one_space_of_slots_see_each_others_transfers() -> None:
    """Slot 5 of one group is slot 5 of the other: a load into it conflicts, a store on it is flushed."""
    groups = [Group(block_bytes=10, slot_space=0), Group(block_bytes=10, slot_space=0)]
    driver = Driver("async", groups=groups)
    driver.arrive("r", "ab")
    driver.begin()
    driver.alloc("r", [0, 1, 2], [3, 4, 5])
    driver.build()
    driver.scheduler.computed("r", 8)
    driver.scheduler.finish("r")
    driver.arrive("s", "x")
    driver.begin()
    driver.alloc("s", [9, 8], [0, 7])
    plan = driver.build()
    assert plan.flushes == plan.jobs


def test_without_full_attention_whoever_runs_over_a_cached_prefix_depends_on_sync_loads_under_way() -> None:
    """A window's table does not show what its blocks were computed from."""
    driver = Driver("sync", groups=[WINDOW])
    driver.store("abcd", 50)
    driver.arrive("r", "abcde")
    driver.begin()
    assert driver.load("r", range(6)) is Action.SYNC
    plan = driver.build()
    driver.arrive("s", "abcdef")
    driver.begin()
    driver.scheduler.lookup("s", 20)
    driver.alloc("s", [-1, -1, -1, -1, 4, 16, 17])  # r's slots 2 and 3, which were loaded, are not in its table
    driver.build()
    assert driver.report(plan.jobs, failed=plan.jobs).failed_loads[0].requests == ("r", "s")


@st.composite
def caches(draw: st.DrawFn) -> tuple[list[Group], int, int, int, list[set[int]]]:
    groups = draw(
        st.lists(
            st.one_of(
                st.just(FULL),
                st.just(STATE),
                st.builds(
                    Group, block_bytes=st.just(1), kind=st.just(GroupKind.WINDOW), window_blocks=st.integers(1, 5)
                ),
            ),
            min_size=1,
            max_size=3,
        )
    )
    k = draw(st.integers(1, 3))
    chunks = draw(st.integers(0, 8))
    first = draw(st.integers(0, chunks * k))
    held = [draw(st.sets(st.integers(0, 7), min_size=max(0, chunks - 3))) for _ in groups]
    return groups, k, chunks, first, held


@given(caches(), st.integers(0, 30))
def test_a_prefix_search_finds_what_trying_every_prefix_finds(
    cache: tuple[list[Group], int, int, int, list[set[int]]], most: int
) -> None:
    """The longest prefix, and every cut, for any groups, chunk sizes and gaps in the tier."""
    groups, k, chunks, first, held = cache
    tier = HostTier(64)
    keys: list[list[Hashable]] = [[(g, c) for c in range(chunks)] for g in range(len(groups))]
    for g, own in enumerate(held):
        stored = [(g, c) for c in sorted(own)]
        tier.prepare_store(stored)
        tier.complete_store(stored)

    def is_there(blocks: int) -> bool:
        for g, group in enumerate(groups):
            needed = group.needed_blocks
            start = first if needed is None else max(first, blocks - needed)
            if any(b // k not in held[g] for b in range(start, blocks)):
                return False
        return True

    search = PrefixSearch(tier, groups, k)
    end = search.longest(keys, [array("q", map(hash, own)) for own in keys], first, most)
    assert end == max((b for b in range(first, min(most, chunks * k) + 1) if is_there(b)), default=first)
    cuts = search.cuts(keys, first, end)
    expected = tuple(b - first for b in range(first + 1, end) if is_there(b))
    assert (tuple(range(1, end - first)) if cuts is None else cuts) == expected


def test_lookups_of_other_groups_do_not_mix() -> None:
    """A chunk that one group has is not taken for another's."""
    driver = Driver("sync", groups=[FULL, FULL])
    driver.store("ab")
    driver.tier.discard([("a", 1)])
    driver.arrive("r", "ab")
    driver.begin()
    assert driver.scheduler.lookup("r", 0).kind is LookupKind.MISS


@pytest.mark.parametrize("keys", [[b"one", b"two"], ["one", "two"], [1, 2]])
def test_keys_may_be_bytes_or_anything_hashable(keys: list[Hashable]) -> None:
    """Each group gets its own key of each."""
    driver = Driver(groups=[FULL, STATE])
    driver.scheduler.on_request("r", keys, 9)
    driver.begin()
    driver.alloc("r", range(3))
    driver.build()
    driver.scheduler.computed("r", 8)
    assert len({key for p in driver.step().stores[0].groups for key in p.keys}) == 4
