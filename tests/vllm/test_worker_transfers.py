"""kvmove's worker moves the bytes that vLLM's records name, and no others. Runs without vLLM."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from canonical_caches import (
    CachePlan,
    CanonicalKVCacheRef,
    CanonicalKVCaches,
    CanonicalKVCacheTensor,
    GpuBlocks,
    TensorPlan,
    Transfer,
    cache_plans,
    histories,
    memory,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from kvmove.errors import LayoutError, MoverBusy, RecordError, Refused, SyncLoadFailed
from kvmove.integrations.vllm import worker
from kvmove.integrations.vllm.caches import describe
from kvmove.integrations.vllm.host_pool import make_pool
from kvmove.integrations.vllm.worker import Transfers
from kvmove.move import Mover, Ticket, load_batch
from kvmove.records import JobKind, Lane, Load
from kvmove.testing.protocol_queues import LateQueues

POISON = 0x5A


class Model:
    """What transfers have to do, block by block and byte by byte, from the description of vLLM's records."""

    def __init__(self, plan: CachePlan) -> None:
        self.caches = plan.build()
        self.per_chunk = plan.blocks_per_chunk
        self.host: dict[tuple[int, int, int, int], np.ndarray] = {}  # chunk, place, group, tensor: bytes

    def _rows(self, group: int) -> list[tuple[int, int]]:
        """Tensors, and how many bytes of a row: layers in the same memory share the row's beginning."""
        refs = self.caches.group_data_refs[group]
        return [(i, max(r.page_size_bytes for r in refs if r.tensor_idx == i)) for i in {r.tensor_idx for r in refs}]

    def run(self, t: Transfer) -> None:
        block, chunks = 0, list(t.chunk_ids)
        for group, (size, index) in enumerate(zip(t.group_sizes, t.block_indices, strict=True)):
            places = range(index % self.per_chunk, index % self.per_chunk + size)
            for n, place in enumerate(places):
                for tensor, num_bytes in self._rows(group):
                    rows = self.caches.tensors[tensor].tensor.view(torch.int8)
                    page = rows[t.block_ids[block + n]].numpy()[:num_bytes]
                    at = (chunks[place // self.per_chunk], place % self.per_chunk, group, tensor)
                    if t.is_store:
                        self.host[at] = page.copy()
                    else:
                        page[:] = self.host[at]
            block += size
            if size:
                del chunks[: places[-1] // self.per_chunk + 1]


def run(transfers: Transfers, job: int, t: Transfer) -> None:
    gpu, chunks = GpuBlocks(t.block_ids, t.group_sizes, t.block_indices), np.array(t.chunk_ids, dtype=np.int32)
    if t.is_store:
        transfers.store(job, gpu, chunks)
    else:
        transfers.load(job, gpu, chunks, expedited=t.expedited)
        if t.expedited:
            transfers.wait({job})


def make(plan: CachePlan, path: str | None = "reference", **kwargs: object) -> tuple[CanonicalKVCaches, Transfers]:
    caches = plan.build()
    described = describe(caches, plan.blocks_per_chunk)
    pool = make_pool(described.layout, plan.num_chunks)
    pool.blocks.fill_(POISON)
    return caches, Transfers(described, pool, path=path, **kwargs)  # type: ignore[arg-type]


@given(st.data())
@settings(max_examples=80)
def test_transfers_move_what_the_records_name(data: st.DataObject) -> None:
    """After every store and load, all memory of the cache is what a byte-by-byte model of the records says."""
    plan = data.draw(cache_plans())
    model = Model(plan)
    caches, transfers = make(plan)
    for job, t in enumerate(data.draw(histories(plan))):
        run(transfers, job, t)
        model.run(t)
        ended = transfers.finished()
        assert [(e.job, e.error, e.kind is JobKind.STORE) for e in ended] == [(job, None, t.is_store)]
        for got, expected in zip(memory(caches), memory(model.caches), strict=True):
            assert np.array_equal(got, expected), t
    transfers.shutdown()


@given(st.data())
@settings(max_examples=8)
def test_the_kernels_move_the_same(data: st.DataObject) -> None:
    """The path that a GPU would take, interpreted, gives the same memory."""
    plan = data.draw(cache_plans())
    model = Model(plan)
    caches, transfers = make(plan, path="direct")
    for job, t in enumerate(data.draw(histories(plan))):
        run(transfers, job, t)
        model.run(t)
    assert all(e.error is None for e in transfers.finished())
    for got, expected in zip(memory(caches), memory(model.caches), strict=True):
        assert np.array_equal(got, expected)
    transfers.shutdown()


@given(st.data())
@settings(max_examples=80)
def test_late_copies_change_nothing(data: st.DataObject) -> None:
    """Copies that run late, in any order that streams allow, end as if each had run when it was submitted."""
    plan = data.draw(cache_plans())
    model = Model(plan)
    queues = LateQueues(random.Random(data.draw(st.integers(0, 999))))
    caches, transfers = make(plan, queues=queues)
    jobs = data.draw(histories(plan))
    for job, t in enumerate(jobs):
        run(transfers, job, t)
        model.run(t)
        queues.run(data.draw(st.integers(0, 3)))
    queues.drain()
    assert sorted(e.job for e in transfers.finished()) == list(range(len(jobs)))
    for got, expected in zip(memory(caches), memory(model.caches), strict=True):
        assert np.array_equal(got, expected)
    transfers.shutdown()


DENSE = CachePlan(8, 6, 1, (TensorPlan(64), TensorPlan(64)), (((0, 64), (1, 64)),), 7)


def dense(**kwargs: object) -> tuple[CanonicalKVCaches, Transfers]:
    return make(DENSE, **kwargs)


def store(transfers: Transfers, job: int, slots: list[int], chunks: list[int]) -> None:
    run(transfers, job, Transfer(True, tuple(slots), (len(slots),), (0,), tuple(chunks)))


def load(transfers: Transfers, job: int, slots: list[int], chunks: list[int], expedited: bool = False) -> None:
    gpu = GpuBlocks(slots, (len(slots),), (0,))
    transfers.load(job, gpu, np.array(chunks, dtype=np.int32), expedited=expedited)


def test_sync_loads_of_a_step_go_together() -> None:
    """vLLM submits sync loads one by one: they are launched in one piece, when the step waits for them."""
    queues = LateQueues(random.Random(1))
    _, transfers = dense(queues=queues)
    store(transfers, 0, [0, 1, 2, 3], [0, 1, 2, 3])
    queues.drain()
    load(transfers, 1, [4], [0], expedited=True)
    load(transfers, 2, [5, 6], [1, 2], expedited=True)
    assert queues.is_idle
    transfers.wait({1, 2})
    # One launch, and one wait of the engine's stream for it.
    assert queues.run(100) == 2
    assert sorted((e.job, e.lane) for e in transfers.finished() if e.kind is JobKind.LOAD) == [
        (1, Lane.EXPEDITED),
        (2, Lane.EXPEDITED),
    ]
    transfers.shutdown()


def test_the_engine_waits_and_the_host_does_not() -> None:
    """After `wait`, what the engine launches sees a sync load and may rewrite what was stored; nothing has run yet."""
    queues = LateQueues(random.Random(2))
    caches, transfers = dense(queues=queues)
    before = caches.tensors[0].tensor[0].clone()
    store(transfers, 0, [0], [3])
    transfers.wait({0})
    queues.engine(lambda: caches.tensors[0].tensor[0].fill_(1))
    load(transfers, 1, [5], [3], expedited=True)
    transfers.wait({1})
    seen: list[torch.Tensor] = []
    queues.engine(lambda: seen.append(caches.tensors[0].tensor[5].clone()))
    assert not seen
    queues.drain()
    assert torch.equal(seen[0], before)
    transfers.shutdown()


def test_a_bulk_load_can_be_waited_for() -> None:
    """A flush may name an async load: the engine's stream then waits before it rewrites the destination."""
    queues = LateQueues(random.Random(3))
    caches, transfers = dense(queues=queues)
    store(transfers, 0, [0], [3])
    load(transfers, 1, [5], [3])
    transfers.wait({1, 77})
    queues.engine(lambda: caches.tensors[0].tensor[5].fill_(9))
    queues.drain()
    assert bool((caches.tensors[0].tensor[5] == 9).all())
    transfers.shutdown()


def test_a_sync_load_that_cannot_be_launched_raises_before_the_forward_pass() -> None:
    """`wait` names every sync load of the launch; both are reported as failed, and later loads work."""
    queues = LateQueues(random.Random(4))
    _, transfers = dense(queues=queues)
    store(transfers, 0, [0, 1], [0, 1])
    queues.drain()
    transfers.finished()
    load(transfers, 1, [4], [0], expedited=True)
    load(transfers, 2, [5], [1], expedited=True)
    queues.refuse(0)
    with pytest.raises(SyncLoadFailed) as caught:
        transfers.wait({1, 2})
    assert caught.value.jobs == (1, 2)
    assert [(e.job, e.error is None) for e in transfers.finished()] == [(1, False), (2, False)]
    load(transfers, 3, [4], [0], expedited=True)
    transfers.wait({3})
    queues.drain()
    assert [(e.job, e.error) for e in transfers.finished()] == [(3, None)]
    transfers.shutdown()


def test_a_chunk_whose_store_failed_is_not_loaded() -> None:
    """Until another store has written it, a load of it fails, in either lane, and moves nothing."""
    queues = LateQueues(random.Random(5))
    caches, transfers = dense(queues=queues)
    queues.refuse(0)
    store(transfers, 0, [0, 1], [2, 3])
    assert [(e.job, e.error is None) for e in transfers.finished()] == [(0, False)]
    assert transfers.bad_chunks == {2, 3}
    before = memory(caches)
    load(transfers, 1, [5, 6], [1, 3])
    load(transfers, 2, [6], [2], expedited=True)
    with pytest.raises(SyncLoadFailed, match="the store of host chunk 2 had failed"):
        transfers.wait({2})
    assert sorted((e.job, e.error) for e in transfers.finished()) == [
        (1, "the store of host chunk 3 had failed"),
        (2, "the store of host chunk 2 had failed"),
    ]
    assert all(np.array_equal(a, b) for a, b in zip(before, memory(caches), strict=True))
    store(transfers, 3, [0], [3])
    load(transfers, 4, [6], [3])
    queues.drain()
    assert [(e.job, e.error) for e in transfers.finished()] == [(3, None), (4, None)]
    assert transfers.bad_chunks == {2}
    transfers.shutdown()


def test_after_shutdown_loads_fail_and_stores_spoil_their_chunks() -> None:
    """A worker that is gone tells whoever waits, in every lane."""
    _, transfers = dense()
    transfers.shutdown()
    store(transfers, 0, [0], [0])
    load(transfers, 1, [1], [1])
    load(transfers, 2, [2], [2], expedited=True)
    with pytest.raises(SyncLoadFailed, match="closed"):
        transfers.wait({0, 1, 2})
    assert sorted(e.job for e in transfers.finished() if e.error) == [0, 1, 2]
    assert transfers.bad_chunks == {0}


def test_a_full_index_ring_delays_and_fails_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a submission finds no room, it waits until the device has ended some of what is in flight."""
    queues = LateQueues(random.Random(6))
    _, transfers = dense(queues=queues)
    store(transfers, 0, [0, 1], [0, 1])
    refused: list[int] = []

    def busy_at_first(mover: Mover, loads: list[Load]) -> Ticket:
        if len(refused) < 3:
            refused.append(loads[0].job)
            queues.run(1)
            raise MoverBusy("no room")
        return load_batch(mover, loads)

    monkeypatch.setattr(worker, "load_batch", busy_at_first)
    load(transfers, 1, [4], [0], expedited=True)
    transfers.wait({1})
    queues.drain()
    assert refused == [1, 1, 1]
    assert [(e.job, e.error) for e in transfers.finished()] == [(0, None), (1, None)]
    transfers.shutdown()


def test_the_block_of_nobody_may_stand_in_a_load_often() -> None:
    """Where a block table has no block, vLLM names block 0: it is passed over, the others arrive."""
    plan = CachePlan(8, 4, 3, (TensorPlan(16),), (((0, 16),),), 3)
    caches, transfers = make(plan)
    run(transfers, 0, Transfer(True, (1, 2, 3, 4, 5, 6, 7), (7,), (0,), (0, 1, 2)))
    before = [caches.tensors[0].tensor[i].clone() for i in range(8)]
    run(transfers, 1, Transfer(False, (0, 7, 0, 0, 5, 6), (6,), (1,), (0, 1, 2), True))
    after = caches.tensors[0].tensor
    assert [torch.equal(after[i], before[j]) for i, j in ((7, 3), (5, 6), (6, 7), (1, 1), (4, 4))] == [True] * 5
    transfers.shutdown()


@pytest.mark.parametrize(
    ("blocks", "sizes", "indices", "chunks"),
    [
        ([1, 2], (2,), (0,), [0]),  # a chunk too few
        ([1, 2], (2,), (0,), [0, 1, 2]),  # a chunk too many
        ([1, 2], (1,), (0,), [0]),  # a block in no group
        ([1], (1, 0), (0, 0), [0]),  # a group too many
    ],
)
def test_numbers_that_do_not_fit_together_are_refused(
    blocks: list[int], sizes: tuple[int, ...], indices: tuple[int, ...], chunks: list[int]
) -> None:
    """Nothing moves, and the job's id is free."""
    _, transfers = dense()
    with pytest.raises(Refused, match="store 5: "):
        transfers.store(5, GpuBlocks(blocks, sizes, indices), np.array(chunks, dtype=np.int32))
    store(transfers, 5, [1], [0])
    assert [e.job for e in transfers.finished()] == [5]
    transfers.shutdown()


def test_a_stale_block_table_is_refused() -> None:
    """A block or chunk outside of what there is names itself."""
    _, transfers = dense()
    with pytest.raises(Refused, match=r"slot 8 \(position 0\) is outside \[0, 8\)"):
        store(transfers, 1, [8], [0])
    with pytest.raises(Refused, match=r"host block 6 \(position 0\) is outside \[0, 6\)"):
        load(transfers, 2, [1], [6])
    with pytest.raises(RecordError, match="holds -1"):
        load(transfers, 3, [-1], [0])
    transfers.shutdown()


def test_caches_that_cannot_be_described_say_what_to_use_instead() -> None:
    """Tensors that overlap, but not block by block, are refused with the remedy."""
    memory_ = torch.zeros(4 * 64 + 32, dtype=torch.int8)
    first, second = memory_[: 4 * 64].view(4, 64), memory_[32:].view(4, 64)
    caches = CanonicalKVCaches(
        [CanonicalKVCacheTensor(first, 64), CanonicalKVCacheTensor(second, 64)],
        [[CanonicalKVCacheRef(0, 64)], [CanonicalKVCacheRef(1, 64)]],
    )
    with pytest.raises(LayoutError, match="Take vLLM's own worker"):
        describe(caches, 1)
    with pytest.raises(LayoutError, match="pages of 65 bytes in tensor 0, of 64 a row"):
        describe(CanonicalKVCaches(caches.tensors[:1], [[CanonicalKVCacheRef(0, 65)]]), 1)


def test_no_room_for_a_chunk_is_refused() -> None:
    """The message names the option to raise."""
    with pytest.raises(Refused, match="cpu_bytes_to_use"):
        make_pool(describe(DENSE.build(), 1).layout, 0)
