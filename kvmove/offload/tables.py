"""Block tables as arrays, and which of their slots are new."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kvmove.errors import Refused
from kvmove.offload.records import Group

if TYPE_CHECKING:
    from kvmove.transfers import IndexArray, IndexLike


def slot_spaces(groups: Sequence[Group]) -> list[int]:
    """For each group the number of its space of slots; a group that names none gets one that no other has."""
    first_own = max((g.slot_space for g in groups if g.slot_space is not None), default=-1) + 1
    return [first_own + i if g.slot_space is None else g.slot_space for i, g in enumerate(groups)]


def block_tables(request: str, slots: Sequence[IndexLike], num_groups: int) -> list[IndexArray]:
    """Read-only int64 copies, so that the engine can go on using its own lists.

    Raises:
        Refused: there is not one flat sequence of ints for each group.
    """
    import numpy as np

    if len(slots) != num_groups:
        raise Refused(
            f"update_after_alloc: {len(slots)} block tables of {request} for {num_groups} groups; pass one for each "
            "group, as in [[4, 7, 9]] where there is one group"
        )
    tables = []
    for group, table in enumerate(slots):
        given: Any = np.array(table)
        if given.ndim != 1 or (given.size and given.dtype.kind not in "iu"):
            raise Refused(
                f"update_after_alloc: the block table of {request} in group {group} has shape {given.shape} and dtype "
                f"{given.dtype}; a flat sequence of ints is needed"
            )
        given = given.astype(np.int64, copy=False)
        given.flags.writeable = False
        tables.append(given)
    return tables


def new_slots(old: IndexArray | None, table: IndexArray, first: int = 0) -> IndexArray:
    """The slots from position `first` on that were not at their position before; positions without one are left out."""
    import numpy as np

    is_new = table >= 0
    is_new[:first] = False
    if old is not None:
        both = min(len(old), len(table))
        np.logical_and(is_new[:both], table[:both] != old[:both], out=is_new[:both])
    slots: IndexArray = table[is_new]
    return slots
