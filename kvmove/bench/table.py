"""A report as a table for people."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from kvmove.bench.results import Report
from kvmove.bench.rows import Row


def table(report: Report) -> Table:
    """The rows, promised figures first within each section."""
    made = Table(title=_title(report), title_justify="left", title_style="bold")
    made.add_column("figure")
    for column in ("value", "spread", "target"):
        made.add_column(column, justify="right")
    made.add_column("unit")
    made.add_column("")
    section = None
    for row in report.rows:
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


def _title(report: Report) -> str:
    facts = report.machine
    parts = [facts.get("gpu") or facts.get("cpu"), f"{facts.get('cores')} cores"]
    parts += [f"{name} {facts[name]}" for name in ("torch", "triton", "driver") if facts.get(name)]
    parts.append(f"commit {report.commit or 'unknown'}")
    return ", ".join(str(p) for p in parts).replace("[", r"\[")
