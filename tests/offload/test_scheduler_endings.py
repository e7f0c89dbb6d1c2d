"""Aborts, preemptions, aborted steps and resets at every point of a load's life."""

from __future__ import annotations

import pytest

from kvmove.errors import Refused
from kvmove.offload import LookupKind, RequestState
from kvmove.records import Action
from kvmove.testing.offload_calls import BLOCK_BYTES, Driver


def parked(driver: Driver) -> tuple[int, ...]:
    """Request r is parked on a load of "abcd" into slots 20 to 23, and s has joined it."""
    driver.store("abcd")
    driver.arrive("r", "abcd")
    driver.arrive("s", "abcd")
    driver.begin()
    assert driver.load("r", range(20, 25)) is Action.ASYNC
    driver.load("s", [])
    return driver.build().jobs


@pytest.mark.parametrize("leave", ["abort", "preempt", "finish"])
def test_a_parked_request_keeps_its_slots_until_its_load_ended(leave: str) -> None:
    """They are not free now; the report frees them. Who had joined is released at once, and loads itself."""
    driver = Driver("async")
    jobs = parked(driver)
    assert getattr(driver.scheduler, leave)("r") is False
    outcome = driver.report([])
    assert [(r.request, r.joined, r.error is None) for r in outcome.released] == [("s", True, False)]
    assert outcome.freed == ()
    driver.begin()
    with pytest.raises(Refused, match="being written by load"):
        driver.scheduler.update_after_alloc("s", [[20]])
    assert driver.load("s", range(30, 35)) is Action.ASYNC
    plan = driver.build()
    outcome = driver.report(jobs)
    assert (outcome.freed, outcome.released) == (("r",), ())
    assert [r.request for r in driver.report(plan.jobs).released] == ["s"]
    driver.assert_at_rest()


def test_a_preempted_request_computes_until_its_old_load_ended_then_may_load() -> None:
    """Two loads of one request are never under way at once."""
    driver = Driver("async")
    jobs = parked(driver)
    driver.scheduler.preempt("r")
    assert driver.scheduler.state("r") is RequestState.ACTIVE
    driver.begin()
    assert driver.scheduler.lookup("r", 0).kind is LookupKind.MISS
    driver.build()
    driver.report(jobs)
    driver.begin()
    assert driver.scheduler.lookup("r", 0).kind is LookupKind.HIT


def test_the_name_of_a_request_with_a_load_under_way_cannot_be_used_again() -> None:
    """Until its slots are free: the outcome names requests."""
    driver = Driver("async")
    jobs = parked(driver)
    driver.scheduler.abort("r")
    with pytest.raises(Refused, match="still writes slots of the last r"):
        driver.arrive("r", "abcd")
    driver.report(jobs)
    driver.arrive("r", "abcd")


def test_a_request_that_joined_leaves_alone() -> None:
    """Its abort or preemption takes it out of the load, which goes on; it had no slots."""
    driver = Driver("async")
    jobs = parked(driver)
    assert driver.scheduler.preempt("s")
    driver.scheduler.check_integrity()
    driver.arrive("t", "abcd")
    driver.begin()
    driver.load("t", [])
    driver.build()
    assert driver.scheduler.abort("t")
    assert [r.request for r in driver.report(jobs).released] == ["r"]
    driver.assert_at_rest()


def test_a_release_that_was_not_told_yet_dies_with_its_request() -> None:
    """Aborted after the load it had joined was given up, before the next outcome."""
    driver = Driver("async")
    jobs = parked(driver)
    driver.scheduler.abort("r")
    driver.scheduler.abort("s")
    assert driver.report(jobs).released == ()


@pytest.mark.parametrize("leave", ["abort", "preempt", "finish", "refund"])
@pytest.mark.parametrize("policy", ["sync", "async"])
def test_leaving_in_the_step_of_the_decision_takes_the_load_out(leave: str, policy: str) -> None:
    """Nothing of it is in the plan, its budget is free, its slots are."""
    driver = Driver(policy, budget_bytes=4 * BLOCK_BYTES)
    driver.store("abcd")
    driver.arrive("r", "abcd")
    driver.begin()
    driver.load("r", range(20, 25))
    assert getattr(driver.scheduler, leave)("r") in (True, None)
    plan = driver.build()
    assert (plan.jobs, plan.sync_bytes, plan.decisions) == ((), 0, ())
    driver.assert_at_rest()


@pytest.mark.parametrize("end", ["build", "abort_step"])
def test_a_sync_load_that_others_share_outlives_its_request(end: str) -> None:
    """The engine gave its slots to another request in the same step: that one needs the load."""
    driver = Driver("sync", budget_bytes=4 * BLOCK_BYTES)
    driver.store("abcd")
    driver.arrive("r", "abcd")
    driver.arrive("shares", "abcdef")
    driver.begin()
    driver.load("r", range(20, 25))
    driver.scheduler.lookup("shares", 16)
    driver.alloc("shares", [20, 21, 22, 23, 30, 31, 32])
    assert driver.scheduler.abort("r") is False
    if end == "abort_step":
        driver.scheduler.abort_step()
        driver.scheduler.check_integrity()
        assert driver.report([]).freed == ("r",)
    else:
        plan = driver.build()
        assert [load.request for load in plan.sync_loads] == ["r"]
        assert plan.sync_bytes == 4 * BLOCK_BYTES
        outcome = driver.report(plan.jobs, failed=plan.jobs)
        assert outcome.freed == ("r",)
        assert outcome.failed_loads[0].requests == ("r", "shares")
    driver.assert_at_rest()


def test_the_slots_of_a_sync_load_are_busy_until_it_was_reported() -> None:
    """A request that is preempted in the step after, before the results, gets them back later."""
    driver = Driver("sync")
    driver.store("abcd")
    driver.arrive("r", "abcd")
    driver.begin()
    driver.load("r", range(20, 25))
    plan = driver.build()
    driver.begin()
    assert driver.scheduler.preempt("r") is False
    driver.build()
    outcome = driver.report(plan.jobs)
    assert (outcome.freed, outcome.released) == (("r",), ())
    driver.assert_at_rest()


def test_an_aborted_step_gives_slots_back_and_flushes_them_later() -> None:
    """Slots that a request got in it are new again in the next step, so a store on them is flushed then."""
    driver = Driver()
    driver.arrive("r", "ab")
    driver.begin()
    driver.alloc("r", range(3))
    driver.build()
    driver.scheduler.computed("r", 8)
    driver.scheduler.finish("r")
    driver.arrive("s", "xyz")
    driver.begin()
    driver.alloc("s", [0, 1, 5, 6])
    driver.scheduler.abort_step()
    driver.scheduler.check_integrity()
    driver.begin()
    driver.alloc("s", [0, 1, 5, 6])
    plan = driver.build()
    assert plan.flushes == (plan.stores[0].job,)


def test_a_running_request_gives_back_what_it_got_in_an_aborted_step() -> None:
    """Its earlier slots stay its own; the slot that it got is new again in the next step."""
    driver = Driver()
    driver.arrive("old", "a")
    driver.arrive("r", "xyz")
    driver.begin()
    driver.alloc("old", [7, 8])
    driver.alloc("r", [0, 1, 2])
    driver.build()
    driver.scheduler.computed("old", 4)
    driver.scheduler.finish("old")
    driver.begin()
    driver.alloc("r", [0, 1, 2, 7])
    driver.scheduler.abort_step()
    driver.begin()
    driver.alloc("r", [0, 1, 2, 7])
    plan = driver.build()
    assert plan.flushes == (plan.stores[0].job,)
    driver.scheduler.computed("r", 12)
    assert driver.step().stores[0].groups[0].slots.tolist() == [0, 1, 2]


def test_an_aborted_step_releases_who_joined_in_it() -> None:
    """The load that it joined was never started."""
    driver = Driver("async")
    driver.store("abcd")
    driver.arrive("r", "abcd")
    driver.arrive("s", "abcd")
    driver.begin()
    driver.load("r", range(20, 25))
    driver.load("s", [])
    driver.scheduler.abort_step()
    assert [r.request for r in driver.report([]).released] == ["s"]
    assert driver.scheduler.state("r") is RequestState.ACTIVE
    driver.assert_at_rest()


def test_nobody_joins_a_load_of_before_a_reset() -> None:
    """It ends as it would have, its keys are not served again, and its request stores nothing."""
    driver = Driver("async")
    jobs = parked(driver)
    driver.scheduler.reset_cache()
    driver.scheduler.check_integrity()
    driver.arrive("t", "abcd")
    driver.begin()
    assert driver.scheduler.lookup("t", 0).kind is LookupKind.MISS
    driver.build()
    assert [r.request for r in driver.report(jobs).released] == ["r", "s"]
    driver.begin()
    driver.alloc("r", range(20, 25))
    driver.build()
    driver.scheduler.computed("r", 17)
    assert driver.step().stores == ()
    assert driver.tier.statistics().free_blocks == 64
    driver.assert_at_rest()


def test_integrity_checks_find_what_is_broken() -> None:
    """Each of a few planted errors is named."""
    from kvmove.errors import InternalError

    def driver_with_load() -> Driver:
        driver = Driver("async")
        parked(driver)
        return driver

    driver = driver_with_load()
    driver.scheduler._loads._marks.popitem()
    driver.scheduler._loads._marks["zzz"] = 1
    with pytest.raises(InternalError, match="as being loaded"):
        driver.scheduler.check_integrity()
    driver = driver_with_load()
    driver.scheduler._loads.inflight_bytes += 1
    with pytest.raises(InternalError, match="counted in flight"):
        driver.scheduler.check_integrity()
    driver = driver_with_load()
    driver.scheduler._requests["s"].state = RequestState.ACTIVE
    with pytest.raises(InternalError, match="s is active"):
        driver.scheduler.check_integrity()
    driver = driver_with_load()
    driver.scheduler._requests["r"].state = RequestState.ACTIVE
    with pytest.raises(InternalError, match="r is active"):
        driver.scheduler.check_integrity()
    driver = driver_with_load()
    driver.scheduler._stores._storing.add("zzz")
    with pytest.raises(InternalError, match="no store has them"):
        driver.scheduler.check_integrity()
