"""Requests that hit what another one is loading."""

from __future__ import annotations

import pytest

from kvmove.errors import Refused
from kvmove.offload import LookupKind, RequestState
from kvmove.records import Action
from kvmove.testing.offload_calls import Driver


def test_a_second_request_joins_a_load_and_is_released_with_it() -> None:
    """Of fifty requests with one prefix, one loads; the others hold no slots, and one report releases all."""
    driver = Driver("async")
    driver.store("abcdefgh")
    names = [f"r{i}" for i in range(50)]
    jobs: list[int] = []
    for first in range(0, 50, 20):  # they come over several steps, and more while the load is under way
        driver.begin()
        for name in names[first : first + 20]:
            driver.arrive(name, "abcdefgh")
            driver.load(name, range(20, 29))
        plan = driver.build()
        jobs += plan.jobs
    assert len(jobs) == 1
    states = [driver.scheduler.state(name) for name in names]
    assert states == [RequestState.PARKED] + [RequestState.JOINED] * 49
    outcome = driver.report(jobs)
    assert [r.request for r in outcome.released] == names
    assert [(r.tokens, r.joined) for r in outcome.released] == [(32, False)] + [(0, True)] * 49
    assert {r.error for r in outcome.released} == {None}
    driver.begin()
    for name in names[1:]:
        assert driver.scheduler.lookup(name, 32).kind is LookupKind.MISS
    driver.assert_at_rest()


def test_an_overlap_anywhere_joins() -> None:
    """A longer prompt, and one with more in the GPU cache, join; after the release, the rest is a hit."""
    driver = Driver("async")
    driver.store("abcdef")
    driver.arrive("r", "abcd")
    driver.arrive("longer", "abcdef")
    driver.arrive("warmer", "abcdef")
    driver.arrive("other", "abcdef")
    driver.begin()
    driver.load("r", range(20, 25), cached_tokens=8)
    assert driver.scheduler.lookup("longer", 0).kind is LookupKind.JOINED
    assert driver.scheduler.lookup("warmer", 12).kind is LookupKind.JOINED
    assert driver.scheduler.lookup("other", 16).kind is LookupKind.HIT  # beyond what r loads
    plan = driver.build()
    assert {r.request for r in driver.report(plan.jobs).released} == {"r", "longer", "warmer"}
    driver.begin()
    assert driver.scheduler.lookup("longer", 16).blocks == 2


def test_keys_of_sync_loads_are_not_marked() -> None:
    """A second request with the same prefix is decided on its own."""
    driver = Driver("sync")
    driver.store("abcd")
    driver.arrive("r", "abcd")
    driver.arrive("s", "abcd")
    driver.begin()
    assert driver.load("r", range(20, 25)) is Action.SYNC
    assert driver.load("s", range(30, 35)) is Action.SYNC
    assert len(driver.build().sync_loads) == 2


def test_a_load_decided_before_its_keys_were_marked_is_refused() -> None:
    """Two lookups before one allocation cannot make two loads of one key."""
    driver = Driver("async")
    driver.store("abcd")
    driver.arrive("r", "abcd")
    driver.arrive("s", "abcd")
    driver.begin()
    for name in ("r", "s"):
        driver.ask(name)
    driver.alloc("r", range(20, 25))
    with pytest.raises(Refused, match=r"refund\('s'\)"):
        driver.scheduler.update_after_alloc("s", [range(30, 35)])
    driver.scheduler.check_integrity()
    driver.scheduler.refund("s")
    assert driver.scheduler.lookup("s", 0).kind is LookupKind.JOINED
    assert len(driver.build().jobs) == 1


def test_who_joined_a_load_that_is_refunded_is_released() -> None:
    """The next outcome says so, though no job ended."""
    driver = Driver("async")
    driver.store("abcd")
    for name in ("r", "s"):
        driver.arrive(name, "abcd")
    driver.begin()
    driver.load("r", range(20, 25))
    driver.load("s", [])
    driver.scheduler.refund("r")
    driver.build()
    (released,) = driver.report([]).released
    assert (released.request, released.joined) == ("s", True)
    assert driver.scheduler.state("s") is RequestState.ACTIVE


def test_slots_that_a_load_writes_cannot_be_given_away() -> None:
    """Neither for reading nor for another load, until the load was reported."""
    driver = Driver("async")
    driver.store("abcd")
    driver.store("wxyz", 10)
    driver.arrive("r", "abcd")
    driver.arrive("s", "wxyz")
    driver.begin()
    driver.load("r", range(20, 25))
    plan = driver.build()
    driver.begin()
    driver.ask("s")
    with pytest.raises(Refused, match="slot 23 of s in group 0 is being written by load"):
        driver.scheduler.update_after_alloc("s", [[30, 23, 32, 33, 34]])
    driver.build()
    driver.report(plan.jobs)
    driver.begin()
    assert driver.load("s", [30, 23, 32, 33, 34]) is Action.ASYNC
