"""What the offload scheduler counts, and that a prefix's head outlives its tail."""

from __future__ import annotations

from pathlib import Path

from kvmove.kvpol.reload import PolicyFile
from kvmove.records import Action
from kvmove.testing.offload_calls import BLOCK_BYTES, Driver


def test_statistics_count_what_happened() -> None:
    """Lookups by kind, loads by how they ended, stores and their bytes; and what is under way."""
    driver = Driver("async")
    driver.store("abcd")
    driver.arrive("r", "abcd")
    driver.arrive("s", "abcd")
    driver.arrive("t", "zz")
    driver.begin()
    for name in ("r", "s", "t"):
        driver.load(name, {"r": range(20, 25), "s": [], "t": range(30, 33)}[name])
    plan = driver.build()
    now = driver.scheduler.statistics()
    assert (now.requests, now.parked, now.joined, now.loads, now.stores) == (3, 1, 1, 1, 0)
    assert (now.misses, now.hits, now.joins) == (1, 1, 1)
    assert (now.stores_made, now.bytes_stored, now.inflight_bytes) == (1, 4 * BLOCK_BYTES, 4 * BLOCK_BYTES)
    driver.report(plan.jobs)
    driver.scheduler.computed("t", 8)
    plan = driver.step()
    driver.report(plan.jobs, failed=plan.jobs)
    after = driver.scheduler.statistics()
    assert (after.loads_released, after.loads_failed, after.stores_failed, after.stores_made) == (1, 0, 1, 2)
    assert (after.parked, after.joined, after.loads, after.inflight_bytes) == (0, 0, 0, 0)
    driver.tier.clear()
    driver.store("abcd")
    driver.arrive("u", "abcd")
    driver.begin()
    driver.load("u", range(20, 25))
    plan = driver.build()
    driver.report(plan.jobs, failed=plan.jobs)
    assert driver.scheduler.statistics().loads_failed == 1


def test_a_policy_file_is_followed_from_step_to_step(tmp_path: Path) -> None:
    """The version that is there when a step begins decides in it."""
    path = tmp_path / "live.kvpol"
    path.write_text("defer\n", encoding="utf-8")
    with PolicyFile(path) as file:
        driver = Driver(explain_every=1)
        driver.scheduler.set_policy(file)
        driver.store("abcd")
        driver.arrive("r", "abcd")
        driver.begin()
        path.write_text("sync\n", encoding="utf-8")
        file.reload()
        assert driver.load("r", range(20, 25)) is Action.DEFER
        driver.build()
        driver.begin()
        assert driver.load("r", range(20, 25)) is Action.SYNC
        driver.build()
    assert driver.scheduler.steps.statistics().why_not[0].matched == 1


def hit_blocks_after_eviction(driver: Driver) -> int:
    """How long the hit on "abcd" is when the tier, which has 8 blocks, has had to evict two."""
    driver.store("wxyz123456"[: driver.tier.statistics().free_blocks + 2], 30)
    driver.arrive("asks", "abcd")
    driver.begin()
    return driver.scheduler.lookup("asks", 0).blocks


def test_a_prefix_stored_in_parts_loses_its_tail_first() -> None:
    """A request that grew for long ends: eviction shortens its prefix from behind."""
    driver = Driver(host_blocks=8)
    driver.scheduler.on_request("r", ["a", "ab"], 8)
    for computed_tokens, keys in ((8, ["abc"]), (12, ["abcd"]), (16, [])):
        driver.begin()
        driver.alloc("r", range(5))
        driver.build()
        driver.scheduler.computed("r", computed_tokens)
        driver.scheduler.extend("r", keys, computed_tokens + 4)
        driver.report(driver.step().jobs)
    driver.scheduler.finish("r")
    assert hit_blocks_after_eviction(driver) == 2


def test_a_prefix_loaded_behind_a_cached_head_loses_its_tail_first() -> None:
    """The head was used when it was found in the GPU cache, the tail when its load ended."""
    driver = Driver("async", host_blocks=8)
    driver.store("abcd")
    driver.arrive("r", "abcd")
    driver.begin()
    driver.load("r", range(5), cached_tokens=8)
    driver.report(driver.build().jobs)
    assert hit_blocks_after_eviction(driver) == 2
