"""Reports as files: one JSON object with `machine`, `commit`, `rows` and, where something went wrong, `failures`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvmove.bench.machine import commit, machine
from kvmove.bench.rows import Row
from kvmove.errors import RecordError


@dataclass(frozen=True)
class Report:
    """What was measured on one machine.

    Attributes:
        failures: what could not be measured, a sentence each; the rows concerned are missing.
    """

    machine: dict[str, Any]
    commit: str | None
    rows: tuple[Row, ...]
    failures: tuple[str, ...] = field(default=())

    @classmethod
    def here(cls, rows: Sequence[Row], failures: Sequence[str] = ()) -> Report:
        """A report of rows that were measured on this machine, by this program.

        Raises:
            RecordError: two rows have the same id.
        """
        ids = [row.id for row in rows]
        repeated = sorted({i for i in ids if ids.count(i) > 1})
        if repeated:
            raise RecordError(f"report: two rows are called {repeated[0]!r}")
        return cls(machine(), commit(), tuple(rows), tuple(failures))

    def write(self, path: Path) -> None:
        """Write the report to `path`; its folder is made."""
        document: dict[str, Any] = {
            "machine": self.machine,
            "commit": self.commit,
            "rows": [row.as_json() for row in self.rows],
        }
        if self.failures:
            document["failures"] = list(self.failures)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


def read(path: Path) -> Report:
    """The report in a file.

    Raises:
        OSError: the file cannot be read.
        RecordError: it holds no report.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        rows = tuple(Row(**{**row, "runs": tuple(row.get("runs", ()))}) for row in document["rows"])
        return Report(document["machine"], document["commit"], rows, tuple(document.get("failures", ())))
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        reason = (str(e).splitlines() or [type(e).__name__])[0]
        raise RecordError(f"{path}: not the results of a benchmark ({reason})") from None
