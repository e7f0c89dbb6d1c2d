"""Figures of a report, as SVG files that are the same whenever the rows are. Needs matplotlib, not torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvmove.bench.results import Report
from kvmove.bench.rows import Row, size
from kvmove.errors import Refused

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours, which readers with any colour vision can tell apart.
_COLOURS = {
    "dma": "#000000",
    "direct": "#0072B2",
    "tma": "#CC79A7",
    "staged": "#D55E00",
    "engine": "#009E73",
    "reference": "#999999",
}
_NAMES = {"dma": "contiguous DMA"}
_STYLE: dict[Any, Any] = {
    "svg.hashsalt": "kvmove",  # names in the file are random without it
    "svg.fonttype": "none",  # text stays text: smaller, and readable in a diff
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#dddddd",
}


def draw(report: Report, folder: Path) -> list[Path]:
    """Draw what the report has rows for: `bandwidth.svg`, `interference.svg`, `overlap.svg`, `programs.svg`.

    Returns the files written.

    Raises:
        Refused: matplotlib is not installed.
    """
    try:
        import matplotlib
    except ImportError:
        raise Refused("figures need matplotlib; install it with: pip install 'kvmove[report]'") from None
    made = []
    with matplotlib.rc_context(_STYLE):
        for name, make in _FIGURES.items():
            figure = make(report.rows)
            if figure is None:
                continue
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / f"{name}.svg"
            figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None})
            made.append(path)
    return made


def bandwidth(rows: Sequence[Row]) -> Figure | None:
    """GB/s by page size: a panel for each size and direction, a line for each path. None without such rows."""
    rates = [r for r in rows if r.labels.get("section") == "bandwidth" and r.unit == "GB/s"]
    panels = sorted({(int(r.labels["bytes"]), str(r.labels["kind"])) for r in rates})
    if not panels:
        return None
    figure, axes = _panels(len(panels), columns=2)
    for (num_bytes, kind), ax in zip(panels, axes, strict=True):
        shown = [r for r in rates if (r.labels["bytes"], r.labels["kind"]) == (num_bytes, kind)]
        pages = sorted({int(r.labels["page_bytes"]) for r in shown})
        for path in _paths(shown):
            line = _by_page([r for r in shown if r.labels["path"] == path])
            dma = path == "dma"
            ax.errorbar(
                [pages.index(page) for page in line],
                [r.value for r in line.values()],
                yerr=[r.spread for r in line.values()],
                color=_COLOURS.get(path, "#CC79A7"),
                linestyle="--" if dma else "-",
                marker="" if dma else "o",
                markersize=4,
                label=_NAMES.get(path, path),
            )
        ax.set_title(f"{kind}, {size(num_bytes)}")
        ax.set_xticks(range(len(pages)), [size(page) for page in pages], rotation=60)
        ax.set_ylim(bottom=0)
        ax.set_ylabel("GB/s")
    axes[0].legend(frameon=False)
    return figure


def interference(rows: Sequence[Row]) -> Figure | None:
    """Bars of slow-downs: expedited loads during bulk loads, and each kind of products. None without such rows."""
    own = [r for r in rows if r.labels.get("section") == "interference"]
    expedited = [r for r in own if r.labels["kind"] == "expedited" and r.labels.get("clock") == "device"]
    products = [r for r in own if r.labels["kind"] == "products"]
    panels = [("expedited load, device time", expedited)] if expedited else []
    panels += [
        (f"products {name}", [r for r in products if r.labels["products"] == name])
        for name in dict.fromkeys(str(r.labels["products"]) for r in products)
    ]
    if not panels:
        return None
    figure, axes = _panels(len(panels), columns=3)
    for (title, shown), ax in zip(panels, axes, strict=True):
        _bars(ax, shown)
        ax.set_title(title)
        ax.set_ylabel("times as long as alone")
    return figure


def overlap(rows: Sequence[Row]) -> Figure | None:
    """Bars of what a step waits for, over the copy's own time: layer by layer and at once. None without such rows."""
    own = [r for r in rows if r.labels.get("section") == "overlap" and r.labels["kind"] == "exposed"]
    panels = list(dict.fromkeys(str(r.labels["beside"]) for r in own))
    if not panels:
        return None
    figure, axes = _panels(len(panels), columns=2)
    for beside, ax in zip(panels, axes, strict=True):
        shown = [r for r in own if r.labels["beside"] == beside]
        bars = ax.bar(range(len(shown)), [r.value for r in shown], yerr=[r.spread for r in shown], color="#0072B2")
        ax.bar_label(bars, fmt="%.2f", padding=2)
        ax.margins(y=0.12)
        ax.set_xticks(range(len(shown)), [f"waited for\n{r.labels['way']}" for r in shown])
        ax.set_title(f"load behind a step, beside {beside}")
        ax.set_ylabel("exposed, times the copy alone")
        ax.axhline(0, color="#000000", linewidth=0.8)
    return figure


def programs(rows: Sequence[Row]) -> Figure | None:
    """Share of contiguous DMA by number of programs: a panel for each page size and direction. None without rows."""
    own = [r for r in rows if r.labels.get("section") == "programs"]
    panels = sorted({(int(r.labels["page_bytes"]), str(r.labels["kind"])) for r in own})
    if not panels:
        return None
    figure, axes = _panels(len(panels), columns=4)
    for (page_bytes, kind), ax in zip(panels, axes, strict=True):
        shown = [r for r in own if (r.labels["page_bytes"], r.labels["kind"]) == (page_bytes, kind)]
        counts = sorted({int(r.labels["programs"]) for r in shown})
        for path in _paths(shown):
            line = sorted((r for r in shown if r.labels["path"] == path), key=lambda r: int(r.labels["programs"]))
            ax.errorbar(
                [counts.index(int(r.labels["programs"])) for r in line],
                [r.value for r in line],
                yerr=[r.spread for r in line],
                color=_COLOURS.get(path, "#CC79A7"),
                marker="o",
                markersize=4,
                label=path,
            )
        ax.set_title(f"{kind}, {size(page_bytes)} pages")
        ax.set_xticks(range(len(counts)), [str(n) for n in counts])
        ax.set_xlabel("programs")
        ax.axhline(1, color="#000000", linestyle="--", linewidth=0.8)
        ax.set_ylim(bottom=0)
        ax.set_ylabel("x contiguous DMA")
    axes[0].legend(frameon=False)
    return figure


def _bars(ax: Axes, rows: Sequence[Row]) -> None:
    by_path = {path: next(r for r in rows if r.labels["path"] == path) for path in _paths(rows)}
    bars = ax.bar(
        range(len(by_path)),
        [r.value for r in by_path.values()],
        yerr=[r.spread for r in by_path.values()],
        color=[_COLOURS.get(path, "#CC79A7") for path in by_path],
    )
    ax.bar_label(bars, fmt="%.2f", padding=2)
    ax.margins(y=0.12)  # room for the labels
    ax.set_xticks(range(len(by_path)), [f"beside\n{_NAMES.get(path, path)}" for path in by_path])
    ax.axhline(1, color="#000000", linewidth=0.8)


def _by_page(rows: Sequence[Row]) -> dict[int, Row]:
    """A row for each page size, in ascending order; of several, the one with the largest blocks."""
    ordered = sorted(rows, key=lambda r: (int(r.labels["page_bytes"]), int(r.labels["block_bytes"])))
    return {int(r.labels["page_bytes"]): r for r in ordered}


def _paths(rows: Sequence[Row]) -> list[str]:
    """The rows' paths, in the order of the colours."""
    order = list(_COLOURS)
    return sorted(
        {str(r.labels["path"]) for r in rows}, key=lambda p: (order.index(p) if p in order else len(order), p)
    )


def _panels(count: int, *, columns: int) -> tuple[Figure, list[Axes]]:
    from matplotlib.figure import Figure

    columns = min(columns, count)
    lines = -(-count // columns)
    figure = Figure(figsize=(4.4 * columns, 3.4 * lines), layout="constrained")
    axes: list[Any] = list(figure.subplots(lines, columns, squeeze=False).flat)
    for unused in axes[count:]:
        unused.remove()
    return figure, axes[:count]


_FIGURES: dict[str, Callable[[Sequence[Row]], Figure | None]] = {
    "bandwidth": bandwidth,
    "interference": interference,
    "overlap": overlap,
    "programs": programs,
}
