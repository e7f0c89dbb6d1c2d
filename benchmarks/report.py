"""What every benchmark writes: the machine, the commit and its rows, as one JSON file under `benchmarks/results/`.

A benchmark checks correctness first (`require`), measures, makes a `Row` of each figure, and hands the rows to `write`:

    report.require(compiled == expected, "the compiled policy differs from the evaluator")
    rows = [Row.of_runs("M10 one decision", [ratios], "x an empty call", at_most=6.0)]
    report.write(report.default_path("decide"), rows)
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kvmove.bench.machine import machine_name
from kvmove.bench.results import Report
from kvmove.bench.rows import Row

RESULTS = Path(__file__).resolve().parent / "results"


def require(correct: bool, what: str) -> None:
    """End the benchmark with exit status 1 unless `correct`: a fast wrong answer is no result."""
    if not correct:
        raise SystemExit(f"not measured, because the result is wrong: {what}")


def default_path(thing: str) -> Path:
    """`benchmarks/results/<thing>-<machine>.json`."""
    return RESULTS / f"{thing}-{machine_name()}.json"


def write(path: Path, rows: Sequence[Row]) -> None:
    """Print the rows and write them to `path` with the machine and the commit.

    Raises:
        ValueError: there are no rows, or two have the same id.
    """
    if not rows:
        raise ValueError("a report needs rows")
    report = Report.here(rows)
    report.write(path)
    print(", ".join(f"{key} {value}" for key, value in report.machine.items()))
    for r in rows:
        verdict = "" if r.ok is None else ("  met" if r.ok else "  MISSED")
        target = "" if r.target is None else f"  target {r.target:g}"
        print(f"{r.id:32} {r.value:10.4g} ± {r.spread:.2g} {r.unit}{target}{verdict}")
    print(f"wrote {path}")
