"""How fast blocks cross PCIe by the direct path, beside a contiguous DMA of the same bytes in the same run.

    python -m benchmarks.bench_direct [--output PATH] [--quick]

Needs a CUDA device. Each figure interleaves the two: one DMA, one load, one DMA, ...; the ratio is taken pair by
pair, so that drifting clocks cancel. A cache of 64 pages a block (32 layers of K and V) with pages of 4, 16 and
32 KiB is loaded and stored in random block order. Times are GPU times between events around the copies, except
the caller's time, which is what `load_batch` takes on the CPU. Every cache is checked byte by byte before it is
measured; a path that copies wrongly is not measured.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from benchmarks import report
from kvmove import CacheLayout, HostPool, Load, Mover, Store, load_batch, store_batch

MIB = 1 << 20
LAYERS = 32  # K and V apart: 64 pages a block
PAGE_KIB = (4, 16, 32)
SIZES_MIB = (2, 6, 24, 96, 384, 768)
# Shares of contiguous DMA that loads from 96 MiB on are to reach; an SM's PCIe reads are smaller than the copy
# engine's and saturate at 0.926 of it.
TARGET = {4: 0.88, 16: 0.90, 32: 0.90}
BULK_PROGRAMS = 16


class Bench:
    """One cache and one pool, with a contiguous buffer of the same size on either side for the ceiling."""

    def __init__(self, page_bytes: int, layers: int, num_blocks: int) -> None:
        tensors = [torch.zeros(2, num_blocks, page_bytes, dtype=torch.uint8, device="cuda") for _ in range(layers)]
        self.layout = CacheLayout.from_tensors(tensors, block_dim=1)
        self.pool = HostPool.for_layout(self.layout, num_blocks)
        self.pool.blocks.random_(0, 256, generator=torch.Generator().manual_seed(1))
        self.mover = Mover(self.layout, self.pool, path="direct")
        # The ceiling has a buffer of its own: one copy must not cross the pool's registrations.
        self.flat_host = torch.empty(self.pool.num_bytes, dtype=torch.uint8, pin_memory=True)
        self.flat_host.random_(0, 256)
        self.flat = torch.empty(self.pool.num_bytes, dtype=torch.uint8, device="cuda")
        self.stream = torch.cuda.Stream()
        self.order = np.random.default_rng(2)
        self.job = 0

    def close(self) -> None:
        self.mover.close()
        self.pool.close()

    def indices(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        blocks = self.order.permutation(self.pool.num_blocks)[:count]
        slots = self.order.permutation(self.layout.num_slots)[:count]
        return blocks, slots

    def dma_ns(self, num_bytes: int, *, to_device: bool) -> float:
        """GPU time of one contiguous copy."""
        host = self.flat_host[:num_bytes]
        device = self.flat[:num_bytes]
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        with torch.cuda.stream(self.stream):
            begin.record()
            if to_device:
                device.copy_(host, non_blocking=True)
            else:
                host.copy_(device, non_blocking=True)
            end.record()
        end.synchronize()
        return begin.elapsed_time(end) * 1e6

    def load_ns(self, count: int, lane: str) -> float:
        """GPU time of one load of `count` random blocks."""
        blocks, slots = self.indices(count)
        self.job += 1
        load_batch(self.mover, [Load(self.job, blocks, slots, lane)])
        return self._end_ns()

    def store_ns(self, count: int) -> float:
        """GPU time of one store of `count` random slots."""
        blocks, slots = self.indices(count)
        self.job += 1
        store_batch(self.mover, [Store(self.job, slots, blocks)])
        return self._end_ns()

    def _end_ns(self) -> float:
        torch.cuda.synchronize()
        (result,) = self.mover.finished()
        report.require(result.error is None and result.elapsed_ns is not None, f"a job ended as {result}")
        return float(result.elapsed_ns or 0)

    def check(self) -> None:
        """Load and store random blocks and compare every byte of the cache and the pool, on the GPU."""
        count = max(1, self.pool.num_blocks // 3)
        blocks, slots = self.indices(count)
        views = self.layout.page_views()
        for view in views:
            view.fill_(0xA5)
        self.job += 1
        load_batch(self.mover, [Load(self.job, blocks, slots, "bulk")])
        self._end_ns()
        untouched = torch.ones(self.layout.num_slots, dtype=torch.bool, device="cuda")
        untouched[torch.from_numpy(slots).cuda()] = False
        for page, view in zip(self.layout.pages, views, strict=True):
            host = self.pool.blocks[:, page.host_offset_bytes : page.host_offset_bytes + page.num_bytes]
            same = torch.equal(view[slots], host[blocks].cuda())
            report.require(same and bool((view[untouched] == 0xA5).all()), f"loads of {page.num_bytes} byte pages")
        before = self.pool.blocks.clone()
        _, sources = self.indices(count)
        for view in views:
            view.random_(0, 256)
        self.job += 1
        store_batch(self.mover, [Store(self.job, sources, blocks)])
        self._end_ns()
        before[blocks, : self.layout.block_bytes] = torch.cat([view[sources] for view in views], dim=1).cpu()
        report.require(torch.equal(before, self.pool.blocks), "stores")


def paired(reps: int, dma: Callable[[], float], ours: Callable[[], float]) -> tuple[list[float], list[float]]:
    """Times of both, taken in turn, after two that are not counted."""
    pairs = [(dma(), ours()) for _ in range(reps + 2)][2:]
    return [a for a, _ in pairs], [b for _, b in pairs]


def spread(values: list[float]) -> float:
    low, _, high = statistics.quantiles(values, n=4)
    return (high - low) / 2


def bandwidth_rows(
    name: str, num_bytes: int, dma: list[float], ours: list[float], target: float | None
) -> list[report.Row]:
    """GB/s of the ceiling and of ours, and the ratio with its target."""
    rates = {"dma": [num_bytes / t for t in dma], "ours": [num_bytes / t for t in ours]}
    ratios = [b / a for a, b in zip(rates["dma"], rates["ours"], strict=True)]
    ratio = statistics.median(ratios)
    return [
        report.row(f"{name} contiguous DMA", statistics.median(rates["dma"]), spread(rates["dma"]), None, "GB/s", None),
        report.row(f"{name}", statistics.median(rates["ours"]), spread(rates["ours"]), None, "GB/s", None),
        report.row(
            f"{name} ratio", ratio, spread(ratios), target, "x DMA", None if target is None else ratio >= target
        ),
    ]


def measure_pages(page_kib: int, sizes_mib: tuple[int, ...], reps: int) -> list[report.Row]:
    block_bytes = 2 * LAYERS * page_kib * 1024
    bench = Bench(page_kib * 1024, LAYERS, -(-max(sizes_mib) * MIB * 5 // 4 // block_bytes))
    bench.check()
    rows = [row for size in sizes_mib for row in measure_size(bench, page_kib, max(1, size * MIB // block_bytes), reps)]
    bench.close()
    return rows


def measure_size(bench: Bench, page_kib: int, count: int, reps: int) -> list[report.Row]:
    """Loads and stores of `count` blocks: small ones in the expedited lane, large ones in bulk, as engines use them."""
    num_bytes = count * bench.layout.block_bytes
    large = num_bytes >= 96 * MIB
    lane, target, reps = ("bulk", TARGET[page_kib], reps) if large else ("expedited", None, 3 * reps)
    label = f"{page_kib} KiB pages, {num_bytes // MIB} MiB"
    dma, ours = paired(reps, lambda: bench.dma_ns(num_bytes, to_device=True), lambda: bench.load_ns(count, lane))
    rows = bandwidth_rows(f"load {label}", num_bytes, dma, ours, target)
    dma, ours = paired(reps, lambda: bench.dma_ns(num_bytes, to_device=False), lambda: bench.store_ns(count))
    return rows + bandwidth_rows(f"store {label}", num_bytes, dma, ours, None)


def measure_caller(reps: int) -> list[report.Row]:
    """The caller's time in `load_batch` for blocks of 96 pages. The limits are those of the finished data plane."""
    bench = Bench(16 * 1024, 48, 640)
    rows = []
    for count, limit_us in ((4, 20.0), (512, 100.0)):
        times = []
        for _ in range(reps + 5):
            blocks, slots = bench.indices(count)
            bench.job += 1
            loads = [Load(bench.job, blocks, slots, "expedited")]
            torch.cuda.synchronize()
            began = time.perf_counter_ns()
            load_batch(bench.mover, loads)
            times.append((time.perf_counter_ns() - began) / 1e3)
            bench._end_ns()
        times = times[5:]
        median = statistics.median(times)
        rows.append(
            report.row(
                f"load_batch, {count} blocks of 96 pages", median, spread(times), limit_us, "us", median <= limit_us
            )
        )
    bench.close()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description="Direct loads and stores beside contiguous DMA.")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--quick", action="store_true", help="fewer repetitions and sizes, to see whether it works")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("this benchmark needs a CUDA device")
    sizes, reps = ((2, 96), 5) if args.quick else (SIZES_MIB, 9)
    rows = [row for page_kib in PAGE_KIB for row in measure_pages(page_kib, sizes, reps)]
    rows += measure_caller(20 if args.quick else 200)
    report.write(args.output or report.default_path("direct"), rows)


if __name__ == "__main__":
    main()
