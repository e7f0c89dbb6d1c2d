"""What `kvmove bench` measures: a module a section, each a function from a session to rows.

A section yields rows as it gets them, so that those before a failure are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from kvmove.bench.rows import Row
    from kvmove.bench.session import Session

SECTIONS = {
    "bandwidth": "GB/s of loads and stores by page size and path, beside contiguous DMA (M1, M2, M5)",
    "latency": "small loads, from the call to the data, and the caller's time (M3, M4, M9)",
    "interference": "who slows whom: bulk loads, expedited loads and matrix products (M7, M8)",
    "overlap": "what of a load a step still waits for, layer by layer and at once (M12)",
    "programs": "how many kernel programs the direct and the tma path need to saturate the link",
    "peers": "other techniques for the same copies, beside kvmove's",
}


def section(name: str) -> Callable[[Session], Iterator[Row]]:
    """The function of the section called `name`, one of `SECTIONS`."""
    return cast("Callable[[Session], Iterator[Row]]", import_module(f"{__name__}.{name}").measure)
