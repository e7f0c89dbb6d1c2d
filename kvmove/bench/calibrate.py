"""What `kvmove calibrate` measures: device times of every path by page size, bytes and lane, for the cost model."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial

from kvmove.bench import samples
from kvmove.bench.plan import KIB, MIB, Shape
from kvmove.bench.samples import Measure
from kvmove.bench.sections.bandwidth import ENGINE_FROM_PAGE_BYTES
from kvmove.bench.session import Session
from kvmove.bench.workbench import Workbench, device_ns
from kvmove.costs import Profile, Sample, Work, fit
from kvmove.costs.model import Key, held_out_errors, median_error
from kvmove.errors import Refused
from kvmove.move.identity import identity
from kvmove.records import JobKind, Lane

PATHS = ("direct", "tma", "staged", "engine")


@dataclass(frozen=True, slots=True)
class Grid:
    """What is measured: blocks of each shape, as many as come nearest to each size.

    Attributes:
        repetitions: of a job; the first one after that is not counted.
        limit_s: measuring ends after this time, though not before every path was measured with one shape.
    """

    shapes: tuple[Shape, ...]
    sizes_bytes: tuple[int, ...]
    repetitions: int
    limit_s: float


FULL = Grid(
    # The order matters where the time runs out: the first two are as far apart as caches are.
    shapes=tuple(Shape.for_page(n) for n in (16 * KIB, 1 * KIB, 64 * KIB, 4 * KIB, 656, 1 * MIB)),
    sizes_bytes=(MIB // 2, 1 * MIB, 2 * MIB, 4 * MIB, 8 * MIB, 16 * MIB, 48 * MIB, 128 * MIB, 384 * MIB),
    repetitions=4,
    limit_s=45.0,
)


@dataclass(frozen=True, slots=True)
class Calibration:
    """A profile, and how well it predicts what it was not fitted to."""

    profile: Profile
    samples: tuple[Sample, ...]
    errors: dict[Key, list[float]]  # relative, by kind, path and lane
    took_s: float


def calibrate(session: Session, grid: Grid = FULL) -> Calibration:
    """Measure the session's device.

    Every path is checked byte by byte first, and one that copies wrongly is left out (`session.failures` says so).

    Raises:
        Refused: no path could be measured.
    """
    began = time.monotonic()
    taken: list[Sample] = []
    for shape in grid.shapes:
        if taken and time.monotonic() - began > grid.limit_s:
            session.failures.append(f"calibrate: no time was left for pages of {shape.page_bytes} bytes and later ones")
            break
        session.tell(f"calibrate: pages of {shape.page_bytes} bytes")
        taken += _measure_shape(session, shape, grid)
    if not taken:
        raise Refused(f"calibrate: no path could be measured: {'; '.join(session.failures)}")
    errors = held_out_errors(taken)
    profile = Profile(**identity(session.device.torch_device), median_error=median_error(errors), model=fit(taken))
    return Calibration(profile, tuple(taken), errors, time.monotonic() - began)


def _measure_shape(session: Session, shape: Shape, grid: Grid) -> Iterator[Sample]:
    counts = sorted({max(1, round(size / shape.block_bytes)) for size in grid.sizes_bytes})
    with Workbench(session.device, shape, counts[-1] + max(1, counts[-1] // 4)) as bench:
        fit_for = [p for p in PATHS if p != "engine" or shape.page_bytes >= ENGINE_FROM_PAGE_BYTES]
        offered = bench.offered(fit_for)
        paths = session.right_paths(bench, offered, counts[-1], f"calibrate, pages of {shape.page_bytes} bytes")
        for count in counts:
            cases = dict(_cases(bench, paths, count))
            times = samples.in_turn(grid.repetitions, cases, warm_up=1)
            work = Work(count * shape.block_bytes, count, count * shape.num_pages)
            yield from (Sample(key, work, statistics.median(times[key])) for key in cases)


def _cases(bench: Workbench, paths: Iterable[str], count: int) -> Iterator[tuple[Key, Measure]]:
    for path in paths:
        for lane in Lane:
            yield Key(JobKind.LOAD, path, lane), partial(_load_ns, bench, count, lane, path)
        yield Key(JobKind.STORE, path, Lane.BULK), partial(_store_ns, bench, count, path)


def _load_ns(bench: Workbench, count: int, lane: Lane, path: str) -> float:
    return device_ns(bench.load(count, lane, path))


def _store_ns(bench: Workbench, count: int, path: str) -> float:
    return device_ns(bench.store(count, path))


def error_rows(errors: dict[Key, list[float]]) -> list[tuple[Key, int, float, float]]:
    """For each kind, path and lane: samples left out in turn, and their median and largest relative error."""
    return [(key, len(own), statistics.median(own), max(own)) for key, own in errors.items() if own]
