"""The order rules hold across groups and within chunks, whatever the timing: as `test_order.py`, for hybrid caches."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvmove import CacheLayout, HostPool, Lane, Load, Mover, Part, Store, load_batch, store_batch
from kvmove.move import layout as layout_module
from kvmove.testing.copies import contents, randomize
from kvmove.testing.queues import ManualQueues

SLOTS, BLOCKS = [6, 4, 6], 4
PER_CHUNK = [2, 2, 3]
HOME = [0, 1, 0]  # group 2 lies in the memory of group 0


class World:
    """A mover of three groups whose copies run late and in any legal order, beside a model that runs them at once."""

    def __init__(self, seed: int) -> None:
        tensors = [torch.zeros(2, SLOTS[0], 16, dtype=torch.uint8), torch.zeros(SLOTS[1], 20, dtype=torch.uint8)]
        self.layout = CacheLayout.from_tensors(
            tensors, block_dim=[1, 0], groups=[[0], [1], [0]], blocks_per_chunk=PER_CHUNK
        )
        self.pool = HostPool.for_layout(self.layout, BLOCKS)
        randomize(self.layout, self.pool, seed)
        self.queues = ManualQueues(random.Random(seed))
        self.mover = Mover(self.layout, self.pool, path="reference", queues=self.queues)
        self.slots = [contents(self.layout, 0), contents(self.layout, 1)]
        self.blocks = self.pool.blocks.numpy().copy()
        self.wrong_reads: list[int] = []
        self.reported: list[int] = []
        self.job = 0

    def _pairs(self, part: Part) -> list[tuple[np.ndarray, np.ndarray]]:
        """The model's slot and place of each block of a part."""
        group, pairs = self.layout.groups[part.group], []
        for i, slot in enumerate(part.slots.tolist()):
            chunk, place = divmod(part.first + i, group.blocks_per_chunk)
            begin = place * group.sub_bytes
            held = self.blocks[part.blocks[chunk], begin : begin + group.block_bytes]
            pairs.append((self.slots[HOME[part.group]][slot], held))
        return pairs

    def load(self, parts: list[Part], lane: Lane) -> None:
        ticket = load_batch(self.mover, [Load.of_parts(self.job, parts, lane)])
        self.job += 1
        for part in parts:
            for slot, held in self._pairs(part):
                slot[:] = held
        if lane is Lane.EXPEDITED:
            ticket.wait()
            for part in parts:
                self.engine_reads(part.group, part.slots.tolist())

    def store(self, parts: list[Part]) -> None:
        store_batch(self.mover, [Store.of_parts(self.job, parts)])
        self.job += 1
        for part in parts:
            for slot, held in self._pairs(part):
                held[:] = slot

    def engine_writes(self, group: int, slots: list[int], value: int) -> None:
        self.mover.wait_for_slots(slots, group)

        def write() -> None:
            for page in self.layout.groups[group].page_views():
                page[slots] = value

        self.queues.engine(write)
        self.slots[HOME[group]][slots] = value

    def engine_reads(self, group: int, slots: list[int]) -> None:
        expected = self.slots[HOME[group]][slots].copy()

        def read() -> None:
            if not np.array_equal(contents(self.layout, group)[slots], expected):
                self.wrong_reads.append(self.job)

        self.queues.engine(read)

    def finish(self) -> None:
        self.queues.drain()
        self.reported += [r.job for r in self.mover.finished()]
        self.mover.close()
        assert not self.wrong_reads
        for group in range(3):
            assert np.array_equal(contents(self.layout, group), self.slots[HOME[group]])
        assert np.array_equal(self.pool.blocks.numpy(), self.blocks)
        assert sorted(self.reported) == list(range(self.job)), "every job is reported exactly once"


@st.composite
def transfers(draw: st.DrawFn, *, written: str) -> list[Part]:
    """Draw the parts of one job, whose slots (or, for a store, host blocks) are distinct."""
    parts: list[Part] = []
    taken: set[int] = set()
    for group in draw(st.lists(st.sampled_from([0, 1, 2]), min_size=1, max_size=2, unique=True)):
        k, first = PER_CHUNK[group], draw(st.integers(0, PER_CHUNK[group] - 1))
        if written == "slots":
            free = [s for s in range(SLOTS[group]) if 10 * HOME[group] + s not in taken]
            slots = draw(st.permutations(free))[: draw(st.integers(1, 4))]
            count = -(-(first + len(slots)) // k)
            blocks = draw(st.lists(st.integers(0, BLOCKS - 1), min_size=count, max_size=count))
            taken.update(10 * HOME[group] + s for s in slots)
        else:
            free = [b for b in range(BLOCKS) if b not in taken]
            blocks = draw(st.permutations(free))[: draw(st.integers(1, 2))]
            room = len(blocks) * k - first
            count = draw(st.integers(max(1, room - k + 1), room))
            slots = draw(st.lists(st.integers(0, SLOTS[group] - 1), min_size=count, max_size=count))
            taken.update(blocks)
        if len(slots):
            parts.append(Part(group, blocks, slots, first))
    return parts


Step = Callable[[World], object]


@st.composite
def steps(draw: st.DrawFn) -> Step:
    """Draw one step of a history."""
    kind = draw(st.sampled_from(["expedited", "bulk", "store", "write", "run", "finished"]))
    number = draw(st.integers(0, 255))
    if kind in ("expedited", "bulk"):
        parts = draw(transfers(written="slots"))
        return lambda w: w.load(parts, Lane(kind))
    if kind == "store":
        parts = draw(transfers(written="blocks"))
        return lambda w: w.store(parts)
    if kind == "write":
        group = draw(st.integers(0, 2))
        slots = draw(st.lists(st.integers(0, SLOTS[group] - 1), min_size=1, max_size=3, unique=True))
        return lambda w: w.engine_writes(group, slots, number)
    if kind == "run":
        return lambda w: w.queues.run(number % 4)
    return lambda w: w.reported.extend(r.job for r in w.mover.finished())


@settings(max_examples=200)
@given(st.lists(steps(), max_size=25), st.integers(0, 2**16))
def test_any_legal_timing_of_groups_and_chunks_gives_the_result_of_running_one_by_one(
    history: list[Step], seed: int
) -> None:
    """Loads, stores and engine writes of groups that share memory and chunks never see or leave wrong bytes."""
    world = World(seed)
    for step in history:
        step(world)
    world.finish()


def wrong_timings() -> int:
    """How many of some timings of a history over shared slots and chunks leave wrong bytes."""
    wrong = 0
    for seed in range(40):
        world = World(seed)
        world.engine_writes(0, [0, 1], seed)
        world.store([Part(0, [0], [0, 1])])
        world.load([Part(2, [1], [0, 1], 1), Part(1, [2], [3])], Lane.BULK)
        world.store([Part(0, [3], [4]), Part(1, [2], [3], 1)])
        world.load([Part(0, [2], [5], 1)], Lane.EXPEDITED)  # reads what only the second part before has written
        world.load([Part(1, [0], [3], 1), Part(0, [3], [0])], Lane.EXPEDITED)
        try:
            world.finish()
        except AssertionError:
            wrong += 1
    return wrong


def test_groups_in_the_same_memory_have_to_be_seen_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it some timing leaves wrong bytes, so the test above can fail; with it none does."""
    assert wrong_timings() == 0
    monkeypatch.setattr(layout_module, "groups_that_share", lambda *_: set())
    assert wrong_timings() > 0


def test_a_wait_for_slots_is_for_one_group() -> None:
    """Slots of the same number in another group are not waited for, unless they are the same memory."""
    world = World(0)
    world.load([Part(0, [1], [2, 3])], Lane.BULK)
    waits: list[object] = []
    world.queues.wait = waits.append  # type: ignore[assignment, method-assign]
    for group, expected in ((1, 0), (0, 1), (2, 1)):
        waits.clear()
        world.mover.wait_for_slots([3], group)
        assert len(waits) == expected
    world.finish()


@pytest.mark.parametrize("forgotten", ["_reads", "_writes"])
def test_a_missing_rule_shows_with_groups_too(forgotten: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the rule for readers, or for writers, some timing leaves wrong bytes."""
    monkeypatch.setattr(f"kvmove.move.hazards.{forgotten}", lambda *_: set())
    assert wrong_timings() > 0
