"""Loads and stores of many blocks, by page size and path, beside a contiguous DMA of the same bytes.

M1, M2 and M5 are what the mover does by itself, in the bulk lane; the other paths are named. Each repetition takes one
DMA and then one copy by each path, and the ratio is taken between those neighbours.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from kvmove.bench import samples
from kvmove.bench.plan import KIB, MIB, Shape
from kvmove.bench.rows import Label, Row, size
from kvmove.bench.samples import Measure
from kvmove.bench.session import Session
from kvmove.bench.workbench import Workbench, device_ns
from kvmove.errors import InternalError

# One descriptor a page: below this page size the engine path takes seconds for what others do in milliseconds.
ENGINE_FROM_PAGE_BYTES = 32 * KIB
# Loads from here on are "large" (M1), smaller ones M2. Both are promised for pages of a KiB and more.
LARGE_BYTES = 768 * MIB
BULK_BYTES = 96 * MIB
PROMISED_PAGE_BYTES = 1 * KIB
# A page size is without a cliff if it reaches this share of the next regular page size: a path that fell back to
# narrow words would lose half and more.
NO_CLIFF = 0.9

_Ratios = dict[tuple[str, int, str, Shape], list[float]]  # kind, bytes, path


def measure(session: Session) -> Iterator[Row]:
    """GB/s of contiguous DMA and of each path, and the ratios, for every shape and size of the plan."""
    reached: _Ratios = {}
    for shape in session.plan.shapes:
        session.tell(f"bandwidth: pages of {size(shape.page_bytes)}, blocks of {size(shape.block_bytes)}")
        yield from _measure_shape(session, shape, reached)
    yield from _cliffs(session.plan.shapes, session.plan.sizes_bytes, reached)


def _measure_shape(session: Session, shape: Shape, reached: _Ratios) -> Iterator[Row]:
    counts = {max(1, num_bytes // shape.block_bytes): num_bytes for num_bytes in session.plan.sizes_bytes}
    most = max(counts)
    with Workbench(session.device, shape, most + max(1, most // 4)) as bench:
        paths = ["direct", *bench.offered(["tma"]), "staged"]
        paths += ["engine"] * (shape.page_bytes >= ENGINE_FROM_PAGE_BYTES)
        right = session.right_paths(bench, paths, most, f"bandwidth, pages of {size(shape.page_bytes)}")
        for count, num_bytes in counts.items():
            for kind in ("load", "store"):
                yield from _measure_size(session, bench, count, num_bytes, kind, right, reached)


def _measure_size(
    session: Session, bench: Workbench, count: int, num_bytes: int, kind: str, right: list[str], reached: _Ratios
) -> Iterator[Row]:
    shape, moved = bench.shape, count * bench.shape.block_bytes
    ceiling = session.ceiling(max(*session.plan.sizes_bytes, moved))
    copy = partial(_load_ns, bench, count) if kind == "load" else partial(_store_ns, bench, count)
    usual = _usual_path(bench, count, kind)
    if usual not in right:
        session.failures.append(
            f"bandwidth: {kind}s of {size(shape.page_bytes)} pages take the {usual} path, unchecked"
        )
        return
    dma = partial(ceiling.load_ns if kind == "load" else ceiling.store_ns, moved)
    others = {path: partial(copy, path) for path in right if path != usual}
    runs = [
        samples.in_turn(session.plan.pairs, _paired(dma, {usual: partial(copy, None), **({} if run else others)}))
        for run in range(session.plan.runs)
    ]
    label = f"{kind}, {size(num_bytes)} of {size(shape.page_bytes)} pages in {size(shape.block_bytes)} blocks"
    labels: dict[str, Label] = {
        "kind": kind,
        "bytes": num_bytes,
        "page_bytes": shape.page_bytes,
        "block_bytes": shape.block_bytes,
    }
    ratios = [samples.ratios(run[f"dma {usual}"], run[usual]) for run in runs]
    promise, least = _promise(kind, num_bytes, shape)
    yield Row.of_runs(
        f"{promise} {label}, by default ({usual})".lstrip(), ratios, "x DMA", at_least=least,
        labels={**labels, "path": usual, "default": True},
    )  # fmt: skip
    rates = [moved / t for t in runs[0][f"dma {usual}"]]
    yield Row.of(f"{label}, contiguous DMA", rates, "GB/s", labels={**labels, "path": "dma"})
    for path in (usual, *others):
        own = {**labels, "path": path}
        yield Row.of(f"{label}, {path}", [moved / t for t in runs[0][path]], "GB/s", labels=own)
        reached[kind, num_bytes, path, shape] = samples.ratios(runs[0][f"dma {path}"], runs[0][path])
        if path != usual:
            yield Row.of(
                f"{label}, {path} over DMA", reached[kind, num_bytes, path, shape], "x DMA", labels=own
            )  # fmt: skip


def _paired(dma: Measure, copies: dict[str, Measure]) -> dict[str, Measure]:
    """Each copy right after a DMA of its own."""
    return {name: take for path, copy in copies.items() for name, take in ((f"dma {path}", dma), (path, copy))}


def _load_ns(bench: Workbench, count: int, path: str | None) -> float:
    return device_ns(bench.load(count, "bulk", path))


def _store_ns(bench: Workbench, count: int, path: str | None) -> float:
    return device_ns(bench.store(count, path))


def _usual_path(bench: Workbench, count: int, kind: str) -> str:
    """The path that the mover takes by itself."""
    names = {(bench.load(count, "bulk") if kind == "load" else bench.store(count)).path for _ in range(2)}
    if len(names) != 1:
        raise InternalError(f"the mover takes {sorted(names)} for the same {kind}")
    return names.pop()


def _promise(kind: str, num_bytes: int, shape: Shape) -> tuple[str, float | None]:
    """Which promise a copy by default falls under, and the least share of DMA; ("", None) for none."""
    if shape.page_bytes < PROMISED_PAGE_BYTES or num_bytes < BULK_BYTES:
        return "", None
    if kind == "store":
        return "M5", 0.97
    if num_bytes < LARGE_BYTES:
        return "M2", 0.95
    if shape.block_bytes >= 384 * KIB:
        return "M1", 0.98
    return ("M1", 0.97) if shape.block_bytes >= 64 * KIB else ("", None)


def _cliffs(shapes: tuple[Shape, ...], sizes: tuple[int, ...], reached: _Ratios) -> Iterator[Row]:
    """Each odd page size by the direct path, whose kernel's words it decides, over the next regular one."""
    regular = [s for s in shapes if _is_regular(s)]
    for odd in (s for s in shapes if not _is_regular(s)):
        # Of several shapes with that page, the one with blocks of most nearly the same size.
        larger = [s for s in regular if s.page_bytes > odd.page_bytes]
        if not larger:
            continue
        nearest = min(larger, key=lambda s: (s.page_bytes, abs(s.block_bytes - odd.block_bytes)))
        for num_bytes in sizes:
            for kind in ("load", "store"):
                own = reached.get((kind, num_bytes, "direct", odd))
                other = reached.get((kind, num_bytes, "direct", nearest))
                if own is None or other is None:
                    continue
                yield Row.of_runs(
                    f"no cliff: {kind}, {size(num_bytes)} of {size(odd.page_bytes)} pages, direct, "
                    f"over {size(nearest.page_bytes)} pages",
                    [[samples.median(own) / samples.median(other)]],
                    "x",
                    at_least=NO_CLIFF,
                    labels={"kind": f"cliff {kind}", "bytes": num_bytes, "page_bytes": odd.page_bytes},
                )


def _is_regular(shape: Shape) -> bool:
    return shape.page_bytes & (shape.page_bytes - 1) == 0
