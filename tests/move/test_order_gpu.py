"""The order rules on real streams: histories of overlapping copies on a GPU end as if run one by one."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

from kvmove import CacheLayout, HostPool, Load, Mover, Store, load_batch, store_batch
from kvmove.move import paths
from kvmove.move.paths.staged import StagedPath

pytestmark = pytest.mark.gpu

SLOTS, BLOCKS, WORDS = 48, 40, 16384  # a block of 4 layers x K and V x 128 KiB takes about 20 us each way


@pytest.mark.parametrize("path", ["direct", "staged", "engine", "mixed"])
@pytest.mark.parametrize("seed", range(3))
def test_overlapping_loads_stores_and_engine_writes_never_leave_wrong_bytes(
    seed: int, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every engine read sees, and cache and pool end with, what running the history one by one gives."""
    # Chunks of two blocks: most staged jobs have many pieces, which other jobs overtake or have to wait for.
    monkeypatch.setitem(paths._MAKERS, "staged", partial(StagedPath, ring_bytes=8 << 20, section_bytes=2 << 20))
    rng = np.random.default_rng(seed)
    tensors = [torch.zeros(2, SLOTS, WORDS, dtype=torch.int64, device="cuda") for _ in range(4)]
    layout = CacheLayout.from_tensors(tensors, block_dim=1)
    # The model has one number a block: every word of it holds that number.
    slots, blocks = np.zeros(SLOTS, dtype=np.int64), np.arange(1000, 1000 + BLOCKS)
    reads: list[tuple[torch.Tensor, np.ndarray]] = []
    reported = []
    with HostPool.for_layout(layout, BLOCKS) as pool:
        words = pool.blocks.view(torch.int64)
        words.copy_(torch.from_numpy(blocks)[:, None].expand_as(words))
        mover = Mover(layout, pool)
        for job in range(150):
            count = int(rng.integers(1, 12))
            some_slots, some_blocks = rng.permutation(SLOTS)[:count], rng.permutation(BLOCKS)[:count]
            way = str(rng.choice(["direct", "staged", "engine"])) if path == "mixed" else path
            kind = rng.choice(["expedited", "bulk", "store", "write"], p=[0.3, 0.3, 0.25, 0.15])
            if kind == "store":
                store_batch(mover, [Store(job, some_slots, some_blocks)], path=way)
                blocks[some_blocks] = slots[some_slots]
            elif kind == "write":
                mover.wait_for_slots(some_slots)
                for tensor in tensors:
                    tensor[:, torch.from_numpy(some_slots).cuda()] = -job
                slots[some_slots] = -job
            else:
                ticket = load_batch(mover, [Load(job, some_blocks, some_slots, kind)], path=way)
                slots[some_slots] = blocks[some_blocks]
                if kind == "expedited":
                    ticket.wait()
                    at = torch.from_numpy(some_slots).cuda()
                    reads.append((torch.stack([t[:, at, :: WORDS - 1] for t in tensors]), slots[some_slots].copy()))
            if rng.random() < 0.2:
                reported += [r.job for r in mover.finished() if r.error is None]
        mover.close()
        reported += [r.job for r in mover.finished() if r.error is None]
        assert len(set(reported)) == len(reported)
        for got, expected in reads:
            wanted = torch.from_numpy(expected)[None, None, :, None].expand(got.shape)
            assert torch.equal(got.cpu(), wanted)
        for tensor in tensors:
            assert torch.equal(tensor.cpu(), torch.from_numpy(slots)[None, :, None].expand(tensor.shape))
        assert torch.equal(words, torch.from_numpy(blocks)[:, None].expand_as(words))


def test_results_say_how_long_a_job_was_queued() -> None:
    """Every job of a call has a time from the caller's stream to its start; points are used again, each by one call."""
    layout = CacheLayout.from_tensors([torch.zeros(16, 4096, dtype=torch.uint8, device="cuda")], block_dim=0)
    with HostPool.for_layout(layout, 16) as pool, Mover(layout, pool) as mover:
        for turn in range(3):
            load_batch(
                mover, [Load(0, [1], [2], "expedited"), Load(1, [3], [4]), Load(2, [5], [6])], by_layer=turn == 1
            )
            torch.cuda.synchronize()
            results = mover.finished()
            assert len(results) == 3
            assert all(r.queued_ns is not None and r.queued_ns >= 0 for r in results)
            assert all(r.elapsed_ns is not None and r.elapsed_ns > 0 for r in results)
        assert len(mover._queues._spare_points) == 1  # type: ignore[attr-defined]
        after = torch.cuda.Event()
        after.record()
        load_batch(mover, [Load(0, [1], [2])], after=after)
        torch.cuda.synchronize()
        assert [r.queued_ns for r in mover.finished()] == [None]  # nothing is known of somebody else's event
