"""One figure of a report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvmove.bench import samples

Label = str | int | bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A figure: its value and spread in `unit`, and what it was to reach.

    Attributes:
        id: says what was measured; begins with `M1 ` and the like where the figure is promised.
        value: the median of the repetitions, or over several runs the median of the runs' medians.
        spread: half the distance between the repetitions' quartiles, or over several runs half the distance
            between the largest and the smallest.
        target, ok: what was promised, and whether it is met; None for a figure without a promise.
        runs: the runs' medians, where there were several.
        labels: the same as the id in parts, for figures: `section`, `kind`, `path`, `page_bytes`, ...
    """

    id: str
    value: float
    spread: float
    unit: str
    target: float | None = None
    ok: bool | None = None
    runs: tuple[float, ...] = ()
    labels: Mapping[str, Label] = field(default_factory=dict)

    @classmethod
    def of(
        cls, id: str, values: Sequence[float], unit: str, *, labels: Mapping[str, Label] | None = None, scale: float = 1
    ) -> Row:
        """A row without a promise, from repetitions of one run; each is multiplied by `scale`."""
        scaled = [scale * v for v in values]
        return cls(id=id, value=samples.median(scaled), spread=samples.spread(scaled), unit=unit, labels=labels or {})

    @classmethod
    def of_runs(
        cls,
        id: str,
        runs: Sequence[Sequence[float]],
        unit: str,
        *,
        at_least: float | None = None,
        at_most: float | None = None,
        labels: Mapping[str, Label] | None = None,
        held: bool = True,
    ) -> Row:
        """A row from several runs, each the repetitions of one.

        Args:
            at_least, at_most: the promise; neither for a figure without one.
            held: False where the figure was not taken under the promise's conditions, so that it is missed.
        """
        medians = tuple(samples.median(run) for run in runs)
        value = samples.median(medians)
        apart = samples.half_range(medians) if len(runs) > 1 else samples.spread(runs[0])
        target = at_least if at_least is not None else at_most
        ok = None
        if target is not None:
            ok = held and (at_least is None or value >= at_least) and (at_most is None or value <= at_most)
        return cls(
            id=id,
            value=value,
            spread=apart,
            unit=unit,
            target=target,
            ok=ok,
            runs=medians if len(runs) > 1 else (),
            labels=labels or {},
        )

    def as_json(self) -> dict[str, Any]:
        """The row as plain values. Runs and labels are left out where there are none."""
        plain: dict[str, Any] = {
            "id": self.id,
            "value": self.value,
            "spread": self.spread,
            "target": self.target,
            "unit": self.unit,
            "ok": self.ok,
        }
        if self.runs:
            plain["runs"] = list(self.runs)
        if self.labels:
            plain["labels"] = dict(self.labels)
        return plain


def size(num_bytes: int) -> str:
    """A number of bytes for people: `576 B`, `4 KiB`, `96 MiB`."""
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if num_bytes >= unit and num_bytes % unit == 0:
            return f"{num_bytes // unit} {name}"
    if num_bytes >= 100 << 10:
        return f"{num_bytes / (1 << 20):.3g} MiB"
    return f"{num_bytes} B"
