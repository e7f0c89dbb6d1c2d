"""What the offload scheduler finds, decides and puts into a plan's loads."""

from __future__ import annotations

import pickle

import pytest

from kvmove.errors import Refused
from kvmove.offload import LookupKind, Released, RequestState
from kvmove.records import Action, Demotion, Lane
from kvmove.testing.offload_calls import BLOCK_BYTES, BLOCK_TOKENS, Driver

BUDGETED = "sync if bytes <= budget_remaining\nasync"


def test_a_hit_that_fits_the_budget_loads_in_its_step_by_position() -> None:
    """The load is expedited; block i of the prefix goes to the slot at position i, behind what the GPU cache has."""
    driver = Driver(BUDGETED, budget_bytes=4 * BLOCK_BYTES)
    driver.store("abcd")
    driver.arrive("r", "abcdef")
    driver.begin()
    assert driver.load("r", [20, 25, 21, 24, 22, 23, 30], cached_tokens=BLOCK_TOKENS) is Action.SYNC
    plan = driver.build()
    (load,) = plan.sync_loads
    (part,) = load.groups
    assert (load.request, load.lane, load.bytes, load.tokens) == ("r", Lane.EXPEDITED, 3 * BLOCK_BYTES, 12)
    assert (part.keys, part.position, part.slots.tolist()) == (("ab", "abc", "abcd"), 1, [25, 21, 24])
    assert part.blocks.tolist() == [1, 2, 3]
    assert (plan.sync_bytes, plan.async_loads) == (3 * BLOCK_BYTES, ())
    outcome = driver.report(plan.jobs)
    assert outcome.released == ()
    assert driver.scheduler.state("r") is RequestState.ACTIVE
    driver.assert_at_rest()


def test_a_hit_over_the_budget_loads_beside_the_step_and_is_released_once() -> None:
    """The second hit exceeds what is left: it is parked, and released with its tokens by the report, only once."""
    driver = Driver("sync", budget_bytes=5 * BLOCK_BYTES)
    driver.store("abcd")
    driver.store("wxyz", 10)
    driver.arrive("r", "abcd")
    driver.arrive("s", "wxyz")
    driver.begin()
    assert driver.load("r", range(20, 25)) is Action.SYNC
    _, decision = driver.ask("s")
    assert decision is not None
    assert (decision.action, decision.demotion) == (Action.ASYNC, Demotion.OVER_BUDGET)
    driver.alloc("s", range(30, 35))
    assert driver.scheduler.state("s") is RequestState.PARKED
    plan = driver.build()
    assert plan.sync_bytes == 4 * BLOCK_BYTES
    assert [load.request for load in plan.async_loads] == ["s"]
    with pytest.raises(Refused, match="parked"):
        driver.scheduler.computed("s", 4)
    outcome = driver.report(plan.jobs)
    assert outcome.released == (Released("s", plan.async_loads[0].job, 16),)
    assert driver.report([]).released == ()
    assert driver.scheduler.state("s") is RequestState.ACTIVE
    driver.assert_at_rest()


def test_the_budget_is_whole_again_in_every_step_also_after_an_aborted_one() -> None:
    """What an aborted step had reserved is not missing in the next."""
    driver = Driver(BUDGETED, budget_bytes=4 * BLOCK_BYTES)
    driver.store("abcd")
    for name in ("r", "s"):
        driver.arrive(name, "abcd")
    driver.begin()
    assert driver.load("r", range(20, 25)) is Action.SYNC
    driver.scheduler.abort_step()
    driver.assert_at_rest()
    driver.begin()
    assert driver.load("s", range(20, 25)) is Action.SYNC
    plan = driver.build()
    assert [load.request for load in plan.sync_loads] == ["s"]
    driver.begin()
    assert driver.load("r", range(30, 35)) is Action.SYNC
    driver.begin()  # forgets the step before
    assert driver.load("r", range(30, 35)) is Action.SYNC
    assert len(driver.build().sync_loads) == 1


@pytest.mark.parametrize("extra", [0, 1, BLOCK_TOKENS - 1])
def test_a_hit_covering_the_whole_prompt_leaves_the_last_token(extra: int) -> None:
    """With no token beyond the blocks, the last block is loaded and its last token computed."""
    driver = Driver("sync", budget_bytes=1 << 20)
    driver.store("abcd")
    driver.arrive("r", "abcd", extra_tokens=extra)
    driver.begin()
    found, decision = driver.ask("r")
    assert (found.blocks, found.tokens) == (4, 16 if extra else 15)
    assert found.bytes == 4 * BLOCK_BYTES
    assert decision is not None
    assert (decision.action, decision.demotion) == (Action.SYNC, None)


def test_nothing_is_loaded_where_the_gpu_cache_has_all_but_the_last_token() -> None:
    """A hit begins behind the cached blocks; where only the token to compute is left, there is none."""
    driver = Driver("sync")
    driver.store("abcd")
    driver.arrive("r", "abcd", extra_tokens=0)
    driver.begin()
    assert driver.scheduler.lookup("r", 16).kind is LookupKind.MISS
    assert driver.scheduler.lookup("r", 12).blocks == 1
    with pytest.raises(Refused, match="whole blocks"):
        driver.scheduler.lookup("r", 13)


def test_deferring_ends_after_the_stated_number() -> None:
    """The request is asked again each step; then it loads asynchronously."""
    driver = Driver("defer", max_deferrals=3)
    driver.store("abcd")
    driver.arrive("r", "abcd")
    actions = []
    for _ in range(4):
        driver.begin()
        actions.append(driver.load("r", range(20, 25)))
        driver.build()
    assert actions == [Action.DEFER] * 3 + [Action.ASYNC]


def test_recompute_loads_nothing() -> None:
    """The request runs with its slots, and what is stored already is not stored again."""
    driver = Driver("recompute")
    driver.store("abcd")
    driver.arrive("r", "abcde")
    driver.begin()
    assert driver.load("r", range(20, 26)) is Action.RECOMPUTE
    assert driver.build().jobs == ()
    driver.scheduler.computed("r", 21)
    (store,) = driver.step().stores
    assert store.groups[0].keys == ("abcde",)


def test_a_policy_may_load_a_part() -> None:
    """`at most` cuts behind whole blocks, and slots beyond the cut are not loaded into."""
    driver = Driver(f"sync at most {2 * BLOCK_BYTES + 50}B\nasync", budget_bytes=1 << 20)
    driver.store("abcd")
    driver.arrive("r", "abcd")
    driver.begin()
    driver.load("r", range(20, 25))
    plan = driver.build()
    (load,) = plan.sync_loads
    assert (load.groups[0].slots.tolist(), load.tokens, load.bytes) == ([20, 21], 8, 2 * BLOCK_BYTES)
    assert plan.sync_bytes == 2 * BLOCK_BYTES


def test_refunding_returns_budget_pins_and_marks() -> None:
    """A request that the engine does not admit after all leaves the plan, and another takes its budget."""
    driver = Driver(BUDGETED, budget_bytes=4 * BLOCK_BYTES)
    driver.store("abcd")
    driver.store("wxyz", 10)
    driver.arrive("r", "abcd")
    driver.arrive("s", "wxyz")
    driver.begin()
    assert driver.load("r", range(20, 25)) is Action.SYNC
    assert driver.tier.statistics().pinned_blocks == 4
    driver.scheduler.refund("r")
    assert driver.tier.statistics().pinned_blocks == 0
    assert driver.load("s", range(20, 25)) is Action.SYNC
    plan = driver.build()
    assert [load.request for load in plan.sync_loads] == ["s"]


def test_a_decision_without_slots_loads_nothing() -> None:
    """The engine found no room: the decision is refunded with the step, and the request asks again."""
    driver = Driver("async")
    driver.store("abcd")
    driver.arrive("r", "abcd")
    driver.begin()
    driver.ask("r")
    assert driver.build().jobs == ()
    driver.assert_at_rest()
    driver.begin()
    assert driver.load("r", range(20, 25)) is Action.ASYNC


@pytest.mark.parametrize(
    ("slots", "complaint"),
    [
        ([20, 21, 22], "not all of them have a slot"),
        ([20, 21, -1, 23, 24], "not all of them have a slot"),
        ([20, 21, 21, 23, 24], "named twice"),
        ([[20, 21], [22, 23]], "flat sequence"),
        ([20.5], "flat sequence"),
    ],
)
def test_tables_that_cannot_take_the_load_are_refused(slots: list[int], complaint: str) -> None:
    """Nothing is pinned, and the right tables are accepted afterwards."""
    driver = Driver("sync")
    driver.store("abcd")
    driver.arrive("r", "abcd")
    driver.begin()
    driver.ask("r")
    with pytest.raises(Refused, match=complaint):
        driver.scheduler.update_after_alloc("r", [slots])
    assert driver.tier.statistics().pinned_blocks == 0
    driver.alloc("r", range(20, 25))
    assert len(driver.build().sync_loads) == 1


def test_a_plan_survives_the_way_to_another_process() -> None:
    """Pickled and back, it makes the same loads and stores for the mover."""
    driver = Driver("sync")
    driver.store("abcd")
    driver.arrive("r", "abcd")
    driver.arrive("s", "xy")
    driver.begin()
    driver.alloc("s", range(3))
    driver.build()
    driver.scheduler.computed("s", 8)
    driver.begin()
    driver.load("r", range(20, 25))
    plan = driver.build()
    copy = pickle.loads(pickle.dumps(plan))
    assert copy.jobs == plan.jobs
    assert len(plan.jobs) == 2
    assert [load.load() for load in copy.sync_loads] == [load.load() for load in plan.sync_loads]
    assert [store.store() for store in copy.stores] == [store.store() for store in plan.stores]


def test_an_unknown_request_and_a_closed_step_are_refused() -> None:
    """The message names the call, and what to call first."""
    driver = Driver()
    scheduler = driver.scheduler
    driver.arrive("r", "ab")
    for call in (lambda: scheduler.lookup("r", 0), lambda: scheduler.decide("r"), scheduler.build_step):
        with pytest.raises(Refused, match=r"begin_step\(\) first"):
            call()
    driver.begin()
    for call in (lambda: scheduler.on_results([]), lambda: scheduler.worker_died(0, "x"), scheduler.reset_cache):
        with pytest.raises(Refused, match=r"build_step\(\) or abort_step\(\) first"):
            call()
    with pytest.raises(Refused, match="no request s"):
        scheduler.lookup("s", 0)
    with pytest.raises(Refused, match="no hit"):
        scheduler.decide("r")
    with pytest.raises(Refused, match="known already"):
        driver.arrive("r", "ab")
    with pytest.raises(Refused, match="twice"):
        scheduler.on_request("t", ["x", "x"], 9)
    with pytest.raises(Refused, match="2 keys, but 7 tokens"):
        scheduler.on_request("t", ["x", "y"], 7)
    with pytest.raises(Refused, match="twice"):
        scheduler.extend("r", ["a"], 12)
