"""Runs sections one after the other; what goes wrong in one leaves the others alone."""

from __future__ import annotations

import traceback
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from kvmove.bench.results import Report
from kvmove.bench.rows import Row
from kvmove.bench.sections import section
from kvmove.bench.session import Session


def run(sections: Iterable[str], session: Session) -> Report:
    """Measure the sections on the session's device.

    Any exception ends its section: rows that it gave before are kept, and the report's `failures` say what happened.
    After an error that the device does not recover from, the remaining sections are not tried.
    """
    rows: list[Row] = []
    names = list(sections)
    for position, name in enumerate(names):
        try:
            # Lazily, so that rows which came before an exception are kept.
            rows.extend(replace(row, labels={"section": name, **row.labels}) for row in section(name)(session))
        except Exception as error:
            session.failures.append(f"{name}: ended early: {_one_line(error)} ({_where(error)})")
            broken = _device_error(session)
            if broken is not None and names[position + 1 :]:
                session.failures.append(f"{', '.join(names[position + 1 :])}: not tried: {broken}")
            if broken is not None:
                break
    return Report.here(rows, session.failures)


def _device_error(session: Session) -> str | None:
    try:
        session.device.synchronize()
    except Exception as error:
        return _one_line(error)
    return None


def _one_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _where(error: Exception) -> str:
    """The innermost line of kvmove's own that the error passed through."""
    here = Path(__file__).parents[1]
    own = [f for f in traceback.extract_tb(error.__traceback__) if here in Path(f.filename).parents]
    return f"{Path(own[-1].filename).relative_to(here.parent)}:{own[-1].lineno}" if own else "outside kvmove"
