"""Rows that compare kvmove with another program in the same run, and the file that keeps them.

A row is `id`, `value`, `theirs`, `unit`, `ratio`, `target`, `ok`, and where it was taken an `interval` of the ratio and
a `note`. One benchmark may need several calls: `write` keeps the rows that are in the file and replaces those that were
taken again, so long as they are of the same machine.
"""

from __future__ import annotations

import json
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kvmove.bench.machine import commit, machine


@dataclass(frozen=True, kw_only=True)
class Versus:
    """A figure of kvmove's beside the same figure of theirs.

    Attributes:
        ratio: value / theirs; None where theirs is 0 or was not taken.
        target: what the ratio has to reach, or not to exceed; None: reported alone.
        ok: whether it does; None without a target.
        interval: of the ratio of the medians, 95% by bootstrap over the pairs.
        runs: how many repetitions the medians are of.
    """

    id: str
    value: float
    theirs: float | None
    unit: str
    ratio: float | None = None
    target: float | None = None
    ok: bool | None = None
    interval: tuple[float, float] | None = None
    runs: int = 0
    note: str = ""


def compare(
    id: str,
    ours: Sequence[float],
    theirs: Sequence[float],
    unit: str,
    *,
    at_most: float | None = None,
    at_least: float | None = None,
    note: str = "",
    statistic: Callable[[Sequence[float]], float] = statistics.median,
) -> Versus:
    """A row from repetitions; where both have as many, they are taken as pairs for the interval."""
    value, other = statistic(ours), statistic(theirs) if theirs else None
    ratio = value / other if other else None
    target = at_most if at_most is not None else at_least
    ok = None
    if target is not None:
        ok = ratio is not None and (ratio <= target if at_most is not None else ratio >= target)
    interval = None
    if len(ours) == len(theirs) and len(ours) >= 5:
        interval = _bootstrap(ours, theirs, statistic)
    return Versus(
        id=id,
        value=value,
        theirs=other,
        unit=unit,
        ratio=ratio,
        target=target,
        ok=ok,
        interval=interval,
        runs=len(ours),
        note=note,
    )


def count(id: str, right: int, of: int, *, note: str = "") -> Versus:
    """A row that has to reach its full count: `right` of `of`."""
    ratio = right / of if of else None
    ok = of > 0 and right == of
    return Versus(id=id, value=right, theirs=of, unit="of", ratio=ratio, target=1.0, ok=ok, runs=of, note=note)


def p99(values: Sequence[float]) -> float:
    """The 99th percentile: the largest of fewer than 100 values."""
    return sorted(values)[min(len(values) - 1, int(0.99 * len(values)))]


def _bootstrap(
    ours: Sequence[float], theirs: Sequence[float], statistic: Callable[[Sequence[float]], float]
) -> tuple[float, float] | None:
    rng = random.Random(0)
    ratios = []
    for _ in range(1000):
        at = [rng.randrange(len(ours)) for _ in ours]
        below = statistic([theirs[i] for i in at])
        if below > 0:
            ratios.append(statistic([ours[i] for i in at]) / below)
    if len(ratios) < 500:
        return None
    ratios.sort()
    return ratios[int(0.025 * len(ratios))], ratios[int(0.975 * len(ratios))]


def write(path: Path, rows: Sequence[Versus], facts: dict[str, Any] | None = None) -> None:
    """Print the rows and put them into `path`, with machine and commit.

    Args:
        facts: what else the figures depend on, such as the engine's settings; kept beside the machine's.

    Raises:
        ValueError: two rows have the same id.
    """
    ids = [row.id for row in rows]
    if len(set(ids)) < len(ids):
        raise ValueError(f"two rows are called {next(i for i in ids if ids.count(i) > 1)!r}")
    here = machine()
    kept: list[dict[str, Any]] = []
    known: dict[str, Any] = {}
    if path.exists():
        document = json.loads(path.read_text(encoding="utf-8"))
        if document["machine"].get("gpu") == here.get("gpu"):
            kept = [row for row in document["rows"] if row["id"] not in ids]
            known = document.get("settings", {})
    document = {
        "machine": here,
        "commit": commit(),
        "settings": {**known, **(facts or {})},
        "rows": kept + [asdict(row) for row in rows],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    print(table(rows))
    print(f"wrote {path}: {len(document['rows'])} rows")


def table(rows: Sequence[Versus]) -> str:
    """The rows for reading, a line each."""
    lines = []
    for r in rows:
        theirs = "-" if r.theirs is None else f"{r.theirs:.4g}"
        ratio = "" if r.ratio is None else f"  x{r.ratio:.3f}"
        between = "" if r.interval is None else f" [{r.interval[0]:.3f}, {r.interval[1]:.3f}]"
        target = "" if r.target is None else f"  target {r.target:g} {'met' if r.ok else 'MISSED'}"
        note = f"  ({r.note})" if r.note else ""
        lines.append(f"{r.id:64} {r.value:9.4g} {theirs:>9} {r.unit}{ratio}{between}{target}{note}")
    return "\n".join(lines)
