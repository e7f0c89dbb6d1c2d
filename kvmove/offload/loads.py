"""Loads from their admission until every rank has reported them: pins, marks, and the slots that they write."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import TYPE_CHECKING

from kvmove.errors import InternalError, Refused
from kvmove.offload.records import Group, GroupBlocks, LoadSpec
from kvmove.offload.requests import Request
from kvmove.offload.tables import slot_spaces
from kvmove.records import Action, Decision, Lane
from kvmove.tier import HostTier

if TYPE_CHECKING:
    from kvmove.transfers import IndexArray

    _Wanted = tuple[int, int, IndexArray, tuple[Hashable, ...]]  # group, first block, slots, keys


class LoadJob:
    """A load that was admitted and not reported by every rank.

    Attributes:
        first_blocks: leading blocks of the request that its slots held before.
        joined: requests that are released with it, by name.
        sharers: requests whose KV depends on its slots, by name, its own first; kept for sync loads only.
        is_submitted: its step was built; before that, it can be withdrawn.
        is_abandoned: its request ended or lost its slots.
    """

    __slots__ = ("first_blocks", "is_abandoned", "is_submitted", "joined", "request", "sharers", "spec")

    def __init__(self, spec: LoadSpec, request: Request) -> None:
        self.spec = spec
        self.request = request
        self.first_blocks = request.cached_blocks
        self.joined: dict[str, Request] = {}
        self.sharers: dict[str, Request] = {}
        self.is_submitted = False
        self.is_abandoned = False

    @property
    def is_sync(self) -> bool:
        return self.spec.lane is Lane.EXPEDITED


class LoadBook:
    """The loads of one scheduler.

    The life of a load: `admit` pins its blocks, and marks its keys where it is async. It is `submitted` with its
    step, or withdrawn. `abandon` takes the marks away when its request ends or loses its slots; its slots and pins
    stay until `end`, when no rank uses them any more.
    """

    def __init__(self, tier: HostTier, groups: Sequence[Group], blocks_per_chunk: int) -> None:
        self._tier = tier
        self._needed = [group.needed_blocks for group in groups]
        self.blocks_per_chunk = blocks_per_chunk
        self._space_of = slot_spaces(groups)
        self._writers: dict[int, dict[int, int]] = {space: {} for space in self._space_of}  # slot -> job
        self._jobs: dict[int, LoadJob] = {}
        self._marks: dict[Hashable, int] = {}  # key -> the async load that brings it
        self._abandoned: dict[str, int] = {}  # request -> the abandoned load that writes its slots
        self.inflight_bytes = 0  # of async loads that were submitted
        self.inflight_loads = 0

    def __len__(self) -> int:
        return len(self._jobs)

    def get(self, job: int) -> LoadJob | None:
        return self._jobs.get(job)

    def unsubmitted(self) -> list[LoadJob]:
        """The loads of the open step, in the order of their admission."""
        return [load for load in self._jobs.values() if not load.is_submitted]

    def sync_jobs(self) -> Iterator[int]:
        """The sync loads that not every rank has reported."""
        return (job for job, load in self._jobs.items() if load.is_sync)

    def is_leaving(self, request: str) -> bool:
        """Whether a load still writes slots that the request, or an earlier one of its name, has lost."""
        return request in self._abandoned

    def marked_by(self, keys: Sequence[Sequence[Hashable]], first: int, end: int) -> LoadJob | None:
        """The first async load that brings keys of these blocks."""
        if not self._marks:
            return None
        marks = self._marks
        for group_keys in keys:
            wanted = group_keys[first // self.blocks_per_chunk : -(-end // self.blocks_per_chunk)]
            if not marks.keys().isdisjoint(wanted):
                return self._jobs[next(marks[key] for key in wanted if key in marks)]
        return None

    def writers(self, group: int, slots: IndexArray) -> dict[int, int]:
        """The loads that write some of these slots, each with one of them."""
        writers = self._writers[self._space_of[group]]
        if not writers:
            return {}
        return {writers[slot]: slot for slot in slots.tolist() if slot in writers}

    def admit(self, job: int, request: Request, decision: Decision, tables: Sequence[IndexArray]) -> LoadJob:
        """Pin and mark what was decided; every block goes to the slot of its position.

        Raises:
            Refused: a block has no slot, or another load writes it. Nothing is pinned or marked.
        """
        first = request.cached_blocks
        end = first + decision.blocks
        other = self.marked_by(request.keys, first, end)
        if other is not None:
            raise Refused(
                f"update_after_alloc: load {other.spec.job} of {other.spec.request}, admitted since the lookup, brings "
                f"what {request.name} is to load; refund({request.name!r}) and look it up again, and it joins that load"
            )
        wanted: list[_Wanted] = []
        taken: dict[int, set[int]] = {}
        for group, (needed, table) in enumerate(zip(self._needed, tables, strict=True)):
            start = first if needed is None else max(first, end - needed)
            slots = table[start:end]
            who = f"update_after_alloc: {request.name} is to load blocks {start} to {end - 1} in group {group}"
            if len(slots) < end - start or int(slots.min()) < 0:
                raise Refused(
                    f"{who}, and not all of them have a slot; allocate slots for the decision's blocks, or refund() it"
                )
            for job_there, slot in self.writers(group, slots).items():
                raise Refused(f"{who}, and load {job_there} writes slot {slot} too; a load needs slots of its own")
            space_slots = taken.setdefault(self._space_of[group], set())
            num_before = len(space_slots)
            space_slots.update(slots.tolist())
            if len(space_slots) < num_before + len(slots):
                raise Refused(f"{who}, and a slot is named twice in {slots.tolist()}; give each block its own")
            keys = tuple(request.keys[group][start // self.blocks_per_chunk : -(-end // self.blocks_per_chunk)])
            wanted.append((group, start, slots, keys))
        lane = Lane.EXPEDITED if decision.action is Action.SYNC else Lane.BULK
        spec = LoadSpec(job, request.name, lane, self._pinned(wanted), decision.tokens, decision.bytes)
        load = self._jobs[job] = LoadJob(spec, request)
        for part in spec.groups:
            self._writers[self._space_of[part.group]].update(dict.fromkeys(part.slots.tolist(), job))
            if not load.is_sync:
                self._marks.update(dict.fromkeys(part.keys, job))
        request.loads.add(job)
        return load

    def _pinned(self, wanted: Sequence[_Wanted]) -> tuple[GroupBlocks, ...]:
        parts: list[GroupBlocks] = []
        try:
            for group, start, slots, keys in wanted:
                blocks = self._tier.prepare_load(keys)
                parts.append(GroupBlocks(group, keys, blocks, slots, start, start % self.blocks_per_chunk))
        except Refused:
            for part in parts:
                self._tier.complete_load(part.keys)
            raise
        return tuple(parts)

    def submit(self, load: LoadJob) -> None:
        """The load is in a plan: from now on it ends only by being reported."""
        load.is_submitted = True
        if not load.is_sync:
            self.inflight_bytes += load.spec.bytes
            self.inflight_loads += 1

    def abandon(self, load: LoadJob) -> list[Request]:
        """Its request ended, or lost the slots: nobody is to join it any more; returns who had."""
        load.is_abandoned = True
        load.request.loads.discard(load.spec.job)
        self._abandoned[load.spec.request] = load.spec.job
        return self.unmark(load)

    def unmark(self, load: LoadJob) -> list[Request]:
        """Nobody is to join the load any more; returns who had, and waits for nothing now."""
        job = load.spec.job
        if not load.is_sync:
            for part in load.spec.groups:
                for key in part.keys:
                    if self._marks.get(key) == job:
                        del self._marks[key]
        joined = list(load.joined.values())
        load.joined.clear()
        return joined

    def withdraw(self, load: LoadJob) -> list[Request]:
        """Take an admitted load out of the open step; returns who had joined it."""
        joined = self.unmark(load)
        self._forget(load)
        return joined

    def end(self, load: LoadJob, *, discard: bool) -> list[Request]:
        """Every rank has reported the load; returns who had joined it.

        Args:
            discard: its blocks are not to be served any more, because what is in them is in doubt.
        """
        joined = self.unmark(load)
        if discard:
            for part in load.spec.groups:
                self._tier.discard(part.keys)
        if not load.is_sync:
            self.inflight_bytes -= load.spec.bytes
            self.inflight_loads -= 1
        self._forget(load)
        for part in load.spec.groups:
            if self._needed[part.group] is None and part.position:
                # Or the head, used last when it was found in the GPU cache, would be evicted before what follows it.
                self._tier.touch(load.request.keys[part.group][: part.position // self.blocks_per_chunk])
        return joined

    def _forget(self, load: LoadJob) -> None:
        job = load.spec.job
        del self._jobs[job]
        load.request.loads.discard(job)
        for sharer in load.sharers.values():
            sharer.tainted_by.discard(job)
        if self._abandoned.get(load.spec.request) == job:
            del self._abandoned[load.spec.request]
        for part in load.spec.groups:
            self._tier.complete_load(part.keys)
            writers = self._writers[self._space_of[part.group]]
            for slot in part.slots.tolist():
                del writers[slot]

    def check_integrity(self) -> None:
        """Raise `InternalError` where marks, slots, pins and counts do not follow from the loads."""
        writers: dict[int, dict[int, int]] = {space: {} for space in self._space_of}
        marks: dict[Hashable, int] = {}
        for job, load in self._jobs.items():
            for part in load.spec.groups:
                own = dict.fromkeys(part.slots.tolist(), job)
                taken = writers[self._space_of[part.group]].keys() & own.keys()
                if taken:
                    raise InternalError(f"load {job} writes slots {sorted(taken)}, which another load writes")
                writers[self._space_of[part.group]].update(own)
                if not load.is_sync and not load.is_abandoned:
                    marks.update((key, job) for key in part.keys if self._marks.get(key) == job)
            if (job in load.request.loads) == load.is_abandoned:
                raise InternalError(f"load {job} of {load.spec.request}: abandoned is {load.is_abandoned}")
            for name, joined in load.joined.items():
                if joined.joined_job != job or load.is_abandoned:
                    raise InternalError(f"{name} joined load {joined.joined_job}, load {job} counts it")
        if writers != self._writers or marks != self._marks:
            raise InternalError(f"slots {self._writers} are noted as written, and keys {self._marks} as being loaded")
        inflight = [load.spec.bytes for load in self._jobs.values() if load.is_submitted and not load.is_sync]
        if (sum(inflight), len(inflight)) != (self.inflight_bytes, self.inflight_loads):
            raise InternalError(f"{self.inflight_loads} loads of {self.inflight_bytes} bytes are counted in flight")
        if not self._jobs and self._tier.statistics().pinned_blocks:
            raise InternalError(f"{self._tier.statistics().pinned_blocks} blocks are pinned without a load")
        if not set(self._abandoned.values()) <= {job for job, load in self._jobs.items() if load.is_abandoned}:
            raise InternalError(f"loads {self._abandoned} are noted as abandoned")
