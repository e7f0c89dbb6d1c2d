"""A progress bar for people; there is none in a log."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress_bar(label: str, total: int, quiet: bool) -> Iterator[Callable[[int], None] | None]:
    """A bar on stderr, where that is a terminal and nobody asked for quiet; what it gives takes how many are done."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bars:
        bar = bars.add_task(label.replace("[", r"\["), total=total)
        yield lambda done: bars.update(bar, completed=done)
