"""kvmove's worker over vLLM's canonical caches on a GPU, by every path that its mover chooses. No vLLM here."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from canonical_caches import CachePlan, TensorPlan, Transfer, memory
from test_worker_transfers import Model, run

from kvmove.integrations.vllm.caches import describe
from kvmove.integrations.vllm.host_pool import make_pool
from kvmove.integrations.vllm.worker import Transfers

pytestmark = pytest.mark.gpu

KIB = 1 << 10
PLANS = {
    "dense, 8 KiB pages": CachePlan(96, 64, 1, (TensorPlan(8 * KIB),) * 6, (tuple((i, 8 * KIB) for i in range(6)),), 1),
    "64 KiB pages, 4 blocks a chunk": CachePlan(
        96, 20, 4, (TensorPlan(64 * KIB),) * 4, (tuple((i, 64 * KIB) for i in range(4)),), 2
    ),
    "MLA, odd rows": CachePlan(96, 64, 3, (TensorPlan(656, gap=16),) * 5, (tuple((i, 656) for i in range(5)),), 3),
    "one page of a megabyte": CachePlan(40, 32, 1, (TensorPlan(1 << 20),), (((0, 1 << 20),),), 4),
    "groups in one memory": CachePlan(
        96, 64, 2, (TensorPlan(4 * KIB), TensorPlan(4 * KIB)), (((0, 4 * KIB), (1, 4 * KIB)), ((0, 3000), (1, 4000))), 5
    ),
}


def _transfers(plan: CachePlan, rng: random.Random) -> list[Transfer]:
    """Stores of random blocks of group 0 to random chunks, each followed by loads of parts of them."""
    k, others = plan.blocks_per_chunk, (0,) * (len(plan.refs) - 1)
    made = []
    for _ in range(6):
        chunks = rng.sample(range(plan.num_chunks), rng.randrange(2, plan.num_chunks // 2))
        blocks = [rng.randrange(plan.num_blocks) for _ in range(len(chunks) * k)]
        made.append(Transfer(True, tuple(blocks), (len(blocks), *others), (0, *others), tuple(chunks)))
        for _ in range(2):
            first = rng.randrange(k)
            count = min(len(chunks), plan.num_blocks // k)
            size = count * k - first - rng.randrange(k)
            target = rng.sample(range(plan.num_blocks), size) if size > 0 else []
            if target:
                own = tuple(chunks[: -(-(first + size) // k)])
                made.append(
                    Transfer(False, tuple(target), (size, *others), (first, *others), own, bool(rng.randrange(2)))
                )
    return made


@pytest.mark.parametrize("name", PLANS)
def test_transfers_move_what_the_records_name(name: str) -> None:
    """After many stores and loads, which nobody waited for in between, all memory is what the model says."""
    plan = PLANS[name]
    model, caches = Model(plan), plan.build("cuda")
    described = describe(caches, plan.blocks_per_chunk)
    pool = make_pool(described.layout, plan.num_chunks)
    transfers = Transfers(described, pool)
    jobs = _transfers(plan, random.Random(11))
    for job, t in enumerate(jobs):
        run(transfers, job, t)
        model.run(t)
    torch.cuda.synchronize()
    ended = transfers.finished()
    assert sorted(e.job for e in ended) == list(range(len(jobs)))
    assert all(e.error is None and e.seconds is not None and e.seconds > 0 for e in ended)
    for got, expected in zip(memory(caches), memory(model.caches), strict=True):
        assert np.array_equal(got, expected)
    transfers.shutdown()


def test_the_host_does_not_wait_for_a_sync_load() -> None:
    """Behind a long kernel, submission and wait return while it runs; what is launched next sees the loaded bytes."""
    plan = PLANS["64 KiB pages, 4 blocks a chunk"]
    caches = plan.build("cuda")
    described = describe(caches, plan.blocks_per_chunk)
    transfers = Transfers(described, make_pool(described.layout, plan.num_chunks))
    kept = caches.tensors[2].tensor[5].clone()
    run(transfers, 1, Transfer(True, (5, 6, 7, 8), (4,), (0,), (3,)))
    torch.cuda.synchronize()
    assert [e.job for e in transfers.finished()] == [1]
    torch.cuda._sleep(200_000_000)  # about 0.1 s
    busy = torch.cuda.Event()
    busy.record()
    run(transfers, 2, Transfer(False, (20,), (1,), (0,), (3,), True))
    seen = caches.tensors[2].tensor[20].clone()
    assert not busy.query()
    torch.cuda.synchronize()
    assert torch.equal(seen, kept)
    transfers.shutdown()
