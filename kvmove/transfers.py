"""What is to be copied: `Load` and `Store`, and the `Part` of one group that they are made of.

The public names are in `kvmove.records`. Every record is checked when it is built, so that submitting it has little
left to check: what needs the cache's layout, the mover checks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from kvmove.errors import RecordError
from kvmove.index_arrays import check_distinct, ends, index_array

if TYPE_CHECKING:
    # The aliases tell type checkers that these names are there to be imported from here.
    from kvmove.index_arrays import IndexArray as IndexArray  # noqa: PLC0414
    from kvmove.index_arrays import IndexLike as IndexLike  # noqa: PLC0414


class Lane(StrEnum):
    """Which queue a load takes: `expedited` is waited on inside the step, `bulk` completes between steps."""

    EXPEDITED = "expedited"
    BULK = "bulk"


class JobKind(StrEnum):
    """The direction of a job: `load` is host to GPU, `store` is GPU to host."""

    LOAD = "load"
    STORE = "store"


def lane_of(name: Lane | str) -> Lane:
    """The lane called `name`.

    Raises:
        RecordError: there is no such lane.
    """
    try:
        return Lane(name)
    except ValueError:
        raise RecordError(f"there is no lane {name!r}; choose from: {', '.join(Lane)}") from None


@dataclass(frozen=True, slots=True, eq=False, init=False)
class Part:
    """GPU blocks of one group, and the host blocks that hold them.

    A host block of the group holds a chunk of k GPU blocks, the layout's `blocks_per_chunk`. Slot `slots[i]` pairs
    with place `(first + i) % k` of host block `blocks[(first + i) // k]`, so `len(blocks)` has to be
    `ceil((first + len(slots)) / k)`. With k = 1, `first` is 0 and the arrays pair one to one.

        k = 4, blocks = [7, 2], slots = [5, 6, 9], first = 2

        host block     7              2
        place          0  1  2  3     0  1  2  3
        slot                 5  6     9

    The arrays become read-only int64 of shape (chunks,) and (slots,); `top_block` and `top_slot` are their largest
    elements.

    Raises:
        RecordError: group or first is no index, an array is empty or holds something else than indices, or there
            are more host blocks than slots.
    """

    group: int
    blocks: IndexArray
    slots: IndexArray
    first: int
    top_block: int
    top_slot: int

    def __init__(self, group: int, blocks: IndexLike, slots: IndexLike, first: int = 0) -> None:
        for name, value in (("group", group), ("first", first)):
            if type(value) is not int or value < 0:
                raise RecordError(f"part: {name} is {value!r}; an int of at least 0 is needed")
        who = f"part of group {group}"
        arrays = index_array(blocks, f"{who}: blocks"), index_array(slots, f"{who}: slots")
        if not len(arrays[0]) or not len(arrays[1]):
            raise RecordError(f"{who}: nothing to move; leave an empty part out")
        if len(arrays[0]) > len(arrays[1]):
            raise RecordError(
                f"{who}: {len(arrays[0])} host blocks for {len(arrays[1])} slots; "
                "a host block that holds none of them does not belong here"
            )
        _set_part(self, group, first, arrays, (ends(arrays[0]), ends(arrays[1])), who, ("blocks", "slots"))

    def __eq__(self, other: object) -> bool:
        import numpy as np

        if not isinstance(other, Part):
            return NotImplemented
        same = self.group == other.group and self.first == other.first
        return same and np.array_equal(self.blocks, other.blocks) and np.array_equal(self.slots, other.slots)

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True, slots=True, init=False)
class Load:
    """Host blocks to bring into GPU slots: block `src_blocks[i]` goes to slot `dst_slots[i]`.

    For a cache with several groups, or with several GPU blocks in a host block, see `Load.of_parts`.

    Attributes:
        parts: what to load, by group; the constructor makes one part of group 0.
        src_blocks, dst_slots: the host blocks and slots of the only part, read-only int64 (blocks,).

    Raises:
        RecordError: the arrays are empty, differ in length, hold something else than indices, or name a slot twice.
    """

    job: int
    parts: tuple[Part, ...]
    lane: Lane

    def __init__(self, job: int, src_blocks: IndexLike, dst_slots: IndexLike, lane: Lane | str = Lane.BULK) -> None:
        part = _plain_part("load", job, src_blocks, dst_slots, ("src_blocks", "dst_slots"), written=1)
        self._set(job, (part,), lane)

    @classmethod
    def of_parts(cls, job: int, parts: Sequence[Part], lane: Lane | str = Lane.BULK) -> Load:
        """A load of blocks of several groups, or of some places of larger host blocks.

        Raises:
            RecordError: there is no part, or a part names a slot twice.
        """
        _check_parts("load", job, parts)
        for part in parts:
            check_distinct(part.slots, f"load {job}: a part of group {part.group} names slot")
        load = cls.__new__(cls)
        load._set(job, tuple(parts), lane)
        return load

    def _set(self, job: int, parts: tuple[Part, ...], lane: Lane | str) -> None:
        object.__setattr__(self, "job", job)
        object.__setattr__(self, "parts", parts)
        object.__setattr__(self, "lane", lane_of(lane))

    @property
    def src_blocks(self) -> IndexArray:
        return _only_part(self).blocks

    @property
    def dst_slots(self) -> IndexArray:
        return _only_part(self).slots


@dataclass(frozen=True, slots=True, init=False)
class Store:
    """GPU slots to keep in host blocks: slot `src_slots[i]` goes to block `dst_blocks[i]`.

    For a cache with several groups, or with several GPU blocks in a host block, see `Store.of_parts`.

    Attributes:
        parts: what to store, by group; the constructor makes one part of group 0.
        src_slots, dst_blocks: the slots and host blocks of the only part, read-only int64 (blocks,).

    Raises:
        RecordError: the arrays are empty, differ in length, hold something else than indices, or name a host
            block twice.
    """

    job: int
    parts: tuple[Part, ...]

    def __init__(self, job: int, src_slots: IndexLike, dst_blocks: IndexLike) -> None:
        part = _plain_part("store", job, dst_blocks, src_slots, ("dst_blocks", "src_slots"), written=0)
        self._set(job, (part,))

    @classmethod
    def of_parts(cls, job: int, parts: Sequence[Part]) -> Store:
        """A store of blocks of several groups, or to some places of larger host blocks; other places stay.

        Raises:
            RecordError: there is no part, or a part names a host block twice.
        """
        _check_parts("store", job, parts)
        for part in parts:
            check_distinct(part.blocks, f"store {job}: a part of group {part.group} names host block")
        store = cls.__new__(cls)
        store._set(job, tuple(parts))
        return store

    def _set(self, job: int, parts: tuple[Part, ...]) -> None:
        object.__setattr__(self, "job", job)
        object.__setattr__(self, "parts", parts)

    @property
    def src_slots(self) -> IndexArray:
        return _only_part(self).slots

    @property
    def dst_blocks(self) -> IndexArray:
        return _only_part(self).blocks


def _only_part(record: Load | Store) -> Part:
    if len(record.parts) != 1:
        what = type(record).__name__.lower()
        raise RecordError(f"{what} {record.job} has {len(record.parts)} parts; read its `parts`")
    return record.parts[0]


def _check_job(what: str, job: int) -> None:
    if type(job) is not int or job < 0:
        raise RecordError(f"{what}: job is {job!r}; a job id is an int of at least 0")


def _check_parts(what: str, job: int, parts: Sequence[Part]) -> None:
    _check_job(what, job)
    if not parts:
        raise RecordError(f"{what} {job}: nothing to move; leave an empty {what} out")
    for part in parts:
        if not isinstance(part, Part):
            raise RecordError(f"{what} {job}: a Part is needed, not {part!r}")


def _plain_part(
    what: str, job: int, blocks: IndexLike, slots: IndexLike, names: tuple[str, str], *, written: int
) -> Part:
    """The one part of a transfer whose arrays pair one to one; `written` says which of them are its destinations."""
    _check_job(what, job)
    who = f"{what} {job}"
    arrays = index_array(blocks, f"{who}: {names[0]}"), index_array(slots, f"{who}: {names[1]}")
    if len(arrays[0]) != len(arrays[1]):
        pairs = ", ".join(f"{len(a)} in {name}" for name, a in zip(names, arrays, strict=True))
        raise RecordError(f"{who}: the arrays differ in length: {pairs}")
    if not len(arrays[0]):
        raise RecordError(f"{who}: nothing to move; leave an empty {what} out")
    # The smallest and largest element, and whether one repeats, in one pass.
    in_order = check_distinct(arrays[written], f"{who}: {names[written]} names")
    destination = int(in_order[0]), int(in_order[-1])
    extremes = (ends(arrays[0]), destination) if written else (destination, ends(arrays[1]))
    part = Part.__new__(Part)
    _set_part(part, 0, 0, arrays, extremes, who, names)
    return part


def _set_part(
    part: Part, group: int, first: int, arrays: tuple[IndexArray, IndexArray],
    extremes: tuple[tuple[int, int], tuple[int, int]], who: str, names: tuple[str, str],
) -> None:  # fmt: skip
    """Set the fields, once it is known that no index is negative; `extremes` are each array's smallest and largest."""
    for name, array, (low, _) in zip(names, arrays, extremes, strict=True):
        if low < 0:
            raise RecordError(f"{who}: {name} holds {low}; an index is at least 0")
        array.flags.writeable = False
    values = (group, *arrays, first, extremes[0][1], extremes[1][1])
    for field, value in zip(("group", "blocks", "slots", "first", "top_block", "top_slot"), values, strict=True):
        object.__setattr__(part, field, value)
