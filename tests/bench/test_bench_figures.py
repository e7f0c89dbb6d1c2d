"""Figures hold what the rows say, and are the same whenever the rows are."""

from __future__ import annotations

import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from kvmove.bench.figures import bandwidth, draw, interference, overlap, programs
from kvmove.bench.results import Report
from kvmove.bench.rows import Row
from kvmove.errors import Refused

pytest.importorskip("matplotlib")


def rate(kind: str, path: str, page_bytes: int, value: float, block_bytes: int = 4096) -> Row:
    labels = {
        "section": "bandwidth", "kind": kind, "path": path, "bytes": 96 << 20, "page_bytes": page_bytes,
        "block_bytes": block_bytes,
    }  # fmt: skip
    return Row(id=f"{kind} {path} {page_bytes} {block_bytes}", value=value, spread=0.1, unit="GB/s", labels=labels)


def slow(kind: str, path: str, value: float, **more: str) -> Row:
    labels = {"section": "interference", "kind": kind, "path": path, **more}
    return Row(id=f"{kind} {path} {more}", value=value, spread=0.01, unit="x", labels=labels)


ROWS = (
    *(rate(kind, path, page, 40.0 + page / 1024) for kind in ("load", "store") for path in ("direct", "dma")
      for page in (1024, 4096)),
    rate("load", "direct", 1024, 7.0, block_bytes=1024),
    slow("expedited", "staged", 1.4, clock="device"),
    slow("expedited", "staged", 1.9, clock="wall"),
    slow("expedited", "dma", 9.5, clock="device"),
    slow("products", "dma", 1.04, products="8192^3"),
    slow("products", "staged", 1.02, products="8192^3"),
    slow("products", "staged", 1.13, products="64x8192x8192"),
)  # fmt: skip


def report(rows: tuple[Row, ...]) -> Report:
    return Report({"cpu": "c"}, None, rows)


def texts(path: Path) -> list[str]:
    return ["".join(e.itertext()).strip() for e in ElementTree.parse(path).iter("{http://www.w3.org/2000/svg}text")]


def test_figures_name_what_they_show(tmp_path: Path) -> None:
    """Panels, paths, page sizes and values are text in the file."""
    made = draw(report(ROWS), tmp_path / "new")
    assert [p.name for p in made] == ["bandwidth.svg", "interference.svg"]
    lines = texts(made[0])
    assert {"load, 96 MiB", "store, 96 MiB", "1 KiB", "4 KiB", "GB/s", "contiguous DMA", "direct"} <= set(lines)
    bars = texts(made[1])
    assert {"expedited load, device time", "products 8192^3", "products 64x8192x8192"} <= set(bars)
    assert {"1.40", "9.50", "1.04", "1.02", "1.13"} <= set(bars)
    assert "1.90" not in bars  # the wall's clock has no panel


def test_lines_go_through_the_rows() -> None:
    """A panel a direction, the ceiling first; of two block sizes, the larger is drawn."""
    figure = bandwidth(ROWS)
    assert figure is not None
    load = figure.axes[0]
    drawn = {c.get_label(): list(c.lines[0].get_ydata()) for c in load.containers}
    assert drawn == {"contiguous DMA": [41.0, 44.0], "direct": [41.0, 44.0]}
    figure = interference(ROWS)
    assert figure is not None
    assert [len(ax.patches) for ax in figure.axes] == [2, 2, 1]


def test_the_same_rows_give_the_same_bytes(tmp_path: Path) -> None:
    """A committed figure changes when its results do, and only then."""
    first, second = draw(report(ROWS), tmp_path / "a"), draw(report(ROWS), tmp_path / "b")
    for a, b in zip(first, second, strict=True):
        assert a.read_bytes() == b.read_bytes()


def test_what_is_not_there_is_not_drawn(tmp_path: Path) -> None:
    """Results of one section give one figure, and others none."""
    assert [p.name for p in draw(report(ROWS[-3:]), tmp_path)] == ["interference.svg"]
    assert draw(report((Row.of("other", [1.0], "us"),)), tmp_path / "none") == []
    assert not (tmp_path / "none").exists()


def test_without_matplotlib_the_command_to_install_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The extra is optional, so its absence is no traceback."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(Refused, match=r"pip install 'kvmove\[report\]'"):
        draw(report(ROWS), tmp_path)


def test_programs_have_a_line_a_path() -> None:
    """A panel a page size and direction; each path's share by rising number of programs."""
    rows = [
        Row(
            id=f"{path} {n}", value=share, spread=0.0, unit="x DMA",
            labels={"section": "programs", "kind": "load", "path": path, "page_bytes": 656, "programs": n},
        )
        for path, n, share in (("direct", 4, 0.5), ("direct", 1, 0.2), ("tma", 1, 0.9))
    ]  # fmt: skip
    figure = programs(rows)
    assert figure is not None
    (panel,) = figure.axes
    assert panel.get_title() == "load, 656 B pages"
    assert {c.get_label(): list(c.lines[0].get_ydata()) for c in panel.containers} == {
        "direct": [0.2, 0.5],
        "tma": [0.9],
    }
    assert programs(ROWS) is None


def test_exposed_time_has_a_bar_a_way() -> None:
    """A panel for what runs beside, a bar for each way to wait; times have none."""
    labels = {"section": "overlap", "kind": "exposed", "beside": "nothing"}
    rows = [
        Row(id=way, value=value, spread=0.0, unit="x copy", labels={**labels, "way": way})
        for way, value in (("by layer", 0.1), ("at once", 1.0))
    ]
    rows.append(Row(id="t", value=5.0, spread=0.0, unit="us", labels={"section": "overlap", "kind": "times"}))
    figure = overlap(rows)
    assert figure is not None
    (panel,) = figure.axes
    assert [bar.get_height() for bar in panel.patches] == [0.1, 1.0]
    assert overlap(ROWS) is None
