"""Small loads that a step waits for: from the call to the data, and what the caller pays.

M3 and M4 compare `load_batch` and `ticket.check()` with one contiguous copy of the same bytes and its event, both by
the host's clock and with nothing else running. M9 is the time in `load_batch` itself.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial

from kvmove.bench import samples
from kvmove.bench.plan import Shape
from kvmove.bench.rows import Label, Row, size
from kvmove.bench.session import Session
from kvmove.bench.workbench import Workbench, device_ns
from kvmove.records import Lane


def measure(session: Session) -> Iterator[Row]:
    """M3 and M4 by wall time, beside them the device times; M9 in both lanes."""
    for promise, shape, count, most in session.plan.small_loads:
        session.tell(f"latency: {size(count * shape.block_bytes)} of {size(shape.page_bytes)} pages")
        yield from _small_load(session, promise, shape, count, most)
    session.tell("latency: the caller's time")
    yield from _caller(session)


def _small_load(session: Session, promise: str, shape: Shape, count: int, most: float) -> Iterator[Row]:
    num_bytes = count * shape.block_bytes
    label = f"expedited load, {size(num_bytes)} of {size(shape.page_bytes)} pages"
    labels: dict[str, Label] = {"kind": "small load", "bytes": num_bytes, "page_bytes": shape.page_bytes}
    ceiling = session.ceiling(num_bytes)
    with Workbench(session.device, shape, 16 * count) as bench:
        path = bench.load(count, Lane.EXPEDITED).path
        if not session.right_paths(bench, [path], count, f"latency, {label}"):
            return
        measures = {
            "dma wall": partial(ceiling.load_wall_ns, num_bytes),
            "wall": partial(_wall_ns, bench, count),
            "dma device": partial(ceiling.load_ns, num_bytes),
            "device": partial(_device_ns, bench, count),
        }
        runs = [samples.in_turn(session.plan.small_pairs, measures, warm_up=5) for _ in range(session.plan.runs)]
    walls = [samples.ratios(run["wall"], run["dma wall"]) for run in runs]
    device = [samples.ratios(run["device"], run["dma device"]) for run in runs]
    yield Row.of_runs(f"{promise} {label}, call to data ({path})", walls, "x DMA", at_most=most, labels=labels)
    yield Row.of_runs(f"{label}, device time ({path})", device, "x DMA", labels=labels)
    for name, what in (
        ("wall", "call to data"),
        ("dma wall", "contiguous DMA, call to data"),
        ("device", "device time"),
        ("dma device", "contiguous DMA, device time"),
    ):
        medians = [[t / 1e3 for t in run[name]] for run in runs]
        yield Row.of_runs(f"{label}: {what}", medians, "us", labels=labels)


def _wall_ns(bench: Workbench, count: int) -> float:
    load = bench.next_load(count, Lane.EXPEDITED)
    bench.device.synchronize()
    began = time.perf_counter_ns()
    bench.submit(load).check()
    took = time.perf_counter_ns() - began
    bench.await_end(load.job)
    return float(max(1, took))


def _device_ns(bench: Workbench, count: int) -> float:
    return device_ns(bench.load(count, Lane.EXPEDITED))


def _caller(session: Session) -> Iterator[Row]:
    plan = session.plan
    most_blocks = max(count for count, _ in plan.caller_blocks)
    with Workbench(session.device, plan.caller_shape, most_blocks + most_blocks // 8) as bench:
        for count, most_us in plan.caller_blocks:
            for lane in Lane:
                path = bench.load(count, lane).path
                if not session.right_paths(bench, [path], count, "latency, the caller's time"):
                    continue
                take = {"caller": partial(_caller_us, bench, count, lane)}
                runs = [samples.in_turn(plan.small_pairs, take, warm_up=5)["caller"] for _ in range(plan.runs)]
                promised = lane is Lane.EXPEDITED
                label = f"caller's time in load_batch, {count} blocks of {plan.caller_shape.num_pages} pages"
                yield Row.of_runs(
                    f"{'M9 ' if promised else ''}{label}, {lane} ({path})",
                    runs,
                    "us",
                    at_most=most_us if promised else None,
                    labels={"kind": "caller", "blocks": count, "lane": str(lane)},
                )


def _caller_us(bench: Workbench, count: int, lane: Lane) -> float:
    load = bench.next_load(count, lane)
    bench.device.synchronize()
    began = time.perf_counter_ns()
    bench.submit(load)
    took = time.perf_counter_ns() - began
    bench.device.synchronize()
    bench.await_end(load.job)
    return took / 1e3
