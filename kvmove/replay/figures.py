"""Figures as a table shows them."""

from __future__ import annotations

from kvmove.replay.settings import SECOND_NS


def seconds(time_ns: int | None) -> str:
    """`1.25 s`; `-` where there is no time."""
    return "-" if time_ns is None else f"{time_ns / SECOND_NS:,.2f} s"


def percent(part: int, whole: int) -> str:
    """`12.5%`; `-` of nothing."""
    return f"{100 * part / whole:.1f}%" if whole else "-"


def size(num_bytes: int) -> str:
    """`1.5 MiB`, in the largest unit of which there is at least one."""
    amount = float(num_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:,.0f} B" if unit == "B" else f"{amount:,.1f} {unit}"
        amount /= 1024
    return f"{amount:,.1f} TiB"
