"""What a call must fulfil before anything is launched. Each check refuses with the value, the limit and the remedy."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from kvmove.errors import Refused
from kvmove.move.layout import Group
from kvmove.records import Load, Part, Store

Index = NDArray[np.int64]
Job = TypeVar("Job", Load, Store)


def as_jobs(kind: type[Job], given: Iterable[Job]) -> tuple[Job, ...]:
    """What was given, to go through more than once: a generator would be empty the second time."""
    if type(given) is list or type(given) is tuple:  # what engines pass; asking for an Iterable takes a microsecond
        return tuple(given)
    if isinstance(given, Load | Store) or not isinstance(given, Iterable):
        raise Refused(f"a sequence of {kind.__name__} is needed, not {given!r}")
    return tuple(given)


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


def refuse_bad_parts(
    what: str, given: Sequence[Load | Store], groups: Sequence[Group], ready_blocks: int, num_blocks: int
) -> None:
    """Every part is of a group that there is, in range, and has the host blocks that its slots need."""
    for item in given:
        for part in item.parts:
            if part.group >= len(groups):
                raise Refused(f"{what} {item.job}: there is no group {part.group}; the cache has {len(groups)}")
            group, count = groups[part.group], len(part.slots)
            if part.top_block >= ready_blocks or part.top_slot >= group.num_slots:
                who = f"{what} {item.job}"
                refuse_out_of_range(who, "host block", part.blocks, num_blocks)
                refuse_out_of_range(who, _slot_of(group, groups), part.slots, group.num_slots)
                raise Refused(
                    f"{who}: host block {part.top_block} is not pinned yet, {ready_blocks} of {num_blocks} are; "
                    "use those, or call pool.wait_ready() first"
                )
            per_chunk = group.blocks_per_chunk
            if part.first >= per_chunk:
                raise Refused(
                    f"{what} {item.job}: first is {part.first}, outside [0, {per_chunk}): "
                    f"a host block of group {part.group} has {per_chunk} place(s)"
                )
            needed = (part.first + count + per_chunk - 1) // per_chunk
            if len(part.blocks) != needed:
                raise Refused(
                    f"{what} {item.job}: {len(part.blocks)} host block(s) for {count} slot(s) from place {part.first} "
                    f"on; a host block of group {part.group} has {per_chunk} place(s), so {needed} are needed"
                )


def _slot_of(group: Group, groups: Sequence[Group]) -> str:
    return "slot" if len(groups) == 1 else f"group {group.index}, slot"


class UniqueCheck:
    """Whether the parts of one call write distinct places; that one part does, its record has checked.

    Linear: each index writes its position, and where two write, only the last is found again.
    """

    def __init__(self, groups: Sequence[Group], slots_together: int, num_blocks: int) -> None:
        self._groups = groups
        self._position = np.empty(max(slots_together, num_blocks), dtype=np.int64)

    def refuse_repeated_slots(self, loads: Sequence[Load]) -> None:
        """No slot is written twice in a call."""
        if len(loads) == 1 and len(loads[0].parts) == 1:
            return
        parts = [(x.job, p) for x in loads for p in x.parts]
        if not parts:
            return
        written = [(p.slots + first if (first := self._groups[p.group].first_slot) else p.slots) for _, p in parts]
        if (found := self._repeated(written)) is None:
            return
        a, at, b = found
        (job_a, part_a), (job_b, part_b) = parts[a], parts[b]
        what = f"{_slot_of(self._groups[part_a.group], self._groups)} {part_a.slots[at]}"
        if part_a.group != part_b.group:
            what += f", the same memory in group {part_b.group},"
        raise Refused(_twice(what, job_a, job_b))

    def refuse_repeated_places(self, stores: Sequence[Store]) -> None:
        """No place in a host block is written twice in a call, and no host block for two groups."""
        if len(stores) == 1 and len(stores[0].parts) == 1:
            return
        parts = [(x.job, p) for x in stores for p in x.parts]
        if not parts or self._repeated([p.blocks for _, p in parts]) is None:
            return
        self._refuse_two_groups(parts)
        # Where they hold chunks, several parts may write the same host block, in different places.
        most = max(group.blocks_per_chunk for group in self._groups)
        at = [self._groups[p.group].chunks_and_places(self._groups[p.group].positions(p)) for _, p in parts]
        keys = np.concatenate([chunk * most + place for chunk, place in at])
        order = np.argsort(keys, kind="stable")
        again = np.flatnonzero(keys[order][1:] == keys[order][:-1])
        if not len(again):
            return
        first, second = order[again[0]], order[again[0] + 1]
        block, place = divmod(int(keys[first]), most)
        owners = np.repeat([job for job, _ in parts], [len(p.slots) for _, p in parts])
        what = f"host block {block}" if most == 1 else f"place {place} of host block {block}"
        raise Refused(_twice(what, int(owners[first]), int(owners[second])))

    def _refuse_two_groups(self, parts: Sequence[tuple[int, Part]]) -> None:
        blocks = np.concatenate([p.blocks for _, p in parts])
        owners = np.repeat(np.arange(len(parts)), [len(p.blocks) for _, p in parts])
        groups = np.array([p.group for _, p in parts])
        self._position[blocks] = owners
        other = np.flatnonzero(groups[self._position[blocks]] != groups[owners])
        if len(other):
            block = blocks[other[0]]
            (job_a, a), (job_b, b) = parts[owners[other[0]]], parts[self._position[block]]
            raise Refused(
                f"host block {block} is written in one call for group {a.group} by job {job_a} and for group "
                f"{b.group} by job {job_b}; a host block holds blocks of one group"
            )

    def _repeated(self, written: Sequence[Index]) -> tuple[int, int, int] | None:
        """The first array and the place in it of an index that comes again, and the array where; None: all differ."""
        places = np.concatenate(written)
        positions = np.arange(len(places))
        self._position[places] = positions
        lost = np.flatnonzero(self._position[places] != positions)
        if not len(lost):
            return None
        ends = np.cumsum([len(w) for w in written])
        first, last = int(lost[0]), int(self._position[places[lost[0]]])
        a, b = (int(i) for i in np.searchsorted(ends, [first, last], side="right"))
        return a, first - int(ends[a]) + len(written[a]), b


def _twice(what: str, first: int, second: int) -> str:
    by = f"job {first}" if first == second else f"job {first} and job {second}"
    return f"{what} is written twice in one call, by {by}; which would win is undefined, so name it once"
