"""A step's plan on two ranks: order of stores, writes and loads, and every job reported once whatever fails."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest

from kvmove.errors import Refused, SyncLoadFailed
from kvmove.offload.records import GroupBlocks, LoadSpec, OffloadPlan, StoreSpec
from kvmove.offload.worker_steps import job_results, start_loads, start_step, start_stores
from kvmove.records import Lane
from kvmove.testing.protocol_ranks import Rank

SLOTS, BLOCKS = 6, 4


@pytest.fixture
def ranks() -> Iterator[list[Rank]]:
    made = [
        Rank(r, num_slots=[SLOTS], num_host_blocks=BLOCKS, blocks_per_chunk=1, words=2, rng=random.Random(r))
        for r in range(2)
    ]
    yield made
    for rank in made:
        rank.close()


def blocks(host_blocks: list[int], slots: list[int]) -> tuple[GroupBlocks, ...]:
    keys = tuple(host_blocks)
    return (GroupBlocks(0, keys, np.array(host_blocks), np.array(slots), position=0),)


def load(job: int, host_blocks: list[int], slots: list[int], lane: Lane) -> LoadSpec:
    return LoadSpec(job, f"request {job}", lane, blocks(host_blocks, slots), tokens=4, bytes=64)


def plan(
    *, stores: tuple[StoreSpec, ...] = (), sync: tuple[LoadSpec, ...] = (), background: tuple[LoadSpec, ...] = (),
    flushes: tuple[int, ...] = (),
) -> OffloadPlan:  # fmt: skip
    return OffloadPlan(
        step=0, decisions=(), sync_loads=sync, async_loads=background, stores=stores, flushes=flushes,
        budget_bytes=1 << 20, sync_bytes=sum(s.bytes for s in sync),
    )  # fmt: skip


@pytest.mark.parametrize("flush", [True, False])
def test_a_flushed_store_reads_its_slots_before_the_step_writes_them(ranks: list[Rank], flush: bool) -> None:
    """The blocks come back as stored; without the flush, some order brings what overwrote them."""
    wrong = 0
    for seed in range(8):
        for rank in ranks:
            rank.queues.reseed(seed)
            rank.compute([(0, 0, 11), (0, 1, 13)])
            store = StoreSpec(2 * seed, "a", blocks([2, 3], [0, 1]), bytes=64)
            start_stores(rank.worker, plan(stores=(store,), flushes=(store.job,) if flush else ()))
            rank.poison([(0, 0), (0, 1)])
            start_loads(rank.worker, plan(sync=(load(2 * seed + 1, [2, 3], [4, 5], Lane.EXPEDITED),)))
            rank.verify([("a", 0, 0, 4, 11), ("a", 0, 1, 5, 13)])
            rank.queues.drain()
            rank.worker.check()
            assert sorted((r.job, r.rank, r.ok) for r in job_results(rank.worker, rank.rank)) == [
                (2 * seed, rank.rank, True),
                (2 * seed + 1, rank.rank, True),
            ]
            wrong += len(rank.wrong)
    assert (wrong == 0) == flush


def test_ranks_hold_different_bytes_and_a_wrong_block_shows(ranks: list[Rank]) -> None:
    """A block of another hash, slot or rank is named with its place in the request."""
    first, second = ranks
    first.compute([(0, 0, 11)])
    first.verify([("a", 0, 0, 0, 11), ("a", 0, 1, 0, 13)])
    first.queues.drain()
    assert [(w.position, w.slot) for w in first.wrong] == [(1, 0)]
    assert first.compared == 2
    second.pool.blocks.copy_(first.pool.blocks)
    start_step(first.worker, plan(stores=(StoreSpec(1, "a", blocks([0], [0]), bytes=32),)))
    first.queues.drain()
    second.pool.blocks.copy_(first.pool.blocks)
    start_step(second.worker, plan(sync=(load(2, [0], [0], Lane.EXPEDITED),)))
    second.verify([("a", 0, 0, 0, 11)])
    second.queues.drain()
    assert len(second.wrong) == 1


def test_a_refused_launch_fails_its_jobs_and_the_rest_goes_on(ranks: list[Rank]) -> None:
    """The sync load's failure raises and names the request; the store before and the load beside it arrive."""
    worker, queues = ranks[0].worker, ranks[0].queues
    queues.refuse(1)  # the store is launched first
    step = plan(
        stores=(StoreSpec(1, "a", blocks([0], [0]), bytes=32),),
        sync=(load(2, [1], [1], Lane.EXPEDITED),),
        background=(load(3, [2], [2], Lane.BULK),),
    )
    with pytest.raises(SyncLoadFailed) as caught:
        start_step(worker, step)
    assert caught.value.requests == ("request 2",)
    queues.drain()
    assert {r.job: r.ok for r in job_results(worker, 0)} == {1: True, 2: False, 3: True}
    worker.check()


@pytest.mark.parametrize("bad", ["store", "load"])
def test_a_stale_block_table_is_refused_and_its_jobs_fail(ranks: list[Rank], bad: str) -> None:
    """Slots that there are not: the call is refused, its jobs are reported as failed, the others arrive."""
    worker, queues = ranks[0].worker, ranks[0].queues
    step = plan(
        stores=(StoreSpec(1, "a", blocks([0], [SLOTS if bad == "store" else 0]), bytes=32),),
        background=(load(2, [1], [SLOTS if bad == "load" else 1], Lane.BULK),),
    )
    with pytest.raises(Refused, match="slot"):
        start_step(worker, step)
    queues.drain()
    assert {r.job: r.ok for r in job_results(worker, 0)} == {1: bad != "store", 2: bad != "load"}
    assert job_results(worker, 0) == []
