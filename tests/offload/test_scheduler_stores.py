"""When the offload scheduler stores what, and what a step flushes."""

from __future__ import annotations

import pytest

from kvmove.errors import Refused
from kvmove.offload import LookupKind
from kvmove.records import Action
from kvmove.testing.offload_calls import BLOCK_BYTES, Driver


def run(driver: Driver, name: str, text: str, slots: range, computed_tokens: int | None = None) -> None:
    """A request that computes all of its text in one step."""
    driver.arrive(name, text)
    driver.begin()
    driver.alloc(name, slots)
    driver.build()
    driver.scheduler.computed(name, len(text) * 4 if computed_tokens is None else computed_tokens)


def test_a_store_is_made_with_the_step_after_and_served_once_reported() -> None:
    """Whole chunks go from their slots to host blocks; before the report a lookup finds nothing of them."""
    driver = Driver(ranks=2)
    run(driver, "r", "abc", range(5, 9), computed_tokens=11)
    assert driver.scheduler.num_jobs == 0
    plan = driver.step()
    (store,) = plan.stores
    assert (store.request, store.bytes) == ("r", 2 * BLOCK_BYTES)
    (part,) = store.groups
    assert (part.keys, part.slots.tolist(), part.blocks.tolist(), part.position) == (("a", "ab"), [5, 6], [0, 1], 0)
    driver.arrive("s", "abc")
    driver.begin()
    assert driver.scheduler.lookup("s", 0).kind is LookupKind.MISS
    driver.build()
    driver.report(plan.jobs)
    driver.begin()
    assert driver.scheduler.lookup("s", 0).blocks == 2
    driver.build()
    driver.scheduler.computed("r", 12)
    (store,) = driver.step().stores
    assert store.groups[0].keys == ("abc",)


def test_each_key_is_stored_once() -> None:
    """Requests that compute the same prefix at once, and again later, make one store of it."""
    driver = Driver()
    driver.arrive("r", "abc")
    driver.arrive("s", "abcd")
    driver.begin()
    driver.alloc("r", range(4))
    driver.alloc("s", range(10, 15))
    driver.build()
    driver.scheduler.computed("r", 12)
    driver.scheduler.computed("s", 16)
    plan = driver.step()
    assert [key for store in plan.stores for key in store.groups[0].keys] == ["a", "ab", "abc", "abcd"]
    driver.report(plan.jobs)
    driver.scheduler.computed("r", 12)
    assert driver.step().stores == ()


def test_what_was_evicted_is_stored_again_by_who_has_it_in_the_gpu_cache() -> None:
    """A request over a cached prefix brings the tier's missing head back."""
    driver = Driver()
    run(driver, "r", "abc", range(4))
    driver.report(driver.step().jobs)
    driver.tier.discard(["ab"])
    driver.arrive("s", "abcd")
    driver.begin()
    driver.scheduler.lookup("s", 12)
    driver.alloc("s", [0, 1, 2, 9, 10])
    driver.build()
    driver.scheduler.computed("s", 16)
    (store,) = driver.step().stores
    assert [(p.keys, p.slots.tolist()) for p in store.groups] == [(("ab",), [1]), (("abcd",), [9])]


def test_a_threshold_lets_only_what_comes_back_be_stored() -> None:
    """With 2, the first request with a prefix stores nothing, the second what both share."""
    driver = Driver(store_threshold=2)
    run(driver, "r", "abc", range(4))
    assert driver.step().stores == ()
    run(driver, "s", "abd", range(10, 14))
    (store,) = driver.step().stores
    assert store.groups[0].keys == ("a", "ab")


def test_what_was_computed_is_stored_though_the_request_is_gone() -> None:
    """Finished, aborted and preempted requests' chunks are stored from the slots that they had."""
    driver = Driver()
    for i, name in enumerate(("finish", "abort", "preempt")):
        run(driver, name, f"{i}b", range(10 * i, 10 * i + 3))
        assert getattr(driver.scheduler, name)(name)
    # each step makes the store of the one before
    plan = driver.step()
    assert [s.groups[0].slots.tolist() for s in plan.stores] == [[20, 21]]
    assert driver.tier.statistics().storing_blocks == 6
    driver.begin()
    driver.alloc("preempt", [40, 41, 42])
    driver.build()
    driver.scheduler.computed("preempt", 8)
    assert driver.step().stores == ()


def test_a_chunk_without_its_parent_in_the_tier_is_not_stored() -> None:
    """Where there is room for the head only, the rest waits; no lookup could reach it."""
    driver = Driver(host_blocks=3)
    driver.store("wx")
    driver.arrive("holder", "wx")
    driver.begin()
    driver.load("holder", range(30, 33))  # pins two of the three blocks
    plan = driver.build()
    run(driver, "r", "abc", range(4))
    first = driver.step()
    assert [s.groups[0].keys for s in first.stores] == [("a",)]
    driver.report([*plan.jobs, *first.jobs])
    driver.scheduler.extend("r", ["abcd"], 17)
    driver.begin()
    driver.alloc("r", range(6))
    driver.build()
    driver.scheduler.computed("r", 16)
    (store,) = driver.step().stores
    assert store.groups[0].keys[0] == "ab"


def test_a_growing_request_brings_back_what_was_evicted_before_its_new_chunks() -> None:
    """A chunk behind a gap would never be found: the gap is stored again with it."""
    driver = Driver()
    run(driver, "r", "ab", range(4))
    driver.report(driver.step().jobs)
    driver.tier.discard(["ab"])
    driver.scheduler.extend("r", ["abc"], 13)
    driver.scheduler.computed("r", 12)
    (store,) = driver.step().stores
    assert [(p.keys, p.slots.tolist()) for p in store.groups] == [(("ab", "abc"), [1, 2])]


def test_a_failed_store_forgets_the_key() -> None:
    """Nobody is served it, the engine is told, and it may be stored anew."""
    driver = Driver(ranks=2)
    run(driver, "r", "ab", range(3))
    plan = driver.step()
    outcome = driver.report(plan.jobs, failed=plan.jobs)
    (failed,) = outcome.failed_stores
    assert (failed.job, failed.request, failed.error) == (plan.jobs[0], "r", "rank 0: it broke; rank 1: it broke")
    driver.arrive("s", "ab")
    driver.begin()
    assert driver.scheduler.lookup("s", 0).kind is LookupKind.MISS
    driver.alloc("s", range(10, 13))
    driver.build()
    assert driver.tier.statistics().free_blocks == 64
    driver.scheduler.computed("s", 8)
    assert driver.step().stores[0].groups[0].keys == ("a", "ab")


def test_a_store_that_fails_on_one_rank_is_not_served() -> None:
    """It ends when the last rank has reported, and fails."""
    from kvmove.offload import JobResult

    driver = Driver(ranks=2)
    run(driver, "r", "ab", range(3))
    (job,) = driver.step().jobs
    assert driver.scheduler.on_results([JobResult(job, 1, "it broke")]).failed_stores == ()
    assert driver.tier.statistics().storing_blocks == 2
    assert len(driver.scheduler.on_results([JobResult(job, 0)]).failed_stores) == 1
    assert driver.tier.statistics().free_blocks == 64


def test_stores_of_what_a_late_sync_load_brought_wait_for_its_result() -> None:
    """Until the load is reported, nothing computed from it is stored; then it is, by the next computed()."""
    driver = Driver("sync")
    driver.store("ab", 40)
    driver.arrive("r", "abc")
    driver.begin()
    assert driver.load("r", range(4)) is Action.SYNC
    plan = driver.build()
    driver.scheduler.computed("r", 12)
    assert driver.step().stores == ()
    driver.report(plan.jobs)
    driver.scheduler.computed("r", 13)
    assert driver.step().stores[0].groups[0].keys == ("abc",)


def test_a_sync_load_reported_before_the_next_step_delays_no_store() -> None:
    """Also where the engine calls computed() before it hands over the results, and the request has ended."""
    driver = Driver("sync")
    driver.store("ab", 40)
    driver.arrive("r", "abc")
    driver.begin()
    driver.load("r", range(4))
    plan = driver.build()
    driver.scheduler.computed("r", 12)
    assert not driver.scheduler.finish("r")
    assert driver.report(plan.jobs).freed == ("r",)
    assert driver.step().stores[0].groups[0].keys == ("abc",)


def test_what_is_deferred_or_under_way_at_a_reset_is_never_served() -> None:
    """Nor what a request computes from KV that it had at the reset, until it has lost its slots."""
    driver = Driver()
    run(driver, "stored", "ab", range(3))
    driver.report(driver.step().jobs)
    run(driver, "storing", "cd", range(10, 13))
    under_way = driver.step()
    run(driver, "deferred", "efg", range(20, 24), computed_tokens=10)
    driver.scheduler.reset_cache()
    driver.scheduler.check_integrity()
    assert driver.step().stores == ()
    driver.report(under_way.jobs)
    driver.scheduler.computed("deferred", 12)
    assert driver.step().stores == ()
    assert driver.tier.statistics().free_blocks == 64
    driver.scheduler.preempt("deferred")
    driver.begin()
    driver.alloc("deferred", range(30, 34))
    driver.build()
    driver.scheduler.computed("deferred", 12)
    assert driver.step().stores[0].groups[0].keys == ("e", "ef", "efg")


def test_a_key_that_still_leaves_is_not_a_parent() -> None:
    """After a reset, a store under way holds its key: neither that key nor what follows it is stored meanwhile."""
    driver = Driver()
    run(driver, "r", "a", range(2))
    under_way = driver.step()
    driver.scheduler.reset_cache()
    run(driver, "s", "abc", range(10, 14))
    assert driver.step().stores == ()
    assert driver.tier.statistics().storing_blocks == 0
    driver.report(under_way.jobs)
    driver.scheduler.check_integrity()
    assert driver.tier.statistics().free_blocks == 64


def test_computed_is_refused_for_who_cannot_have_computed() -> None:
    """A request without slots, and more tokens than there are."""
    driver = Driver()
    driver.arrive("r", "ab")
    with pytest.raises(Refused, match="without slots"):
        driver.scheduler.computed("r", 4)
    driver.begin()
    driver.alloc("r", range(3))
    driver.build()
    with pytest.raises(Refused, match="10 tokens of r, which has 9"):
        driver.scheduler.computed("r", 10)
