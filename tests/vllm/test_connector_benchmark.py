"""`benchmarks.vllm_worker` over kvmove's worker on both sides, on the CPU: what it checks, and how it counts."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from benchmarks import vllm_worker
from benchmarks.vllm_worker import Jobs, Shape, canonical, check_exact, our_worker

SMALL = (
    Shape("pages of 64", ((64, 64, 32),)),
    Shape("chunks", ((64, 64),), blocks_per_chunk=3),
    Shape("two groups", ((64, 32), (48,))),
)


def make(shape: Shape) -> tuple[Any, Jobs]:
    caches = canonical(shape, 24, torch.device("cpu"))
    return caches, Jobs(our_worker(caches, shape, 9), shape)


@pytest.mark.parametrize("shape", SMALL, ids=lambda s: s.name)
def test_a_right_worker_passes(shape: Shape) -> None:
    """Every byte of the cache is compared, twice, with other blocks."""
    caches, jobs = make(shape)
    rng = random.Random(1)
    for _ in range(2):
        check_exact(jobs, caches, shape, 24, 9, rng)
    jobs.worker.shutdown()


@pytest.mark.parametrize("tensor", [0, 2])
def test_a_wrong_byte_ends_the_benchmark(tensor: int) -> None:
    """In a block that was loaded, or in a group that was not."""
    shape = SMALL[2]
    caches, jobs = make(shape)
    load = jobs.load

    def wrong(*args: Any, **kwargs: Any) -> Any:
        result = load(*args, **kwargs)
        caches.tensors[tensor].tensor[3, 5] += 1
        return result

    jobs.load = wrong  # type: ignore[method-assign]
    with pytest.raises(SystemExit, match="the result is wrong: KVMoveWorker, two groups, tensor"):
        check_exact(jobs, caches, shape, 24, 9, random.Random(1))
    jobs.worker.shutdown()


def test_rows_have_both_sides() -> None:
    """A store, a load and a sync load of each size, with the repetitions that were counted."""
    shape = Shape("pages of 4 KiB", ((4096,) * 4,))
    caches = canonical(shape, 80, torch.device("cpu"))
    jobs = {who: Jobs(our_worker(caches, shape, 70), shape) for who in ("theirs", "ours")}
    rows = list(vllm_worker._measure_size(shape, 1, jobs, (80, 70), 3, random.Random(1), "a note"))
    assert [row.id for row in rows] == [
        "store, 1 MiB, pages of 4 KiB",
        "sync load, 1 MiB, pages of 4 KiB",
        "sync load, wall, 1 MiB, pages of 4 KiB",
        "sync load, caller, 1 MiB, pages of 4 KiB",
    ]
    assert all(row.runs == 3 and row.theirs is not None and row.value > 0 and row.note == "a note" for row in rows)
    assert [row.target for row in rows] == [1.0, 1.0, 1.0, None]
    for each in jobs.values():
        each.worker.shutdown()


def test_the_benchmark_needs_a_gpu() -> None:
    """It says so, and measures nothing."""
    if torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(SystemExit, match="CUDA device"):
        vllm_worker.main([])
