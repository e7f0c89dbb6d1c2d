"""The order rules hold whatever the timing: the same histories run in many orders and end as if run one by one."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvmove import CacheLayout, HostPool, Lane, Load, Mover, Refused, Store, load_batch, store_batch
from kvmove.move.hazards import Hazards
from kvmove.testing.copies import contents, randomize
from kvmove.testing.queues import ManualQueues

SLOTS, BLOCKS = 6, 5


class World:
    """A mover whose copies run late and in any legal order, beside a model that runs everything at once."""

    def __init__(self, seed: int, index_capacity: int = 4096) -> None:
        tensors = [torch.zeros(2, SLOTS, 16, dtype=torch.uint8) for _ in range(2)]
        self.layout = CacheLayout.from_tensors(tensors, block_dim=1)
        self.pool = HostPool.for_layout(self.layout, BLOCKS)
        randomize(self.layout, self.pool, seed)
        self.queues = ManualQueues(random.Random(seed))
        self.mover = Mover(self.layout, self.pool, path="reference", queues=self.queues, index_capacity=index_capacity)
        self.slots = contents(self.layout)
        self.blocks = self.pool.blocks.numpy().copy()
        self.wrong_reads: list[int] = []
        self.reported: list[int] = []
        self.job = 0

    def load(self, blocks: list[int], slots: list[int], lane: Lane) -> None:
        ticket = load_batch(self.mover, [Load(self.job, blocks, slots, lane)])
        self.job += 1
        self.slots[slots] = self.blocks[blocks]
        if lane is Lane.EXPEDITED:
            ticket.wait()
            self.engine_reads(slots)

    def store(self, slots: list[int], blocks: list[int]) -> None:
        store_batch(self.mover, [Store(self.job, slots, blocks)])
        self.job += 1
        self.blocks[blocks] = self.slots[slots]

    def engine_writes(self, slots: list[int], value: int) -> None:
        self.mover.wait_for_slots(slots)

        def write() -> None:
            for page in self.layout.page_views():
                page[slots] = value

        self.queues.engine(write)
        self.slots[slots] = value

    def engine_reads(self, slots: list[int]) -> None:
        expected = self.slots[slots].copy()

        def read() -> None:
            if not np.array_equal(contents(self.layout)[slots], expected):
                self.wrong_reads.append(self.job)

        self.queues.engine(read)

    def finish(self) -> None:
        self.queues.drain()
        self.reported += [r.job for r in self.mover.finished()]
        self.mover.close()
        assert not self.wrong_reads
        assert np.array_equal(contents(self.layout), self.slots)
        assert np.array_equal(self.pool.blocks.numpy(), self.blocks)
        assert sorted(self.reported) == list(range(self.job)), "every job is reported exactly once"


distinct_slots = st.lists(st.integers(0, SLOTS - 1), min_size=1, max_size=4, unique=True)
distinct_blocks = st.lists(st.integers(0, BLOCKS - 1), min_size=1, max_size=4, unique=True)


@st.composite
def operations(draw: st.DrawFn) -> tuple[str, list[int], list[int], int]:
    """Draw one step of a history. Lists are cut to the same length; a load may repeat a block, a store a slot."""
    kind = draw(st.sampled_from(["expedited", "bulk", "store", "write", "run", "finished"]))
    slots, blocks = draw(distinct_slots), draw(distinct_blocks)
    if kind in ("expedited", "bulk"):
        blocks = draw(st.lists(st.integers(0, BLOCKS - 1), min_size=len(slots), max_size=len(slots)))
    if kind == "store":
        slots = draw(st.lists(st.integers(0, SLOTS - 1), min_size=len(blocks), max_size=len(blocks)))
    return kind, slots, blocks, draw(st.integers(0, 255))


@settings(max_examples=300)
@given(st.lists(operations(), max_size=25), st.integers(0, 2**16))
def test_any_legal_timing_gives_the_result_of_running_one_by_one(
    history: list[tuple[str, list[int], list[int], int]], seed: int
) -> None:
    """Loads of both lanes, stores and engine writes on shared slots and host blocks never see or leave wrong bytes."""
    world = World(seed)
    for kind, slots, blocks, number in history:
        if kind == "store":
            world.store(slots, blocks)
        elif kind == "write":
            world.engine_writes(slots, number)
        elif kind == "run":
            world.queues.run(number % 4)
        elif kind == "finished":
            world.reported += [r.job for r in world.mover.finished()]
        else:
            world.load(blocks, slots, Lane(kind))
    world.finish()


@pytest.mark.parametrize("forgotten", ["_reads", "_writes"])
def test_the_timing_test_finds_a_missing_rule(forgotten: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the rule for readers, or for writers, some timing leaves wrong bytes: the test above can fail."""
    monkeypatch.setattr(f"kvmove.move.hazards.{forgotten}", lambda *_: set())
    wrong = 0
    for seed in range(40):
        world = World(seed)
        world.engine_writes([0, 1], seed)
        world.store([0, 1], [0, 1])
        world.load([0, 1], [2, 3], Lane.BULK)
        world.load([4, 3], [0, 1], Lane.EXPEDITED)
        world.store([2, 3], [3, 4])
        try:
            world.finish()
        except AssertionError:
            wrong += 1
    assert wrong > 0


def test_a_store_waits_for_loads_of_both_lanes_that_read_its_host_block() -> None:
    """The last reader of each lane counts: one number for all of them would forget the other lane's."""
    hazards = Hazards(SLOTS, BLOCKS)
    one = np.array([0])
    from kvmove.move.queues import Queue

    hazards.note_load(1, Queue.BULK, one, np.array([1]))
    hazards.note_load(2, Queue.EXPEDITED, one, np.array([2]))
    assert hazards.before_store(np.array([5]), one, oldest=1) == {1, 2}
    assert hazards.before_store(np.array([5]), one, oldest=2) == {2}
    assert hazards.before_store(np.array([5]), np.array([1]), oldest=1) == set()


def test_a_full_index_ring_refuses_without_moving_and_recovers() -> None:
    """MoverBusy names the remedy, changes nothing, and the same call is accepted once jobs have ended."""
    world = World(0, index_capacity=8)
    world.load([0, 1], [0, 1], Lane.BULK)
    world.load([2, 3], [2, 3], Lane.BULK)
    with pytest.raises(Refused, match=r"mover.finished\(\)"):
        load_batch(world.mover, [Load(99, [4], [4])])
    with pytest.raises(Refused, match="index_capacity"):
        load_batch(world.mover, [Load(98, range(5), range(5))])
    world.queues.drain()
    world.load([4], [4], Lane.BULK)
    world.finish()


def test_a_refused_second_load_of_a_call_takes_the_first_with_it() -> None:
    """Where one load of a call does not fit into the ring, none is launched and no index stays taken."""
    world = World(0, index_capacity=8)
    world.load([0], [0], Lane.BULK)
    with pytest.raises(Refused):
        load_batch(world.mover, [Load(97, [1, 2], [1, 2]), Load(96, [3, 4], [3, 4])])
    world.queues.drain()
    world.load([1, 2, 3, 4], [1, 2, 3, 4], Lane.BULK)
    world.finish()
