"""Every section runs end to end, on the CPU and with interpreted kernels: its times mean nothing, its rows do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from kvmove.bench import run as running
from kvmove.bench import sections
from kvmove.bench.checking import WrongBytes, check_path
from kvmove.bench.device import HostDevice
from kvmove.bench.plan import Plan, Shape
from kvmove.bench.rows import Row
from kvmove.bench.run import run
from kvmove.bench.sections import SECTIONS
from kvmove.bench.sections.bandwidth import _promise
from kvmove.bench.session import Session
from kvmove.bench.workbench import Workbench
from kvmove.move.paths.direct import DirectPath
from kvmove.move.paths.staged import StagedPath

KIB, MIB = 1 << 10, 1 << 20


def measured(plan: Plan, *names: str, **changes: Any) -> tuple[list[Row], list[str]]:
    report = run(names, Session(HostDevice(), plan, **changes))
    return list(report.rows), list(report.failures)


def test_every_section_gives_its_rows(tiny: Plan) -> None:
    """Each promise that applies to so small sizes has a row with three runs' worth of figures, and nothing fails."""
    told: list[str] = []
    rows, failures = measured(tiny, *SECTIONS, tell=told.append)
    assert failures == []
    assert {r.labels["section"] for r in rows} == set(SECTIONS)
    assert all(any(line.startswith(name) for line in told) for name in SECTIONS)
    promised = [r for r in rows if r.id.startswith("M")]
    assert {r.id.split()[0] for r in promised} == {"M3", "M4", "M7", "M8", "M9", "M12"}
    for row in promised:
        assert row.target is not None
        assert row.ok is not None
        assert len(row.runs) == tiny.runs
    assert all(r.value > 0 and r.spread >= 0 for r in rows if r.unit not in ("points", "x copy"))


def test_bandwidth_has_every_path_beside_the_ceiling(tiny: Plan) -> None:
    """Each shape, size and direction has a DMA, every path that takes it, and a ratio for the mover's own choice."""
    rows, _ = measured(tiny, "bandwidth")
    rates = {
        (r.labels["kind"], r.labels["bytes"], r.labels["page_bytes"], r.labels["path"])
        for r in rows
        if r.unit == "GB/s"
    }
    assert rates == {
        (kind, num_bytes, shape.page_bytes, path)
        for kind in ("load", "store")
        for num_bytes in tiny.sizes_bytes
        for shape in tiny.shapes
        for path in ("dma", "direct", "staged", *["tma"] * (shape.block_bytes % 64 == 0))
    }
    usual = [r for r in rows if r.labels.get("default")]
    assert len(usual) == 2 * len(tiny.sizes_bytes) * len(tiny.shapes)
    cliffs = [r for r in rows if r.id.startswith("no cliff")]
    assert {(r.labels["page_bytes"], r.target) for r in cliffs} == {(48, 0.9)}


def test_a_layer_that_is_not_there_after_its_wait_is_found(tiny: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces that move nothing leave no row, and the failure names the layers."""
    monkeypatch.setattr("kvmove.move.layers.LayerPieces.load", lambda *arguments: None)
    rows, failures = measured(tiny, "overlap")
    assert rows == []
    assert failures == ["overlap: not measured: layers [0, 1, 2, 3] were not there after their wait"]


def test_programs_are_counted_for_the_paths_that_take_the_cache(tiny: Plan) -> None:
    """Both paths with each number of programs, where blocks are of 64 bytes or multiples; direct alone elsewhere."""
    rows, failures = measured(tiny, "programs")
    assert failures == []
    taken = {(r.labels["kind"], r.labels["page_bytes"], r.labels["path"], r.labels["programs"]) for r in rows}
    cases = [(48, "direct"), (64, "direct"), (64, "tma")]
    assert taken == {(kind, *case, n) for kind in ("load", "store") for case in cases for n in tiny.program_counts}
    assert all(r.unit == "x DMA" and r.value > 0 for r in rows)


@pytest.mark.parametrize(
    ("kind", "num_bytes", "shape", "promise"),
    [
        ("load", 768 * MIB, Shape(32 * KIB, 96), ("M1", 0.98)),
        ("load", 768 * MIB, Shape(1 * KIB, 384), ("M1", 0.98)),
        ("load", 768 * MIB, Shape(1 * KIB, 64), ("M1", 0.97)),
        ("load", 768 * MIB, Shape(576, 64), ("", None)),
        ("load", 96 * MIB, Shape(4 * KIB, 96), ("M2", 0.95)),
        ("load", 24 * MIB, Shape(4 * KIB, 96), ("", None)),
        ("store", 96 * MIB, Shape(1152, 64), ("M5", 0.97)),
        ("store", 768 * MIB, Shape(656, 64), ("", None)),
    ],
)
def test_promises_apply_where_they_were_given(
    kind: str, num_bytes: int, shape: Shape, promise: tuple[str, float | None]
) -> None:
    """Size, page and block decide which promise a copy falls under."""
    assert _promise(kind, num_bytes, shape) == promise


@pytest.mark.parametrize("broken", ["load", "store"])
def test_a_path_that_copies_wrongly_is_not_measured(tiny: Plan, broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rows are missing, the failure names it, and the other paths keep their rows."""
    right = getattr(StagedPath, broken)

    def one_block_short(self: Any, pairs: Any, programs: int, stream: Any) -> Any:
        short = [replace(p, positions=p.positions[:-1], slots=p.slots[:-1]) for p in pairs]
        return right(self, short, programs, stream)

    monkeypatch.setattr(StagedPath, broken, one_block_short)
    rows, failures = measured(tiny, "bandwidth")
    assert len(failures) == len(tiny.shapes)
    assert all("staged path is not measured" in f for f in failures)
    assert {r.labels.get("path") for r in rows if r.unit == "GB/s"} == {"dma", "direct", "tma"}


def test_a_wrong_default_leaves_no_row_for_it(tiny: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mover's own choice is not measured either where the path that it takes is red."""
    monkeypatch.setattr(DirectPath, "load", lambda *arguments: None)
    rows, failures = measured(tiny, "latency", "bandwidth")
    assert not [r for r in rows if r.id.startswith("M")]
    assert failures


@pytest.mark.parametrize("where", ["untouched slot", "untouched block"])
def test_a_copy_that_writes_elsewhere_is_found(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was not asked for has to stay as it was, on both sides."""
    with Workbench(HostDevice(), Shape(64, 3), 9) as bench:
        check_path(bench, "direct", 4)
        kind = "load" if where == "untouched slot" else "store"
        right = getattr(DirectPath, kind)

        def stray(self: Any, pairs: Any, programs: int, stream: Any) -> None:
            right(self, pairs, programs, stream)
            (own,) = pairs
            at = (set(range(9)) - set((own.slots if kind == "load" else own.positions).tolist())).pop()
            if kind == "load":
                bench.layout.page_views()[2][at, 5] ^= 1
            else:
                bench.pool.blocks[at, 70] ^= 1

        monkeypatch.setattr(DirectPath, kind, stray)
        with pytest.raises(WrongBytes, match="was not"):
            check_path(bench, "direct", 4)


def test_a_section_that_fails_leaves_the_others_alone(tiny: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows from before the failure and from other sections are kept."""

    def failing(session: Session) -> Iterator[Row]:
        yield Row.of("before", [1.0], "us")
        raise ValueError("first line\nsecond line")

    known = sections.section
    monkeypatch.setattr(running, "section", lambda name: failing if name == "interference" else known(name))
    rows, failures = measured(tiny, "interference", "peers")
    assert [r.id for r in rows if r.labels["section"] == "interference"] == ["before"]
    assert [r for r in rows if r.labels["section"] == "peers"]
    (failure,) = failures
    assert failure.startswith("interference: ended early: ValueError: first line (kvmove/bench/run.py:")


def test_nothing_is_tried_on_a_device_that_is_broken(tiny: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    """After an error that stays, the other sections would only repeat it."""
    device = HostDevice()

    def broken(*arguments: object) -> None:
        raise RuntimeError("an illegal memory access was encountered")

    monkeypatch.setattr(device, "start", broken)
    monkeypatch.setattr(device, "synchronize", broken)
    report = run(["peers", "latency", "interference"], Session(device, tiny))
    assert report.rows == ()
    assert report.failures[1] == (
        "latency, interference: not tried: RuntimeError: an illegal memory access was encountered"
    )


def test_a_disturbance_that_ends_too_early_is_no_result(tiny: Plan) -> None:
    """Where things run side by side, an expedited load after the bulk load has ended would look undisturbed."""

    class Quick(HostDevice):
        asynchronous = True

    report = run(["interference"], Session(Quick(), tiny))
    assert not [r for r in report.rows if r.id.startswith("M7")]
    assert len(report.failures) == 1
    assert "ended before the expedited load" in report.failures[0]


def test_peers_are_checked_too(tiny: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    """A technique that copies wrongly is no comparison."""
    from kvmove.bench.sections import peers

    monkeypatch.setattr(peers.Listed, "load", lambda *arguments: None)
    rows, failures = measured(tiny, "peers")
    assert {r.labels["path"] for r in rows} == {"dma", "kvmove", "a descriptor a page", "a launch a layer"}
    assert len(failures) == 1
    assert "listed" in failures[0]
