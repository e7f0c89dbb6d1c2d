"""Who slows whom: an expedited load while bulk loads run (M7), and matrix products while bulk loads run (M8).

Everything is taken in turn with and without, and the ratio is taken within the turn. A turn in which the bulk load
ended before what it was to disturb is not counted.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from functools import partial

import torch

from kvmove.bench import samples
from kvmove.bench.device import Device, Work
from kvmove.bench.plan import Gemms
from kvmove.bench.rows import Row, size
from kvmove.bench.session import Session
from kvmove.bench.traffic import BulkTraffic, DmaTraffic, Traffic
from kvmove.bench.workbench import Workbench, device_ns
from kvmove.errors import KVMoveError
from kvmove.records import Lane

MOST_TIMES_IDLE = 1.5  # M7
LEAST_IDLE_RATE = 0.9  # M8's condition: traffic that gives way to the matrix products disturbs nobody
_UNDER_WAY_S = 0.002  # after which a bulk load of 1 GiB is in full swing, with ten times as long to go
_IDLE_COPIES = 3
_TRIES = 4


class NotCovered(KVMoveError):
    """What was to be disturbed lasted longer than the disturbance, several times in a row."""


def measure(session: Session) -> Iterator[Row]:
    """M7 for bulk loads by the staged and the direct path, then M8 for each stretch of matrix products."""
    plan = session.plan
    with Workbench(session.device, plan.bulk_shape, plan.bulk_blocks + 4 * plan.urgent_blocks) as bench:
        right = session.right_paths(bench, ["staged", "direct"], plan.bulk_blocks, "interference")
        for path in right:
            session.tell(f"interference: an expedited load during a bulk load, {path}")
            yield from _expedited(session, bench, path)
        session.tell("interference: a contiguous DMA during another")
        yield _expedited_dma(session)
        sources = _sources(session, bench, right)
        for gemms in plan.gemms:
            session.tell(f"interference: matrix products {gemms.name}")
            yield from _products(session, gemms, sources)


def _sources(session: Session, bench: Workbench, right: list[str]) -> dict[str, Traffic]:
    """Contiguous DMA, the mover's own choice for bulk loads, and the other path by name."""
    plan = session.plan
    copy_bytes = plan.traffic_blocks * plan.bulk_shape.block_bytes
    sources: dict[str, Traffic] = {"dma": DmaTraffic(session.ceiling(copy_bytes), copy_bytes)}
    usual = bench.load(plan.traffic_blocks, Lane.BULK).path
    for path in sorted(right, key=lambda p: p != usual):
        sources[path] = BulkTraffic(bench, plan.traffic_blocks, None if path == usual else path, plan.bulk_blocks)
    return sources


def _expedited(session: Session, bench: Workbench, path: str) -> Iterator[Row]:
    plan = session.plan
    what = f"{size(plan.urgent_blocks * plan.bulk_shape.block_bytes)}"
    bulk = f"{size(plan.bulk_blocks * plan.bulk_shape.block_bytes)} by {path}"
    device_runs, wall_runs, idle_us, busy_us = [], [], [], []
    for _ in range(plan.runs):
        idle, busy = [], []
        for turn in range(2 + 3 * plan.pairs):
            pair = (_urgent(bench, plan.urgent_blocks, None), _urgent(bench, plan.urgent_blocks, path))
            if turn >= 2:
                idle.append(pair[0])
                busy.append(pair[1])
        device_runs.append([b / a for (a, _), (b, _) in zip(idle, busy, strict=True)])
        wall_runs.append([b / a for (_, a), (_, b) in zip(idle, busy, strict=True)])
        idle_us.append(idle)
        busy_us.append(busy)
    label = f"expedited {what} during a bulk load of {bulk}"
    labels = {"kind": "expedited", "path": path}
    yield Row.of_runs(
        f"M7 {label}, device time", device_runs, "x idle", at_most=MOST_TIMES_IDLE, labels={**labels, "clock": "device"}
    )
    yield Row.of_runs(f"{label}, call to data", wall_runs, "x idle", labels={**labels, "clock": "wall"})
    for name, taken in (("idle", idle_us), ("busy", busy_us)):
        for clock, at in (("device time", 0), ("call to data", 1)):
            runs = [[pair[at] / 1e3 for pair in run] for run in taken]
            yield Row.of_runs(f"{label}: {clock}, {name}", runs, "us", labels={"kind": f"expedited {name}"})


def _urgent(bench: Workbench, count: int, bulk_path: str | None) -> tuple[float, float]:
    """Device and wall time, ns, of one expedited load: alone, or during a bulk load by `bulk_path`."""
    first_urgent = bench.pool.num_blocks - 4 * count
    for _ in range(_TRIES):
        urgent = bench.next_load(count, Lane.EXPEDITED, first_urgent)
        bulk = bench.next_load(first_urgent, Lane.BULK, 0, first_urgent) if bulk_path else None
        bench.device.synchronize()
        if bulk is not None:
            bench.submit(bulk, bulk_path)
            time.sleep(_UNDER_WAY_S)
        began = time.perf_counter_ns()
        bench.submit(urgent).check()
        wall = float(max(1, time.perf_counter_ns() - began))
        covered = bulk is None or not bench.device.asynchronous or bench.ended(bulk.job) is None
        took = device_ns(bench.await_end(urgent.job))
        if bulk is not None:
            bench.await_end(bulk.job)
        if covered:
            return took, wall
    raise NotCovered(f"a bulk load by {bulk_path} ended before the expedited load, {_TRIES} times in a row")


def _expedited_dma(session: Session) -> Row:
    """What a second DMA on a stream of high priority gets: the copy engine does not know of priorities."""
    plan = session.plan
    small = plan.urgent_blocks * plan.bulk_shape.block_bytes
    large = plan.bulk_blocks * plan.bulk_shape.block_bytes
    ceiling = session.ceiling(large)

    def alone() -> float:
        return session.device.start("urgent", ceiling.load(small)).wait()

    def during() -> float:
        bulk = session.device.start("copy", ceiling.load(large))
        time.sleep(_UNDER_WAY_S)
        took = alone()
        bulk.wait()
        return took

    taken = samples.in_turn(plan.pairs, {"alone": alone, "during": during})
    return Row.of(
        f"contiguous DMA of {size(small)} during another of {size(large)}, device time",
        samples.ratios(taken["during"], taken["alone"]),
        "x idle",
        labels={"kind": "expedited", "path": "dma", "clock": "device"},
    )


class _Products:
    """Equal matrix products, ready to be queued."""

    def __init__(self, device: Device, gemms: Gemms) -> None:
        where = device.torch_device
        self._a = torch.randn(gemms.m, gemms.k, device=where).to(torch.bfloat16)
        self._b = torch.randn(gemms.k, gemms.n, device=where).to(torch.bfloat16)
        self._c = torch.empty(gemms.m, gemms.n, dtype=torch.bfloat16, device=where)
        self._count = gemms.count

    def queue(self, stream: torch.cuda.Stream | None) -> None:
        for _ in range(self._count):
            torch.mm(self._a, self._b, out=self._c)


def _products(session: Session, gemms: Gemms, sources: Mapping[str, Traffic]) -> Iterator[Row]:
    plan = session.plan
    work: Work = _Products(session.device, gemms).queue
    idle_ns = {name: _idle_copy_ns(source) for name, source in sources.items()}
    alone = partial(_alone_ns, session.device, work)
    alone()  # the library chooses its kernel in the first call
    least_copies = {name: _copies(alone(), ns) for name, ns in idle_ns.items()}
    slowdowns: dict[str, list[list[float]]] = {name: [] for name in sources}
    rates: dict[str, list[list[float]]] = {name: [] for name in sources}
    for _ in range(plan.runs):
        slow: dict[str, list[float]] = {name: [] for name in sources}
        rate: dict[str, list[float]] = {name: [] for name in sources}
        for _ in range(plan.pairs):
            for name, source in sources.items():
                before = alone()
                idle = _idle_copy_ns(source)
                beside, copy_ns = _beside(session.device, work, source, least_copies[name])
                slow[name].append(beside / before)
                rate[name].append(idle / copy_ns)
        for name in sources:
            slowdowns[name].append(slow[name])
            rates[name].append(rate[name])
    for position, name in enumerate(sources):
        what = "contiguous DMA" if name == "dma" else f"bulk loads, {name}"
        labels = {"kind": "products", "products": gemms.name, "path": name}
        yield Row.of_runs(f"{gemms.name} products beside {what}: slow-down", slowdowns[name], "x alone", labels=labels)
        idle_rate = Row.of_runs(
            f"{gemms.name} products beside {what}: rate of the copies", rates[name], "x idle",
            labels={**labels, "kind": "copies beside products"},
        )  # fmt: skip
        yield idle_rate
        if name == "dma":
            continue
        points = [
            [100 * (own - dma) for own, dma in zip(ours, theirs, strict=True)]
            for ours, theirs in zip(slowdowns[name], slowdowns["dma"], strict=True)
        ]
        # The mover's own choice comes right after the DMA; the other path is for comparison.
        promised = position == 1
        yield Row.of_runs(
            f"{'M8 ' if promised else ''}{gemms.name} products beside {what}: slow-down beyond contiguous DMA's",
            points,
            "points",
            at_most=gemms.most_points if promised else None,
            held=idle_rate.value >= LEAST_IDLE_RATE,
            labels={**labels, "kind": "points beyond DMA"},
        )


def _alone_ns(device: Device, work: Work) -> float:
    device.synchronize()
    return device.start("compute", work).wait()


def _idle_copy_ns(source: Traffic) -> float:
    """Device time of a copy that follows another, with nothing else running."""
    for _ in range(_IDLE_COPIES):
        source.start()
    return samples.median(source.drain_ns())


def _copies(products_ns: float, copy_ns: float) -> int:
    """Copies that outlast the products, although these may take a half longer."""
    return 1 + math.ceil(1.5 * products_ns / copy_ns)


def _beside(device: Device, work: Work, source: Traffic, copies: int) -> tuple[float, float]:
    """Device time of the products with copies all along, and of one copy meanwhile, ns."""
    for _ in range(_TRIES):
        device.synchronize()
        source.start()
        products = device.start("compute", work)
        for _ in range(copies - 1):
            source.start()
        took = products.wait()
        covered = not device.asynchronous or source.in_flight()
        meanwhile = source.ended_ns()
        everything = source.drain_ns()
        if covered:
            return took, samples.median(meanwhile or everything[:1])
        copies *= 2
    raise NotCovered(f"{copies // 2} copies ended before the matrix products, {_TRIES} times in a row")
