"""A report as tables for people."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from kvmove.bench.results import Report
from kvmove.bench.rows import Row


def tables(report: Report) -> list[Table]:
    """What was measured, and last, where a terminal shows it, what was promised."""
    promised = [row for row in report.rows if row.target is not None]
    others = [row for row in report.rows if row.target is None]
    made = [_table(_machine(report), others), _table("What is promised", promised)]
    return [table for table in made if table.row_count]


def _table(title: str, rows: Sequence[Row]) -> Table:
    made = Table(title=title, title_justify="left", title_style="bold")
    made.add_column("figure")
    for column in ("value", "spread", "target"):
        made.add_column(column, justify="right")
    made.add_column("unit")
    made.add_column("")
    section = None
    for row in rows:
        if section is not None and row.labels.get("section") != section:
            made.add_section()
        section = row.labels.get("section")
        target = "" if row.target is None else f"{row.target:g}"
        made.add_row(Text(row.id), f"{row.value:.4g}", f"{row.spread:.2g}", target, row.unit, _verdict(row))
    return made


def _verdict(row: Row) -> Text:
    if row.ok is None:
        return Text("")
    return Text("met", style="green") if row.ok else Text("MISSED", style="bold red")


def _machine(report: Report) -> str:
    facts = report.machine
    parts = [facts.get("gpu") or facts.get("cpu"), f"{facts.get('cores')} cores"]
    parts += [f"{name} {facts[name]}" for name in ("torch", "triton", "driver") if facts.get(name)]
    parts.append(f"commit {report.commit or 'unknown'}")
    return ", ".join(str(p) for p in parts).replace("[", r"\[")
