"""How many kernel programs a path needs to saturate the link, by page size: the direct and the tma path.

Programs hold SMs that the engine's own kernels want, so of two paths with the same rate the better one reaches it with
fewer. Each repetition takes one contiguous DMA and then one copy with each number of programs.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from kvmove.bench import samples
from kvmove.bench.plan import Shape
from kvmove.bench.rows import Row, size
from kvmove.bench.samples import Measure
from kvmove.bench.session import Session
from kvmove.bench.workbench import Workbench, device_ns
from kvmove.records import Lane

PATHS = ("direct", "tma")


def measure(session: Session) -> Iterator[Row]:
    """Ratio to contiguous DMA of bulk loads and of stores, for every shape, path and number of programs of the plan."""
    for shape in session.plan.program_shapes:
        session.tell(f"programs: pages of {size(shape.page_bytes)}")
        yield from _measure_shape(session, shape)


def _measure_shape(session: Session, shape: Shape) -> Iterator[Row]:
    plan = session.plan
    count = max(1, plan.program_bytes // shape.block_bytes)
    moved = count * shape.block_bytes
    ceiling = session.ceiling(moved)
    with Workbench(session.device, shape, count + max(1, count // 4)) as bench:
        paths = session.right_paths(bench, bench.offered(PATHS), count, f"programs, pages of {size(shape.page_bytes)}")
        for kind, dma in (("load", ceiling.load_ns), ("store", ceiling.store_ns)):
            measures: dict[str, Measure] = {"dma": partial(dma, moved)}
            cases = {f"{path} {n}": (path, n) for path in paths for n in plan.program_counts}
            measures |= {name: partial(_copy_ns, bench, count, kind, *case) for name, case in cases.items()}
            taken = samples.in_turn(plan.pairs, measures)
            for name, (path, programs) in cases.items():
                yield Row.of(
                    f"{kind}, {size(plan.program_bytes)} of {size(shape.page_bytes)} pages, {path}, "
                    f"{programs} program{'s' * (programs > 1)}",
                    samples.ratios(taken["dma"], taken[name]),
                    "x DMA",
                    labels={"kind": kind, "page_bytes": shape.page_bytes, "path": path, "programs": programs},
                )


def _copy_ns(bench: Workbench, count: int, kind: str, path: str, programs: int) -> float:
    bench.mover.set_programs(Lane.BULK, programs)
    return device_ns(bench.load(count, Lane.BULK, path) if kind == "load" else bench.store(count, path))
