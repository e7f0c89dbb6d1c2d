"""How fast blocks cross PCIe by the direct path, beside a contiguous DMA of the same bytes in the same run.

    python -m benchmarks.bench_direct [--output PATH] [--quick]

Needs a CUDA device. Each figure interleaves the two: one DMA, one load, one DMA, ...; the ratio is taken pair by
pair, so that drifting clocks cancel. A cache of 64 pages a block (32 layers of K and V) with pages of 4, 16 and
32 KiB is loaded and stored in random block order. Times are GPU times between events around the copies, except
the caller's time, which is what `load_batch` takes on the CPU. Every cache is checked byte by byte before it is
measured; a path that copies wrongly is not measured. `kvmove bench` measures all paths.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks import report
from kvmove.bench import samples
from kvmove.bench.ceiling import Ceiling
from kvmove.bench.checking import WrongBytes, check_path
from kvmove.bench.device import CudaDevice
from kvmove.bench.plan import KIB, MIB, Shape
from kvmove.bench.rows import Row
from kvmove.bench.workbench import Workbench, device_ns

LAYERS = 32  # K and V apart: 64 pages a block
PAGE_KIB = (4, 16, 32)
SIZES_MIB = (2, 6, 24, 96, 384, 768)
# Shares of contiguous DMA that loads from 96 MiB on are to reach; an SM's PCIe reads are smaller than the copy
# engine's and saturate at 0.926 of it.
TARGET = {4: 0.88, 16: 0.90, 32: 0.90}


class Bench(Workbench):
    """A cache and a pool that only the direct path serves, with the ceiling for all of it."""

    def __init__(self, page_bytes: int, layers: int, num_blocks: int) -> None:
        super().__init__(CudaDevice(), Shape(page_bytes, 2 * layers), num_blocks, path="direct")
        self.ceiling = Ceiling(self.device, self.pool.num_bytes)

    def dma_ns(self, num_bytes: int, *, to_device: bool) -> float:
        """GPU time of one contiguous copy."""
        return self.ceiling.load_ns(num_bytes) if to_device else self.ceiling.store_ns(num_bytes)

    def load_ns(self, count: int, lane: str) -> float:
        """GPU time of one load of `count` random blocks."""
        return device_ns(self.load(count, lane))

    def store_ns(self, count: int) -> float:
        """GPU time of one store of `count` random slots."""
        return device_ns(self.store(count))

    def _end_ns(self) -> float:
        """Wait for the last job. Returns its GPU time."""
        torch.cuda.synchronize()
        return device_ns(self.await_end(self.job))

    def check(self) -> None:
        """Load and store random blocks and compare every byte of the cache and the pool, on the GPU."""
        try:
            check_path(self, "direct", max(1, self.pool.num_blocks // 3))
        except WrongBytes as e:
            report.require(False, str(e))


def paired(reps: int, dma: Callable[[], float], ours: Callable[[], float]) -> tuple[list[float], list[float]]:
    """Times of both, taken in turn, after two that are not counted."""
    taken = samples.in_turn(reps, {"dma": dma, "ours": ours})
    return taken["dma"], taken["ours"]


def bandwidth_rows(name: str, num_bytes: int, dma: list[float], ours: list[float], target: float | None) -> list[Row]:
    """GB/s of the ceiling and of ours, and the ratio with its target."""
    return [
        Row.of(f"{name} contiguous DMA", [num_bytes / t for t in dma], "GB/s"),
        Row.of(name, [num_bytes / t for t in ours], "GB/s"),
        Row.of_runs(f"{name} ratio", [samples.ratios(dma, ours)], "x DMA", at_least=target),
    ]


def measure_pages(page_kib: int, sizes_mib: tuple[int, ...], reps: int) -> list[Row]:
    block_bytes = 2 * LAYERS * page_kib * KIB
    with Bench(page_kib * KIB, LAYERS, -(-max(sizes_mib) * MIB * 5 // 4 // block_bytes)) as bench:
        bench.check()
        counts = [max(1, size * MIB // block_bytes) for size in sizes_mib]
        return [row for count in counts for row in measure_size(bench, page_kib, count, reps)]


def measure_size(bench: Bench, page_kib: int, count: int, reps: int) -> list[Row]:
    """Loads and stores of `count` blocks: small ones in the expedited lane, large ones in bulk, as engines use them."""
    num_bytes = count * bench.layout.block_bytes
    large = num_bytes >= 96 * MIB
    lane, target, reps = ("bulk", TARGET[page_kib], reps) if large else ("expedited", None, 3 * reps)
    label = f"{page_kib} KiB pages, {num_bytes // MIB} MiB"
    dma, ours = paired(reps, lambda: bench.dma_ns(num_bytes, to_device=True), lambda: bench.load_ns(count, lane))
    rows = bandwidth_rows(f"load {label}", num_bytes, dma, ours, target)
    dma, ours = paired(reps, lambda: bench.dma_ns(num_bytes, to_device=False), lambda: bench.store_ns(count))
    return rows + bandwidth_rows(f"store {label}", num_bytes, dma, ours, None)


def measure_caller(reps: int) -> list[Row]:
    """The caller's time in `load_batch` for blocks of 96 pages. The limits are those of the finished data plane."""
    rows = []
    with Bench(16 * KIB, 48, 640) as bench:
        for count, limit_us in ((4, 20.0), (512, 100.0)):
            times = []
            for _ in range(reps + 5):
                load = bench.next_load(count, "expedited")
                torch.cuda.synchronize()
                began = time.perf_counter_ns()
                bench.submit(load)
                times.append((time.perf_counter_ns() - began) / 1e3)
                bench._end_ns()
            rows.append(Row.of_runs(f"load_batch, {count} blocks of 96 pages", [times[5:]], "us", at_most=limit_us))
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
