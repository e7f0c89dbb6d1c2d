"""What failed loads and lost workers mean for requests, keys and slots."""

from __future__ import annotations

import pickle

import pytest

from kvmove.errors import MoveFailed, Refused, SyncLoadFailed
from kvmove.offload import JobResult, LookupKind, Released, RequestState
from kvmove.records import Action
from kvmove.testing.offload_calls import Driver


def test_a_failed_sync_load_raises_and_names_everyone_with_its_slots() -> None:
    """The error names both requests and the job; keys are forgotten, and the next lookup computes."""
    driver = Driver("sync")
    driver.store("abcd")
    driver.arrive("r", "abcd")
    driver.arrive("shares", "abcdef")
    driver.arrive("other", "x")
    driver.begin()
    driver.load("r", [20, 21, 22, 23, 24], cached_tokens=4)
    driver.scheduler.lookup("shares", 16)
    driver.alloc("shares", [20, 21, 22, 23, 30, 31, 32])
    driver.alloc("other", [40, 41])
    plan = driver.build()
    outcome = driver.report(plan.jobs, failed=plan.jobs)
    (failed,) = outcome.failed_loads
    assert (failed.job, failed.request, failed.requests) == (plan.jobs[0], "r", ("r", "shares"))
    assert (failed.tokens, failed.groups[0].slots.tolist()) == (4, [21, 22, 23])
    assert outcome.released == ()
    with pytest.raises(SyncLoadFailed, match="load 1 of r: it broke") as caught:
        outcome.check()
    assert isinstance(caught.value, MoveFailed)
    assert (caught.value.jobs, caught.value.requests) == (plan.jobs, ("r", "shares"))
    assert pickle.loads(pickle.dumps(caught.value)).requests == ("r", "shares")
    assert driver.scheduler.state("r") is RequestState.ACTIVE
    driver.begin()
    assert driver.scheduler.lookup("r", 4).kind is LookupKind.MISS
    assert driver.tier.statistics().free_blocks == 63  # the head was not part of the load
    driver.assert_at_rest()


def test_what_was_computed_from_a_failed_sync_load_is_not_stored() -> None:
    """Neither of the request nor of who shares its slots; once computed again, it is."""
    driver = Driver("sync")
    driver.store("ab", 50)
    driver.arrive("r", "abc")
    driver.arrive("shares", "abd")
    driver.begin()
    driver.load("r", [0, 1, 2, 3])
    driver.scheduler.lookup("shares", 8)
    driver.alloc("shares", [0, 1, 12, 13])
    plan = driver.build()
    driver.scheduler.computed("r", 12)
    driver.scheduler.computed("shares", 12)
    driver.report(plan.jobs, failed=plan.jobs)
    assert driver.step().stores == ()
    driver.scheduler.computed("r", 12)  # computed again, from the first token on
    (store,) = driver.step().stores
    assert store.groups[0].keys == ("a", "ab", "abc")
    driver.report([store.job])
    driver.scheduler.computed("shares", 12)
    (store,) = driver.step().stores
    assert store.groups[0].keys == ("abd",)


def test_a_late_failure_reaches_who_came_to_share_in_a_later_step() -> None:
    """The result is not in when the next step shares the slots: its request is named too, though it has ended."""
    driver = Driver("sync")
    driver.store("ab", 50)
    driver.arrive("r", "abc")
    driver.begin()
    driver.load("r", [0, 1, 2, 3])
    plan = driver.build()
    driver.arrive("late", "abc")
    driver.begin()
    driver.scheduler.lookup("late", 12)
    driver.alloc("late", [0, 1, 2, 13])
    driver.build()
    driver.scheduler.finish("late")
    assert driver.report(plan.jobs, failed=plan.jobs).failed_loads[0].requests == ("r", "late")
    driver.assert_at_rest()


def test_who_was_refunded_is_not_named() -> None:
    """It did not run with the slots."""
    driver = Driver("sync")
    driver.store("ab", 50)
    driver.arrive("r", "abc")
    driver.arrive("shares", "abd")
    driver.begin()
    driver.load("r", [0, 1, 2, 3])
    driver.scheduler.lookup("shares", 8)
    driver.alloc("shares", [0, 1, 12, 13])
    with pytest.raises(Refused, match="shares got slots that the sync load of r brings"):
        driver.scheduler.refund("r")
    driver.scheduler.refund("shares")
    plan = driver.build()
    assert driver.report(plan.jobs, failed=plan.jobs).failed_loads[0].requests == ("r",)


def test_a_failed_async_load_lets_the_request_compute() -> None:
    """It is released with the tokens that it had, and finds nothing to load again."""
    driver = Driver("async", ranks=2)
    driver.store("abcd")
    driver.arrive("r", "abcd")
    driver.arrive("joined", "abcd")
    driver.begin()
    driver.load("r", range(20, 25), cached_tokens=4)
    driver.load("joined", [])
    plan = driver.build()
    (job,) = plan.jobs
    assert driver.scheduler.on_results([JobResult(job, 1)]).released == ()
    outcome = driver.scheduler.on_results([JobResult(job, 0, "it broke")])
    outcome.check()  # no step depended on it
    error = "rank 0: it broke"
    assert outcome.released == (Released("r", job, 4, error=error), Released("joined", job, 0, True, error))
    driver.begin()
    assert driver.scheduler.lookup("r", 4).kind is LookupKind.MISS
    assert driver.scheduler.lookup("joined", 0).blocks == 1  # the head was not part of the load
    driver.alloc("r", range(20, 25))
    driver.build()
    driver.scheduler.computed("r", 16)
    assert driver.step().stores[0].groups[0].keys == ("ab", "abc", "abcd")


def test_a_rank_that_fails_does_not_free_what_another_still_uses() -> None:
    """Pins and slots stay until the last rank has reported."""
    driver = Driver("async", ranks=2)
    driver.store("abcd")
    driver.arrive("r", "abcd")
    driver.begin()
    driver.load("r", range(20, 25))
    (job,) = driver.build().jobs
    driver.scheduler.on_results([JobResult(job, 0, "it broke")])
    assert driver.tier.statistics().pinned_blocks == 4
    assert not driver.scheduler.abort("r")
    outcome = driver.scheduler.on_results([JobResult(job, 1)])
    assert outcome.freed == ("r",)
    assert outcome.released == ()
    driver.assert_at_rest()


def test_a_dead_worker_fails_its_jobs_once_the_others_have_reported() -> None:
    """Loads and stores under way fail; a rank that lives is still waited for."""
    driver = Driver("sync if tokens <= 8tok\nasync", ranks=2)
    driver.store("abcd")
    driver.store("xy", 10)
    driver.arrive("parked", "abcd")
    driver.arrive("sync", "xy")
    driver.arrive("stores", "p")
    driver.begin()
    driver.alloc("stores", [40, 41])
    driver.build()
    driver.scheduler.computed("stores", 4)
    driver.begin()
    assert driver.load("parked", range(20, 25)) is Action.ASYNC
    assert driver.load("sync", range(30, 33)) is Action.SYNC
    plan = driver.build()
    store, sync, parked = plan.jobs
    driver.scheduler.on_results([JobResult(sync, 0), JobResult(parked, 1)])
    outcome = driver.scheduler.worker_died(1, "killed")
    assert [f.job for f in outcome.failed_loads] == [sync]
    assert (outcome.released, outcome.failed_stores) == ((), ())
    outcome = driver.scheduler.on_results([JobResult(store, 0), JobResult(parked, 0), JobResult(store, 1)])
    assert [f.job for f in outcome.failed_stores] == [store]
    assert [(r.request, r.error) for r in outcome.released] == [("parked", None)]  # it had reported before it died
    driver.scheduler.check_integrity()
    driver.assert_at_rest()


def test_nothing_is_loaded_or_stored_while_a_worker_is_lost() -> None:
    """Every lookup misses; with its pool kept, what was stored is served again after the replacement."""
    driver = Driver("sync", ranks=2)
    driver.store("abcd")
    driver.arrive("r", "abcdef")
    driver.scheduler.worker_died(0, "killed")
    driver.begin()
    assert driver.scheduler.lookup("r", 0).kind is LookupKind.MISS
    driver.alloc("r", range(20, 27))
    driver.build()
    driver.scheduler.computed("r", 20)
    assert driver.step().jobs == ()
    with pytest.raises(Refused, match="rank 1 is not lost"):
        driver.scheduler.worker_replaced(1, kept_pool=True)
    driver.scheduler.worker_replaced(0, kept_pool=True)
    driver.scheduler.preempt("r")
    driver.begin()
    driver.alloc("r", range(20, 27))
    driver.build()
    driver.scheduler.computed("r", 24)
    (store,) = driver.step().stores
    assert store.groups[0].keys == ("abcde", "abcdef")
    driver.arrive("s", "abcd")
    driver.begin()
    assert driver.scheduler.lookup("s", 0).blocks == 4


def test_what_was_computed_before_a_worker_died_is_not_stored() -> None:
    """Its GPU's memory is lost: neither what was deferred, nor what is computed in the same slots, is stored."""
    driver = Driver()
    driver.arrive("r", "ab")
    driver.arrive("ends", "xy")
    driver.begin()
    driver.alloc("r", range(3))
    driver.alloc("ends", range(10, 13))
    driver.build()
    driver.scheduler.computed("r", 4)
    driver.scheduler.computed("ends", 8)
    driver.scheduler.finish("ends")
    driver.scheduler.worker_died(0, "killed")
    driver.scheduler.worker_replaced(0, kept_pool=True)
    assert driver.step().stores == ()
    driver.scheduler.computed("r", 8)
    assert driver.step().stores == ()
    driver.scheduler.preempt("r")
    driver.begin()
    driver.alloc("r", range(3))
    driver.build()
    driver.scheduler.computed("r", 8)
    assert driver.step().stores[0].groups[0].keys == ("a", "ab")


def test_without_its_pool_nothing_is_served_after_the_replacement() -> None:
    """The tier is empty, and jobs of before are over."""
    driver = Driver("sync")
    driver.store("abcd")
    driver.scheduler.worker_died(0, "killed")
    driver.scheduler.worker_replaced(0, kept_pool=False)
    driver.arrive("s", "abcd")
    driver.begin()
    assert driver.scheduler.lookup("s", 0).kind is LookupKind.MISS
    assert driver.tier.statistics().free_blocks == 64


def test_a_load_that_died_with_its_worker_keeps_its_keys() -> None:
    """The blocks may be good: after a replacement that kept the pool, they are a hit."""
    driver = Driver("async")
    driver.store("abcd")
    driver.arrive("r", "abcd")
    driver.begin()
    driver.load("r", range(20, 25))
    driver.build()
    (released,) = driver.scheduler.worker_died(0, "killed").released
    assert (released.request, released.tokens) == ("r", 0)
    assert "killed" in str(released.error)
    driver.scheduler.worker_replaced(0, kept_pool=True)
    driver.begin()
    assert driver.scheduler.lookup("r", 0).blocks == 4


def test_results_that_are_not_expected_are_refused_as_a_whole() -> None:
    """A rank that there is not, a job twice, an unknown job: the good results beside them do not count."""
    driver = Driver("async", ranks=2)
    driver.store("abcd")
    driver.arrive("r", "abcd")
    driver.begin()
    driver.load("r", range(20, 25))
    (job,) = driver.build().jobs
    good = [JobResult(job, 0), JobResult(job, 1)]
    for bad in (JobResult(job, 2), JobResult(job, -1), JobResult(job + 1, 0), JobResult(job, 0)):
        with pytest.raises(Refused, match="not expected"):
            driver.scheduler.on_results([*good, bad])
    assert driver.scheduler.state("r") is RequestState.PARKED
    assert driver.scheduler.on_results(good).released[0].request == "r"
    with pytest.raises(Refused, match="not expected"):
        driver.scheduler.on_results(good)


def test_a_parked_request_is_released_with_what_still_holds() -> None:
    """The sync load whose slots it shares failed while its own load was under way: what lies before is gone."""
    driver = Driver("sync if blocks <= 2\nasync", budget_bytes=1000)
    driver.store("abcdef", first_slot=40)
    driver.begin()
    driver.arrive("r", "ab")
    assert driver.load("r", [0, 1, 2]) is Action.SYNC
    driver.arrive("parked", "abcdef")
    assert driver.load("parked", [0, 1, 20, 21, 22, 23, 24], cached_tokens=8) is Action.ASYNC
    plan = driver.build()
    (sync,), (own,) = plan.sync_loads, plan.async_loads
    (failed,) = driver.report([sync.job], failed=[sync.job]).failed_loads
    assert failed.requests == ("r", "parked")
    (released,) = driver.report([own.job]).released
    assert (released.request, released.tokens, released.error) == ("parked", 0, None)
    driver.assert_at_rest()
