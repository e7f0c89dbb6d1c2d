"""What a rank's worker does with jobs: moves them, waits, raises for sync loads in time, reports each once."""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from kvmove import CacheLayout, HostPool, Load, Mover, Part, Refused, Store
from kvmove.errors import SyncLoadFailed
from kvmove.offload.worker import OffloadWorker
from kvmove.testing.copies import contents, randomize
from kvmove.testing.protocol_queues import LateQueues

SLOTS, BLOCKS = 8, 6


class Rig:
    """A worker whose copies run when the test says."""

    def __init__(self, *, strict: bool = False, index_capacity: int = 4096) -> None:
        self.layout = CacheLayout.from_tensors([torch.zeros(2, SLOTS, 16, dtype=torch.uint8)], block_dim=1)
        self.pool = HostPool.for_layout(self.layout, BLOCKS)
        randomize(self.layout, self.pool, 3)
        self.queues = LateQueues(random.Random(5))
        mover = Mover(self.layout, self.pool, path="reference", queues=self.queues, index_capacity=index_capacity)
        self.worker = OffloadWorker(mover, strict=strict)

    def slots(self, slots: list[int]) -> np.ndarray:
        return contents(self.layout)[slots]

    def blocks(self, blocks: list[int]) -> np.ndarray:
        return self.pool.blocks.numpy()[blocks].copy()


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig()
    yield rig
    rig.worker.shutdown()
    rig.pool.close()


def test_what_is_stored_comes_back(rig: Rig) -> None:
    """A store and a load of its host blocks bring the same bytes to other slots, in order, without being told."""
    before = rig.slots([0, 1])
    rig.worker.submit_store(1, [0, 1], [4, 2])
    rig.worker.submit_load(2, [4, 2], [6, 7])
    assert rig.worker.finished() == []
    assert rig.worker.jobs == {1, 2}
    rig.queues.drain()
    assert sorted((r.job, r.error) for r in rig.worker.finished()) == [(1, None), (2, None)]
    assert rig.worker.finished() == []
    assert not rig.worker.jobs
    assert np.array_equal(rig.slots([6, 7]), before)


def test_parts_say_what_arrays_cannot(rig: Rig) -> None:
    """A job of several parts is submitted without `dst`."""
    rig.worker.submit_store(1, [Part(0, [3], [0]), Part(0, [5], [1])])
    rig.queues.drain()
    assert np.array_equal(rig.blocks([3, 5]), rig.slots([0, 1]))
    with pytest.raises(Refused, match="without `dst` is made of Parts"):
        rig.worker.submit_load(2, [1, 2])


@pytest.mark.parametrize("expedited", [True, False])
def test_the_engine_waits_for_a_load_without_the_host(rig: Rig, expedited: bool) -> None:
    """After `wait`, what the engine launches sees the blocks of a sync load, and of any other load named."""
    rig.worker.submit_load(1, [3], [5], expedited)
    rig.worker.wait([1, 99])
    seen: list[np.ndarray] = []
    rig.queues.engine(lambda: seen.append(rig.slots([5])))
    assert not seen
    rig.queues.drain()
    assert np.array_equal(seen[0], rig.blocks([3]))


def test_the_engine_waits_for_a_store_before_it_rewrites(rig: Rig) -> None:
    """After `wait` on a store, and after `wait_for_slots`, its slots can be overwritten."""
    before = rig.slots([2, 3])
    rig.worker.submit_store(1, [2], [0])
    rig.worker.submit_store(2, [3], [1])
    rig.worker.wait([1])
    rig.worker.wait_for_slots([3])

    def overwrite() -> None:
        for page in rig.layout.page_views():
            page[[2, 3]] = 0

    rig.queues.engine(overwrite)
    rig.queues.drain()
    assert np.array_equal(rig.blocks([0, 1]), before)


def sync_step(rig: Rig) -> None:
    """Two sync loads in one launch, one in the background."""
    rig.worker.submit_loads(
        [Load(1, [0], [0], "expedited"), Load(2, [1], [1], "expedited"), Load(3, [2], [2])], {1: "alice", 2: "bob"}
    )


def test_a_failed_launch_raises_before_the_forward_and_names_all_requests(rig: Rig) -> None:
    """`wait` raises for both requests of the launch, `check` not again, and the load beside them goes on."""
    rig.queues.refuse(0)
    sync_step(rig)
    with pytest.raises(SyncLoadFailed, match="job 1 of request alice, job 2 of request bob") as caught:
        rig.worker.wait([1, 2])
    assert caught.value.requests == ("alice", "bob")
    assert caught.value.jobs == (1, 2)
    rig.worker.check()
    rig.queues.drain()
    assert {r.job: r.error is None for r in rig.worker.finished()} == {1: False, 2: False, 3: True}


def test_a_failure_raises_at_the_output_sync_even_if_it_was_reported_before(rig: Rig) -> None:
    """An engine that polls results first must still not publish the step."""
    rig.queues.refuse(0)
    sync_step(rig)
    rig.queues.drain()
    assert sorted(r.job for r in rig.worker.finished()) == [1, 2, 3]
    with pytest.raises(SyncLoadFailed) as caught:
        rig.worker.check()
    assert caught.value.requests == ("alice", "bob")
    rig.worker.check()


def test_a_device_that_breaks_raises_at_the_output_sync() -> None:
    """What shows after submission is raised by `check`; with `strict`, already by `wait`."""
    for strict in (False, True):
        rig = Rig(strict=strict)
        sync_step(rig)
        if strict:
            rig.queues.break_down()
            with pytest.raises(SyncLoadFailed, match="illegal memory access") as caught:
                rig.worker.wait([1, 2])
        else:
            rig.worker.wait([1, 2])
            rig.queues.break_down()
            with pytest.raises(SyncLoadFailed, match="illegal memory access") as caught:
                rig.worker.check()
        assert caught.value.requests == ("alice", "bob")
        assert sorted(r.job for r in rig.worker.finished() if r.error) == [1, 2, 3]
        rig.pool.close()


def test_a_dead_worker_fails_its_jobs(rig: Rig) -> None:
    """Loads and stores submitted after a shutdown are reported as failed; sync loads raise when submitted."""
    rig.worker.submit_store(1, [0], [0])
    rig.worker.shutdown()
    assert rig.worker.is_dead
    rig.worker.submit_store(2, [0], [0])
    rig.worker.submit_load(3, [0], [1])
    with pytest.raises(SyncLoadFailed, match="this worker is dead: it was shut down") as caught:
        rig.worker.submit_load(4, [0], [2], expedited=True, request="alice")
    assert caught.value.requests == ("alice",)
    assert {r.job: r.error is None for r in rig.worker.finished()} == {1: True, 2: False, 3: False, 4: False}
    rig.worker.check()
    rig.worker.wait_for_slots([0])
    rig.worker.shutdown()


def test_a_broken_device_makes_the_worker_dead(rig: Rig) -> None:
    """Jobs in flight fail, and those submitted later too."""
    rig.worker.submit_load(1, [0], [0])
    rig.queues.break_down()
    assert [r.error is None for r in rig.worker.finished()] == [False]
    rig.worker.submit_store(2, [0], [0])
    assert rig.worker.is_dead
    assert [(r.job, r.error is None) for r in rig.worker.finished()] == [(2, False)]


def test_without_room_for_indices_a_job_fails_and_the_worker_goes_on() -> None:
    """A store is not worth blocking for: its key is forgotten; a sync load raises."""
    rig = Rig(index_capacity=4)
    rig.worker.submit_load(1, [0, 1], [0, 1])
    rig.worker.submit_store(2, [5], [5])
    with pytest.raises(SyncLoadFailed):
        rig.worker.submit_load(3, [0], [4], expedited=True)
    rig.queues.drain()
    assert {r.job: r.error is None for r in rig.worker.finished()} == {1: True, 2: False, 3: False}
    assert not rig.worker.is_dead
    rig.worker.submit_load(3, [0], [4], expedited=True)
    rig.worker.check()
    rig.worker.shutdown()
    rig.pool.close()


def test_what_is_wrong_is_refused_and_forgotten(rig: Rig) -> None:
    """Slots out of range from a stale block table and ids in use raise `Refused`; nothing is left to report."""
    with pytest.raises(Refused, match="slot"):
        rig.worker.submit_load(1, [0], [SLOTS])
    with pytest.raises(Refused):
        rig.worker.submit_stores([Store(1, [0], [BLOCKS])])
    assert not rig.worker.jobs
    rig.worker.submit_load(1, [0], [0])
    with pytest.raises(Refused, match="job 1 is in flight"):
        rig.worker.submit_store(1, [0], [0])
    rig.queues.drain()
    assert [r.job for r in rig.worker.finished()] == [1]


def test_the_error_travels_between_processes() -> None:
    """A worker's process sends it to the scheduler's."""
    error = SyncLoadFailed("no", jobs=[4, 5], requests=["a"])
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.jobs, copy.requests, copy.job) == ("no", (4, 5), ("a",), 4)
