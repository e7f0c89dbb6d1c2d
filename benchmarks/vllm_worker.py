"""kvmove's worker beside vLLM's on the same KV cache of this GPU: exact contents first, then rates.

    python -m benchmarks.vllm_worker [--quick] [--output FILE]

Needs a CUDA device and vLLM 0.33's Python files with the Python packages they import; no compiled part of vLLM, and no
model. On a machine without vLLM, from a machine that has a network:

    pip download --no-deps vllm==0.33.0 && python -m zipfile -e vllm-0.33.0-*.whl site
    rm -rf site/vllm/third_party/*/include && find site -name '*.so' -delete     # 8.5 MB as tar.xz
    # carry `site`, and wheels of what `python -c 'import vllm.v1.kv_offload.cpu.gpu_worker'` misses, then
    PYTHONPATH=site python -m benchmarks.vllm_worker

Both workers get the same canonical tensors and the same transfers. vLLM's is its own `CPUOffloadingWorker`: its choice
of technique for each page size, its descriptors, its streams. Where its compiled `swap_blocks_batch` is missing, the
same driver call (`cudaMemcpyBatchAsync`) is made from Python in its place, and the rows say so.

Rates are payload bytes by device time, from each worker's own events. "wall" is from the submission of a sync load
until its data is there, and "caller" is what the submission and the wait keep the host for.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks import report, versus
from benchmarks.versus import Versus
from kvmove.move import cudart

MIB = 1 << 20


@dataclass(frozen=True)
class Shape:
    """A cache: for each group the bytes of its layers' pages."""

    name: str
    groups: tuple[tuple[int, ...], ...]
    blocks_per_chunk: int = 1

    @property
    def block_bytes(self) -> int:
        """Of the first group, which is the one that is measured."""
        return sum(self.groups[0])


SHAPES = (
    Shape("36 x 64 KiB pages", ((64 << 10,) * 36,)),
    Shape("48 x 32 KiB pages", ((32 << 10,) * 48,)),
    Shape("48 x 8 KiB pages", ((8 << 10,) * 48,)),
    Shape("61 x 18 KiB pages (MLA)", ((18432,) * 61,)),
    Shape("36 x 64 KiB pages, 4 blocks a chunk", ((64 << 10,) * 36,), blocks_per_chunk=4),
    Shape("one page of 2.25 MiB", ((36 * (64 << 10),),)),
    Shape("two groups, 24 x 32 KiB pages each", ((32 << 10,) * 24, (32 << 10,) * 24)),
)
SIZES_MIB = (6, 96, 768)


def canonical(shape: Shape, num_blocks: int, device: torch.device) -> Any:
    """The cache in vLLM's own records, every byte random."""
    from vllm.v1.kv_offload.base import CanonicalKVCacheRef, CanonicalKVCaches, CanonicalKVCacheTensor

    tensors: list[Any] = []
    refs = []
    for pages in shape.groups:
        own = []
        for num_bytes in pages:
            rows = torch.empty(num_blocks, num_bytes, dtype=torch.int8, device=device).random_(-128, 127)
            own.append(CanonicalKVCacheRef(len(tensors), num_bytes))
            tensors.append(CanonicalKVCacheTensor(rows, num_bytes))
        refs.append(own)
    return CanonicalKVCaches(tensors, refs)


def their_worker(caches: Any, shape: Shape, num_chunks: int) -> tuple[Any, bool]:
    """vLLM's worker with pinned memory of its own, and whether its compiled copy is there."""
    from vllm.v1.kv_offload.cpu.gpu_worker import CPUOffloadingWorker

    worker = CPUOffloadingWorker(caches, shape.blocks_per_chunk, num_chunks)
    compiled = hasattr(torch.ops._C_cache_ops, "swap_blocks_batch")
    if not compiled:
        from vllm import _custom_ops

        for handler in (worker._store_handler, worker._load_handler, worker._expedited_load_handler):
            if handler._swap_blocks_batch is _custom_ops.swap_blocks_batch:
                handler._swap_blocks_batch = _swap_blocks_batch
    return worker, compiled


def _swap_blocks_batch(
    source: torch.Tensor, destination: torch.Tensor, sizes: torch.Tensor, *, is_src_access_order_any: bool
) -> None:
    stream = torch.cuda.current_stream().cuda_stream
    to, origin = destination.numpy(), source.numpy()
    cudart.memcpy_batch(to, origin, sizes.numpy(), stream, source_rests=is_src_access_order_any)


def our_worker(caches: Any, shape: Shape, num_chunks: int) -> Any:
    """kvmove's worker as `KVMoveOffloadingSpec` makes it."""
    from kvmove.integrations.vllm.caches import describe
    from kvmove.integrations.vllm.host_pool import make_pool
    from kvmove.integrations.vllm.spec import KVMoveWorker
    from kvmove.integrations.vllm.worker import Transfers

    described = describe(caches, shape.blocks_per_chunk)
    return KVMoveWorker(Transfers(described, make_pool(described.layout, num_chunks)))


class Jobs:
    """Submits transfers of whole chunks of the first group to a worker, and waits for their results."""

    def __init__(self, worker: Any, shape: Shape) -> None:
        self.worker, self._shape = worker, shape
        self._next = 0

    def store(self, blocks: Sequence[int], chunks: Sequence[int]) -> Any:
        """A store, to its end. Returns its result."""
        gpu, host = self._specs(blocks, chunks)
        self._next += 1
        self.worker.submit_store(self._next, gpu, host)
        return self._end()

    def load(self, blocks: Sequence[int], chunks: Sequence[int], *, expedited: bool) -> Any:
        """A load, to its end. Returns its result."""
        self._start_load(blocks, chunks, expedited)
        return self._end()

    def sync_load_s(self, blocks: Sequence[int], chunks: Sequence[int]) -> tuple[float, float]:
        """A sync load as a step makes it: seconds until its data is there, and seconds that the host was kept."""
        _synchronize()
        began = time.perf_counter()
        self._start_load(blocks, chunks, True)
        self.worker.wait({self._next})
        kept = time.perf_counter() - began
        _synchronize()
        taken = time.perf_counter() - began
        self._end()
        return taken, kept

    def _start_load(self, blocks: Sequence[int], chunks: Sequence[int], expedited: bool) -> None:
        gpu, host = self._specs(blocks, chunks)
        self._next += 1
        self.worker.submit_load(self._next, host, gpu, expedited=expedited)

    def _specs(self, blocks: Sequence[int], chunks: Sequence[int]) -> tuple[Any, Any]:
        from vllm.v1.kv_offload.base import GPULoadStoreSpec
        from vllm.v1.kv_offload.cpu.common import CPULoadStoreSpec

        others = [0] * (len(self._shape.groups) - 1)
        return GPULoadStoreSpec(list(blocks), [len(blocks), *others], [0, *others]), CPULoadStoreSpec(list(chunks))

    def _end(self) -> Any:
        while True:
            for result in self.worker.get_finished():
                assert result.job_id == self._next
                assert result.success
                return result


def _synchronize() -> None:
    """Wait for the stream of the engine; a test without a GPU has none."""
    if torch.cuda.is_available():
        torch.cuda.current_stream().synchronize()


def check_exact(jobs: Jobs, caches: Any, shape: Shape, num_blocks: int, num_chunks: int, rng: random.Random) -> None:
    """Store blocks, scramble the cache, load them elsewhere, and compare every byte of it.

    Raises:
        SystemExit: a byte differs.
    """
    k = shape.blocks_per_chunk
    count = min(num_blocks // 2, num_chunks * k) // k * k
    source, target = rng.sample(range(num_blocks), count), rng.sample(range(num_blocks), count)
    chunks = rng.sample(range(num_chunks), count // k)
    own = [t.tensor for t in caches.tensors[: len(shape.groups[0])]]
    kept = [t[source].clone() for t in own]
    jobs.store(source, chunks)
    for t in own:
        t.random_(-128, 127)
    before = [t.tensor.clone() for t in caches.tensors]
    jobs.load(target, chunks, expedited=bool(rng.randrange(2)))
    _synchronize()
    for i, t in enumerate(caches.tensors):
        expected = before[i]
        if i < len(own):
            expected[torch.tensor(target, device=t.tensor.device)] = kept[i]
        report.require(torch.equal(t.tensor, expected), f"{type(jobs.worker).__name__}, {shape.name}, tensor {i}")


def measure(shape: Shape, sizes_mib: Sequence[int], repeat: int, device: torch.device) -> Iterator[Versus]:
    """The rows of one shape, both workers in turn."""
    rng = random.Random(7)
    k = shape.blocks_per_chunk
    most = max(sizes_mib) * MIB // shape.block_bytes // k * k
    num_blocks, num_chunks = most * 5 // 4 + k, most // k * 5 // 4 + 1
    caches = canonical(shape, num_blocks, device)
    worker, compiled = their_worker(caches, shape, num_chunks)
    jobs = {"theirs": Jobs(worker, shape), "ours": Jobs(our_worker(caches, shape, num_chunks), shape)}
    note = "" if compiled else "vLLM's batch copies made from Python"
    try:
        for each in jobs.values():
            for _ in range(2):
                check_exact(each, caches, shape, num_blocks, num_chunks, rng)
        for size_mib in sizes_mib:
            yield from _measure_size(shape, size_mib, jobs, (num_blocks, num_chunks), repeat, rng, note)
    finally:
        for each in jobs.values():
            each.worker.shutdown()


def _measure_size(
    shape: Shape,
    size_mib: int,
    jobs: dict[str, Jobs],
    room: tuple[int, int],
    repeat: int,
    rng: random.Random,
    note: str,
) -> Iterator[Versus]:
    k = shape.blocks_per_chunk
    count = max(k, size_mib * MIB // shape.block_bytes // k * k)
    moved = count * shape.block_bytes

    def one(do: Callable[[Jobs, list[int], list[int]], float]) -> dict[str, list[float]]:
        taken: dict[str, list[float]] = {who: [] for who in jobs}
        for i in range(repeat + 2):
            order = list(jobs) if i % 2 else list(reversed(jobs))
            for who in order:
                blocks, chunks = rng.sample(range(room[0]), count), rng.sample(range(room[1]), count // k)
                value = do(jobs[who], blocks, chunks)
                if i >= 2:
                    taken[who].append(value)
        return taken

    what = f"{size_mib} MiB, {shape.name}"
    rates = one(lambda j, b, c: moved / j.store(b, c).transfer_time / 1e9)
    yield versus.compare(f"store, {what}", rates["ours"], rates["theirs"], "GB/s", at_least=1.0, note=note)
    expedited = size_mib < 32
    rates = one(lambda j, b, c: moved / j.load(b, c, expedited=expedited).transfer_time / 1e9)
    lane = "sync" if expedited else "async"
    yield versus.compare(f"{lane} load, {what}", rates["ours"], rates["theirs"], "GB/s", at_least=1.0, note=note)
    waits: dict[str, list[float]] = {who: [] for who in jobs}

    def sync(j: Jobs, blocks: list[int], chunks: list[int]) -> float:
        taken, kept = j.sync_load_s(blocks, chunks)
        waits["ours" if j is jobs["ours"] else "theirs"].append(kept * 1e6)
        return taken * 1e6

    walls = one(sync)
    yield versus.compare(f"sync load, wall, {what}", walls["ours"], walls["theirs"], "us", at_most=1.0, note=note)
    yield versus.compare(f"sync load, caller, {what}", waits["ours"][2:], waits["theirs"][2:], "us", note=note)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and write. Returns the exit status: 1 where a target was missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--quick", action="store_true", help="two shapes, 6 and 96 MiB, few repetitions")
    parser.add_argument("--output", type=Path, default=None)
    args = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        raise SystemExit("this benchmark needs a CUDA device")
    shapes, sizes = (SHAPES[:1] + SHAPES[2:3], SIZES_MIB[:2]) if args.quick else (SHAPES, SIZES_MIB)
    device = torch.device("cuda", torch.cuda.current_device())
    rows: list[Versus] = []
    for shape in shapes:
        began = time.perf_counter()
        rows += measure(shape, sizes, 5 if args.quick else 15, device)
        torch.cuda.empty_cache()
        print(f"{shape.name}: contents exact, {time.perf_counter() - began:.0f} s", flush=True)
    held = [row.ratio for row in rows if row.ratio is not None and "GB/s" in row.unit]
    print(f"median of the rates' ratios: {statistics.median(held):.2f}")
    versus.write(args.output or report.default_path("vllm-worker"), rows, {"vllm": _vllm_version()})
    return int(any(row.ok is False for row in rows))


def _vllm_version() -> str:
    from importlib.metadata import version

    return version("vllm")


if __name__ == "__main__":
    raise SystemExit(main())
