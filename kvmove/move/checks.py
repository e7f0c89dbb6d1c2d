"""What a call must fulfil before anything is launched. Each check refuses with the value, the limit and the remedy."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from kvmove.errors import Refused
from kvmove.records import Load, Store

Index = NDArray[np.int64]


def refuse_bad_jobs(kind: type[Load] | type[Store], given: Sequence[Load | Store], in_use: Collection[int]) -> None:
    """Every job is a `kind`, with an id that is neither used twice in the call nor in use."""
    seen: set[int] = set()
    for item in given:
        if not isinstance(item, kind):
            raise Refused(f"a {kind.__name__} is needed, not {item!r}")
        if item.job in seen:
            raise Refused(f"job {item.job} is given twice in one call; every job needs an id of its own")
        if item.job in in_use:
            raise Refused(f"job {item.job} is in use; an id is free again once mover.finished() has returned it")
        seen.add(item.job)


def refuse_out_of_range(who: str, what: str, indices: Index, limit: int) -> None:
    """Every index is in [0, limit)."""
    bad = np.flatnonzero((indices < 0) | (indices >= limit))
    if len(bad):
        where = int(bad[0])
        raise Refused(
            f"{who}: {what} {indices[where]} (position {where}) is outside [0, {limit}); is its block table stale?"
        )


class UniqueCheck:
    """Whether the jobs of one call write distinct places; that one job does, its record has checked.

    Linear: each index writes its position, and where two write, only the last is found again.
    """

    def __init__(self, count: int) -> None:
        self._position = np.empty(count, dtype=np.int64)

    def refuse_repeated(self, what: str, given: Sequence[tuple[int, Index]]) -> None:
        """No place is written twice in a call. `given` pairs job ids with the places they write."""
        if len(given) < 2:
            return
        places = np.concatenate([p for _, p in given])
        positions = np.arange(len(places))
        self._position[places] = positions
        lost = np.flatnonzero(self._position[places] != positions)
        if not len(lost):
            return
        first, second = int(lost[0]), int(self._position[places[lost[0]]])
        owners = np.repeat([job for job, _ in given], [len(p) for _, p in given])
        raise Refused(
            f"{what} {int(places[first])} is written twice in one call, by job {owners[first]} and "
            f"job {owners[second]}; which would win is undefined, so name it once"
        )
