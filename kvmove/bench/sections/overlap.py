"""What of a load a step still waits for, when its layers are waited for one by one (M12) or all at once.

A step is a run of equal matrix products, some for each layer, at least three times as long as the copy. It is taken
alone, with a load whose layer i is waited for before the products of layer i, and with a load that is waited for before
the first product. Exposed is what the step takes longer than alone, so the copy's disturbance of the products counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial

import torch

from kvmove.bench import samples
from kvmove.bench.plan import Plan
from kvmove.bench.rows import Row, size
from kvmove.bench.samples import Measure
from kvmove.bench.session import Session
from kvmove.bench.traffic import BulkTraffic
from kvmove.bench.workbench import POISON, Workbench, device_ns
from kvmove.records import Lane

MOST_EXPOSED = 0.15  # M12: of the copy's own time
_TIMES_COPY = 3.2  # how long a step is, with a little room to the promised three
_WAYS = {"by layer": True, "at once": False}


def measure(session: Session) -> Iterator[Row]:
    """Exposed time over the copy's, by layer and at once, with nothing else running and beside a bulk load."""
    plan = session.plan
    begin = _own_blocks(plan)
    end = begin + plan.overlap_bulk_blocks
    with Workbench(session.device, plan.overlap_shape, end) as bench:
        paths = session.right_paths(bench, ["direct"], plan.overlap_blocks, "overlap")
        if not paths or not _check(session, bench):
            return
        step = _Step(session, bench)
        what = f"{size(plan.overlap_blocks * plan.overlap_shape.block_bytes)} in {plan.overlap_shape.num_pages} layers"
        for beside in ("nothing", "a bulk load"):
            session.tell(f"overlap: {what}, beside {beside}")
            traffic = BulkTraffic(bench, plan.overlap_bulk_blocks, None, end, begin)
            measures: dict[str, Measure] = {"copy": step.copy_ns, "alone": partial(step.ns, None)}
            measures |= {way: partial(step.ns, by_layer) for way, by_layer in _WAYS.items()}
            if beside != "nothing":
                measures = {name: partial(_beside, traffic, take) for name, take in measures.items()}
            runs = [samples.in_turn(3 * plan.pairs, measures) for _ in range(plan.runs)]
            yield from _rows(what, beside, runs)


def _rows(what: str, beside: str, runs: list[dict[str, list[float]]]) -> Iterator[Row]:
    for way in _WAYS:
        exposed = [[(w - a) / c for w, a, c in zip(run[way], run["alone"], run["copy"], strict=True)] for run in runs]
        promised = way == "by layer" and beside == "nothing"
        yield Row.of_runs(
            f"{'M12 ' if promised else ''}{what} behind a step, waited for {way}, beside {beside}: exposed",
            exposed,
            "x copy",
            at_most=MOST_EXPOSED if promised else None,
            # A step that is too short could not hide the copy.
            held=all(samples.median(run["alone"]) >= 3 * samples.median(run["copy"]) for run in runs),
            labels={"kind": "exposed", "way": way, "beside": beside},
        )
    for name in ("copy", "alone", *_WAYS):
        times = [[t / 1e3 for t in run[name]] for run in runs]
        yield Row.of_runs(
            f"{what} behind a step, beside {beside}: {_NAMES.get(name, name)}", times, "us", labels={"kind": "times"}
        )


_NAMES = {
    "copy": "the copy alone",
    "alone": "the step alone",
    "by layer": "the step, by layer",
    "at once": "the step, at once",
}


class _Step:
    """A step of equal products a layer, long enough to hide the load."""

    def __init__(self, session: Session, bench: Workbench) -> None:
        self._session, self._bench, self._plan = session, bench, session.plan
        edge = session.plan.overlap_edge
        where = session.device.torch_device
        self._a, self._b = (torch.randn(edge, edge, device=where).to(torch.bfloat16) for _ in range(2))
        self._c = torch.empty_like(self._a)
        self._each = 1
        alone = self._settled(partial(self.ns, None))
        self._each = max(1, math.ceil(_TIMES_COPY * self._settled(self.copy_ns) / alone))

    def _settled(self, take: Callable[[], float]) -> float:
        return samples.median([take() for _ in range(5)][2:])

    def copy_ns(self) -> float:
        """Device time of the load alone."""
        self._session.device.synchronize()
        load = self._bench.next_load(self._plan.overlap_blocks, Lane.EXPEDITED, 0, _own_blocks(self._plan))
        self._bench.submit(load, "direct")
        return device_ns(self._bench.await_end(load.job))

    def ns(self, by_layer: bool | None) -> float:
        """Device time of a step: with a load that is waited for by layer or at once, or (None) without one."""
        self._session.device.synchronize()
        load = self._bench.next_load(self._plan.overlap_blocks, Lane.EXPEDITED, 0, _own_blocks(self._plan))

        def work(stream: torch.cuda.Stream | None) -> None:
            ticket = None if by_layer is None else self._bench.submit(load, "direct", by_layer=by_layer)
            for layer in range(self._plan.overlap_shape.num_pages):
                if ticket is not None:
                    ticket.wait_layer(layer)
                for _ in range(self._each):
                    torch.mm(self._a, self._b, out=self._c)

        took = self._session.device.start("compute", work).wait()
        if by_layer is not None:
            self._bench.await_end(load.job)
        return took


def _own_blocks(plan: Plan) -> int:
    """Blocks and slots that the step's loads use; bulk loads beside it use others."""
    return plan.overlap_blocks + plan.overlap_blocks // 4


def _beside(traffic: BulkTraffic, take: Callable[[], float]) -> float:
    traffic.start()
    took = take()
    traffic.drain_ns()
    return took


def _check(session: Session, bench: Workbench) -> bool:
    """Whether a step finds each layer's pages after its wait; what is said of them otherwise is a failure."""
    load = bench.next_load(session.plan.overlap_blocks, Lane.EXPEDITED, 0, _own_blocks(session.plan))
    views = bench.layout.page_views()
    for view in views:
        view.fill_(POISON)
    at, origin = (torch.from_numpy(x.copy()).to(session.device.torch_device) for x in (load.dst_slots, load.src_blocks))
    session.device.synchronize()
    found: list[torch.Tensor] = []

    def work(stream: torch.cuda.Stream | None) -> None:
        ticket = bench.submit(load, "direct", by_layer=True)
        for layer, view in enumerate(views):
            ticket.wait_layer(layer)
            found.append(view[at])

    session.device.start("compute", work).wait()
    bench.await_end(load.job)
    wrong = [
        layer
        for layer, (page, got) in enumerate(zip(bench.layout.pages, found, strict=True))
        if not torch.equal(got, bench.image[origin, page.host_offset_bytes : page.host_offset_bytes + page.num_bytes])
    ]
    if wrong:
        session.failures.append(f"overlap: not measured: layers {wrong} were not there after their wait")
    return not wrong
