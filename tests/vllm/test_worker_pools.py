"""The host memory of several ranks: one copy where all hold the same bytes, and nothing left behind. No vLLM here."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from canonical_caches import CachePlan, TensorPlan, Transfer, memory
from test_worker_transfers import run

from kvmove.errors import PinningError, Refused
from kvmove.integrations.vllm import host_pool
from kvmove.integrations.vllm.caches import describe
from kvmove.integrations.vllm.host_pool import SharedBy, make_pool
from kvmove.integrations.vllm.worker import Transfers
from kvmove.move import HostPool

PLAN = CachePlan(8, 6, 2, (TensorPlan(64), TensorPlan(32)), (((0, 64), (1, 32)),), 5)


def on_ranks(count: int, work: Callable[[int, SharedBy], None]) -> list[BaseException]:
    """Do `work` on every rank at once, each in a thread. Returns what was raised."""
    barrier, name = threading.Barrier(count, timeout=30), f"test engine/{uuid.uuid4()}"
    raised: list[BaseException] = []

    def one(rank: int) -> None:
        try:
            work(rank, SharedBy(name, rank, lambda: barrier.wait() and None))
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return raised


def left_behind() -> list[Path]:
    return list(Path("/dev/shm").glob("kvmove.vllm.test*"))


def test_what_one_rank_stores_all_ranks_load() -> None:
    """Rank 0 stores, as vLLM has it where ranks hold the same bytes; the others load it; the name is gone by then."""
    stored, loaded = threading.Event(), []
    kept = [t.tensor[[1, 2, 3]].clone() for t in PLAN.build().tensors]

    def rank(number: int, shared_by: SharedBy) -> None:
        caches = PLAN.build()
        described = describe(caches, PLAN.blocks_per_chunk)
        pool = make_pool(described.layout, PLAN.num_chunks, shared_by)
        transfers = Transfers(described, pool, path="reference")
        if number == 0:
            run(transfers, 1, Transfer(True, (1, 2, 3), (3,), (0,), (4, 2)))
            assert [e.error for e in transfers.finished()] == [None]
            stored.set()
        else:
            assert stored.wait(30)
            run(transfers, 1, Transfer(False, (5, 6, 7), (3,), (0,), (4, 2), True))
            loaded.append([t.tensor[[5, 6, 7]].clone() for t in caches.tensors])
        shared_by.barrier()
        transfers.shutdown()

    assert on_ranks(3, rank) == []
    assert len(loaded) == 2
    for tensors in loaded:
        assert all(bool((a == b).all()) for a, b in zip(tensors, kept, strict=True))
    assert left_behind() == []


def test_a_rank_that_cannot_have_its_memory_does_not_hang_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """The creator fails: it says why, and those who wait for its pool give up; nothing is left behind."""
    monkeypatch.setattr(host_pool, "ATTACH_TIMEOUT_S", 0.2)

    def fails(*args: object, **kwargs: object) -> HostPool:
        raise PinningError("no memory", asked_bytes=1, pinned_bytes=0)

    monkeypatch.setattr(HostPool, "for_layout", fails)
    layout = describe(PLAN.build(), PLAN.blocks_per_chunk).layout
    raised = on_ranks(2, lambda rank, shared_by: make_pool(layout, 4, shared_by) and None)
    assert {type(error) for error in raised} == {PinningError, Refused}
    assert left_behind() == []


def test_ranks_have_memory_of_their_own_otherwise() -> None:
    """Without sharing, what one worker stores is not seen by another."""
    first, second = (PLAN.build() for _ in range(2))
    workers = []
    for caches in (first, second):
        described = describe(caches, PLAN.blocks_per_chunk)
        workers.append(Transfers(described, make_pool(described.layout, PLAN.num_chunks), path="reference"))
    run(workers[0], 1, Transfer(True, (1,), (1,), (0,), (0,)))
    before = memory(second)
    run(workers[1], 1, Transfer(False, (1,), (1,), (0,), (0,), True))
    assert not all(np.array_equal(a, b) for a, b in zip(before, memory(second), strict=True))
    assert not bool(second.tensors[0].tensor[1].any())  # memory that nobody has written is zero
    for worker in workers:
        worker.shutdown()
