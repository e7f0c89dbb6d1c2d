"""What the state machine has found, each as a short story of its own."""

from __future__ import annotations

import random

import numpy as np

from kvmove.offload.records import GroupBlocks, LoadSpec, OffloadPlan, StoreSpec
from kvmove.offload.worker_steps import job_results, start_step
from kvmove.records import Lane
from kvmove.testing.protocol_ranks import Rank


def part(host_block: int, slot: int) -> tuple[GroupBlocks, ...]:
    return (GroupBlocks(0, (host_block,), np.array([host_block]), np.array([slot]), position=0),)


def plan(
    *, stores: tuple[StoreSpec, ...] = (), loads: tuple[LoadSpec, ...] = (), flushes: tuple[int, ...] = ()
) -> OffloadPlan:
    return OffloadPlan(
        step=0, decisions=(), sync_loads=loads, async_loads=(), stores=stores, flushes=flushes, budget_bytes=1 << 20,
        sync_bytes=sum(spec.bytes for spec in loads),
    )  # fmt: skip


def test_a_store_is_flushed_although_another_one_of_its_plan_could_not_be_launched() -> None:
    """The first store's launch is refused; the second one still reads its slot before the step writes it."""
    for seed in range(8):
        rank = Rank(0, num_slots=[4], num_host_blocks=4, blocks_per_chunk=1, words=2, rng=random.Random(seed))
        rank.forward("r", [], [(0, 0, 11), (0, 1, 13)])
        stores = (StoreSpec(1, "a", part(0, 0), bytes=32), StoreSpec(2, "b", part(1, 1), bytes=32))
        rank.queues.refuse(0)
        start_step(rank.worker, plan(stores=stores, flushes=(1, 2)))
        rank.forward("r", [], [(0, 0, 17), (0, 1, 19)])
        rank.queues.drain()
        assert sorted((r.job, r.ok) for r in job_results(rank.worker, 0)) == [(1, False), (2, True)]
        start_step(rank.worker, plan(loads=(LoadSpec(3, "c", Lane.EXPEDITED, part(1, 2), tokens=4, bytes=32),)))
        rank.forward("r", [(0, 0, 2, 13)], [])
        rank.queues.drain()
        assert rank.wrong == []
        rank.close()
