"""Stores that a step has to wait for, because it writes slots that they read."""

from __future__ import annotations

from kvmove.records import Action
from kvmove.testing.offload_calls import Driver


def run(driver: Driver, name: str, text: str, slots: range, computed_tokens: int | None = None) -> None:
    """A request that computes all of its text in one step."""
    driver.arrive(name, text)
    driver.begin()
    driver.alloc(name, slots)
    driver.build()
    driver.scheduler.computed(name, len(text) * 4 if computed_tokens is None else computed_tokens)


def test_slots_with_a_pending_store_are_flushed_before_they_are_reused() -> None:
    """A plan names the stores, of this step or an earlier one, that read what the step writes, and no other."""
    driver = Driver()
    run(driver, "r", "ab", range(0, 3))
    run(driver, "s", "xy", range(10, 13))  # its step makes r's store
    assert driver.scheduler.finish("r")
    driver.arrive("t", "pq")
    driver.begin()
    driver.alloc("t", [1, 2, 20])
    plan = driver.build()
    stores = {store.request for store in plan.stores}
    assert stores == {"s"}
    assert plan.flushes == (0,)
    assert driver.scheduler.finish("s")
    driver.arrive("u", "pq")
    driver.begin()
    driver.alloc("u", [10, 30, 31])
    assert driver.build().flushes == (plan.stores[0].job,)
    driver.report([0, *plan.jobs])
    driver.begin()
    driver.alloc("u", [10, 30, 31, 0])
    assert driver.build().flushes == ()


def test_a_store_of_the_same_step_is_flushed_too() -> None:
    """A request ends, and its slots go to another in the very step that makes its store."""
    driver = Driver()
    run(driver, "r", "ab", range(0, 3))
    assert driver.scheduler.finish("r")
    driver.arrive("s", "xy")
    driver.begin()
    driver.alloc("s", [1, 0, 5])
    plan = driver.build()
    assert plan.flushes == (plan.stores[0].job,)
    assert plan.stores[0].groups[0].slots.tolist() == [0, 1]


def test_a_load_flushes_the_stores_on_its_slots() -> None:
    """Slots that a hit is loaded into may still be read by a store."""
    driver = Driver("sync")
    driver.store("wxyz", 40)
    run(driver, "r", "ab", range(0, 3))
    driver.scheduler.finish("r")
    driver.arrive("s", "wxyz")
    driver.begin()
    assert driver.load("s", [0, 50, 51, 52, 53]) is Action.SYNC
    plan = driver.build()
    assert plan.flushes == (plan.stores[0].job,)


def test_cached_slots_are_not_written_and_not_flushed() -> None:
    """Sharing another request's blocks reads them, as its store does."""
    driver = Driver()
    run(driver, "r", "ab", range(0, 3))
    driver.step()
    driver.arrive("s", "abc")
    driver.begin()
    driver.scheduler.lookup("s", 8)
    driver.alloc("s", [0, 1, 7, 8])
    assert driver.build().flushes == ()


def test_a_table_that_grows_writes_only_its_new_slots() -> None:
    """A running request's earlier slots are not flushed again; one that changed is."""
    driver = Driver()
    run(driver, "r", "ab", range(0, 3))
    plan = driver.step()
    driver.begin()
    driver.alloc("r", [0, 1, 2, 3])
    assert driver.build().flushes == ()
    driver.begin()
    driver.alloc("r", [0, 7, 2, 3])
    assert driver.build().flushes == ()
    driver.arrive("s", "x")
    driver.begin()
    driver.alloc("s", [1, 30])
    assert driver.build().flushes == plan.jobs
