"""What the offload scheduler, its workers and the engine exchange. Plain and picklable; nothing here imports torch."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from kvmove.errors import RecordError, SyncLoadFailed
from kvmove.prefix import GroupBytes
from kvmove.records import Action, Decision, Lane, Load, Part, Store

if TYPE_CHECKING:
    from kvmove.transfers import IndexArray

OFFLOAD_VERSION = 1


class GroupKind(StrEnum):
    """Which blocks of a prefix a group of layers needs before the next token can be computed."""

    FULL = "full"  # all of them
    WINDOW = "window"  # the last `window_blocks`
    STATE = "state"  # the last one, which holds the state after its last token


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A group of layers that share a block table, as the scheduler sees it.

    Attributes:
        block_bytes: bytes of one block on one GPU; where ranks differ, the largest.
        kind: which blocks of a prefix it needs.
        window_blocks: for a window, how many blocks before the next token it reads; at least 1.
        slot_space: groups with the same number share one space of slots (one free list); None: a space of its own.

    Raises:
        RecordError: a value is out of range, or a window is given to another kind or missing.
    """

    block_bytes: int
    kind: GroupKind = GroupKind.FULL
    window_blocks: int | None = None
    slot_space: int | None = None

    def __post_init__(self) -> None:
        if type(self.block_bytes) is not int or self.block_bytes < 1:
            raise RecordError(f"group: block_bytes is {self.block_bytes!r}; an int of at least 1 is needed")
        if not isinstance(self.kind, GroupKind):
            raise RecordError(f"group: kind is {self.kind!r}; choose from: {', '.join(GroupKind)}")
        if self.kind is GroupKind.WINDOW:
            if type(self.window_blocks) is not int or self.window_blocks < 1:
                raise RecordError(f"group: window_blocks is {self.window_blocks!r}; an int of at least 1 is needed")
        elif self.window_blocks is not None:
            raise RecordError(f"group: window_blocks is {self.window_blocks}, but the kind is {self.kind}")
        if self.slot_space is not None and (type(self.slot_space) is not int or self.slot_space < 0):
            raise RecordError(f"group: slot_space is {self.slot_space!r}; an int of at least 0 is needed, or None")

    @property
    def needed_blocks(self) -> int | None:
        """How many blocks before the next token the group needs; None: all."""
        return 1 if self.kind is GroupKind.STATE else self.window_blocks

    @property
    def sizes(self) -> GroupBytes:
        """What the group adds to a hit."""
        needed = self.needed_blocks
        return GroupBytes(self.block_bytes, None if needed is None else needed * self.block_bytes)


@dataclass(frozen=True, slots=True, eq=False)
class GroupBlocks:
    """The part of a job in one group: which keys, in which host blocks, from or to which slots.

    `slots[i]` holds block `position + i` of the request, counted from the start of its tokens. It pairs with place
    `(first + i) % k` of host block `blocks[(first + i) // k]`, where k is the blocks per chunk; `keys[j]` is the key
    of `blocks[j]`. The arrays are read-only int64 of shape (chunks,) and (slots,).
    """

    group: int
    keys: tuple[Hashable, ...]
    blocks: IndexArray
    slots: IndexArray
    position: int
    first: int = 0

    def part(self) -> Part:
        """The same as the mover takes it."""
        return Part(self.group, self.blocks, self.slots, self.first)


@dataclass(frozen=True, slots=True, eq=False)
class LoadSpec:
    """One load of one request. Sync loads are expedited, async ones bulk."""

    job: int
    request: str
    lane: Lane
    groups: tuple[GroupBlocks, ...]  # groups with nothing to load are left out
    tokens: int  # that the request need not compute
    bytes: int  # on one GPU

    def load(self) -> Load:
        """The same as the mover takes it."""
        return Load.of_parts(self.job, [g.part() for g in self.groups], self.lane)


@dataclass(frozen=True, slots=True, eq=False)
class StoreSpec:
    """One store of one request's finished chunks."""

    job: int
    request: str
    groups: tuple[GroupBlocks, ...]
    bytes: int

    def store(self) -> Store:
        """The same as the mover takes it."""
        return Store.of_parts(self.job, [g.part() for g in self.groups])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OffloadPlan:
    """What every worker is to do for one step.

    In this order: submit `stores`, which read what earlier steps computed; wait for the jobs in `flushes` (on the
    device is enough), because this step writes slots that they read; submit the loads; wait for `sync_loads` before
    the forward pass. A flush can name a store of this plan or of an earlier one.
    """

    step: int
    decisions: tuple[Decision, ...]
    sync_loads: tuple[LoadSpec, ...]
    async_loads: tuple[LoadSpec, ...]
    stores: tuple[StoreSpec, ...]
    flushes: tuple[int, ...]  # store jobs to wait for before loads and the forward pass write
    budget_bytes: int
    sync_bytes: int  # of sync loads; never more than the budget
    version: int = OFFLOAD_VERSION

    @property
    def jobs(self) -> tuple[int, ...]:
        """Every job that a worker reports exactly once, in the order in which it is submitted."""
        stores, loads = (s.job for s in self.stores), (s.job for s in (*self.sync_loads, *self.async_loads))
        return (*stores, *loads)


@dataclass(frozen=True, slots=True)
class JobResult:
    """How a job ended on one rank. Each rank reports each job of a plan exactly once, sync loads included.

    `error` is None, or a sentence that says what went wrong. A rank reports once its devices use neither the job's
    slots nor its host blocks any more, also where it failed.
    """

    job: int
    rank: int
    error: str | None = None

    @property
    def ok(self) -> bool:
        return self.error is None


class LookupKind(StrEnum):
    """What a lookup found."""

    MISS = "miss"  # nothing beyond the GPU cache: compute
    HIT = "hit"  # ask `decide`
    JOINED = "joined"  # another load brings these keys: park without slots, until it is released


@dataclass(frozen=True, slots=True)
class Lookup:
    """The answer of `OffloadScheduler.lookup`.

    Attributes:
        kind: what was found.
        blocks: blocks beyond the cached ones that could be loaded; 0 unless it is a hit.
        tokens: tokens that these save; the last block may be counted in part, since one token is left to compute.
        bytes: what loading all of it moves to one GPU.
        joined_job: the load that was joined.
    """

    kind: LookupKind
    blocks: int = 0
    tokens: int = 0
    bytes: int = 0
    joined_job: int | None = None


@dataclass(frozen=True, slots=True)
class Released:
    """A parked request may be scheduled again. Each parking ends in exactly one of these, or in its abort.

    Attributes:
        job: the load that ended.
        tokens: leading tokens of the request that are in its slots now. After a failure, those that were there
            before. Fewer where a sync load failed meanwhile whose slots the request shares: `FailedLoad` has named it.
            For a joined request 0: it has no slots, and asks the GPU cache and `lookup` again.
        joined: it had joined the load of another request.
        error: why the load failed; None where it did not.
    """

    request: str
    job: int
    tokens: int
    joined: bool = False
    error: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class FailedLoad:
    """A sync load failed: what the step computed from it is not to be published.

    Attributes:
        request: whose load it was.
        requests: every request that has one of the slots in its table, the first included: the engine drops
            this step's output for all of them, takes the slots out of its prefix cache, and computes them again.
            Some may have ended, or lost their slots, since they used them.
        tokens: leading tokens of `request` that were in the GPU cache before the load and still hold.
    """

    job: int
    request: str
    requests: tuple[str, ...]
    tokens: int
    groups: tuple[GroupBlocks, ...]
    error: str


@dataclass(frozen=True, slots=True)
class FailedStore:
    """A store failed: its keys are forgotten, and the engine has nothing to do."""

    job: int
    request: str
    error: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a batch of results means for the engine.

    Attributes:
        released: async loads that ended, and who had joined them. Sync loads never appear here.
        failed_loads: sync loads that failed.
        failed_stores: for the log.
        freed: requests that ended or were preempted while a load still wrote their slots: their slots are free now.
    """

    released: tuple[Released, ...] = ()
    failed_loads: tuple[FailedLoad, ...] = ()
    failed_stores: tuple[FailedStore, ...] = ()
    freed: tuple[str, ...] = ()

    def check(self) -> None:
        """Raise where a sync load failed; call it at the step's output sync, before a token is published.

        Raises:
            SyncLoadFailed: names every request whose output of this step is to be dropped, the jobs and the reasons.
        """
        if not self.failed_loads:
            return
        requests = tuple(dict.fromkeys(name for failed in self.failed_loads for name in failed.requests))
        what = "; ".join(f"load {f.job} of {f.request}: {f.error}" for f in self.failed_loads)
        raise SyncLoadFailed(
            f"sync load failed: {what}; drop this step's output of {', '.join(requests)} and compute them again",
            jobs=[failed.job for failed in self.failed_loads],
            requests=requests,
        )


__all__ = [
    "OFFLOAD_VERSION",
    "Action",
    "FailedLoad",
    "FailedStore",
    "Group",
    "GroupBlocks",
    "GroupKind",
    "JobResult",
    "LoadSpec",
    "Lookup",
    "LookupKind",
    "OffloadPlan",
    "Outcome",
    "Released",
    "StoreSpec",
]
