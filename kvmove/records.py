"""The records that the deciding half, the moving half and the engine exchange.

Plain, frozen and picklable, because engines send them between processes; `RECORDS_VERSION` changes when a
field does. Every range is checked when a record is built, so that nothing behind it has to check again.
Nothing here imports torch, and numpy is imported only where an index array is made.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from operator import attrgetter

from kvmove import schema
from kvmove.errors import RecordError
from kvmove.prefix import BlockSizes, GroupBytes
from kvmove.transfers import JobKind, Lane, Load, Part, Store

__all__ = [
    "RECORDS_VERSION",
    "Action",
    "BlockSizes",
    "Decision",
    "Demotion",
    "GroupBytes",
    "Hit",
    "JobKind",
    "Lane",
    "Load",
    "Part",
    "Result",
    "StepPlan",
    "StepState",
    "Store",
]

RECORDS_VERSION = 4

_Limits = tuple[tuple[int, int, bool], ...]


class Action(StrEnum):
    """What to do with a hit in this step."""

    SYNC = "sync"  # load it inside this step
    ASYNC = "async"  # load it in the background; the request is parked until it is there
    RECOMPUTE = "recompute"  # ignore the hit and compute its tokens
    DEFER = "defer"  # ask again in the next step


class Demotion(StrEnum):
    """Why a guard rail gave another action than the policy's."""

    OVER_BUDGET = "over_budget"  # sync asked, but the step's budget has no room for the bytes
    NOTHING_TO_COMPUTE = "nothing_to_compute"  # sync asked, but the step would have no token of it to compute
    DEFERRED_TOO_OFTEN = "deferred_too_often"  # defer asked once too often
    POLICY_FAILED = "policy_failed"  # the policy raised in this step


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """A request's prefix that is in the host tier and not in the GPU cache, as a policy sees it.

    Times are nanoseconds; `None` is an unknown estimate. Ranges are those of `kvmove.schema`.

    A policy may load only some leading blocks. What these weigh follows from `sizes`; without it the blocks are
    taken to be equally large, as near as whole bytes and tokens allow, rounded up. Give `sizes` where the last
    block is partial or a group has a sliding window: the sizes of a cut are exact then. The whole hit always
    weighs `bytes`, and with windows that can be less than one block less weighs.

    Raises:
        RecordError: a value is out of range, the token counts do not add up, or the hit is not of such blocks.
    """

    request: str
    bytes: int
    tokens: int
    blocks: int
    prompt_tokens: int
    cached_tokens: int
    compute_tokens: int
    load_time_ns: int | None = None
    recompute_time_ns: int | None = None
    waited_ns: int = 0
    deferrals: int = 0
    priority: int = 0
    deadline_left_ns: int | None = None
    sizes: BlockSizes | None = None
    cuts: tuple[int, ...] | None = None  # leading blocks at which the hit can be cut, rising; None: at every block

    def __post_init__(self) -> None:
        _check_ranges(self, schema.HIT, "hit")
        _check_invariants(self, schema.HIT_INVARIANTS, "hit")
        if self.sizes is not None:
            problem = self.sizes.why_not(self.bytes, self.tokens, self.blocks)
            if problem is not None:
                raise RecordError(f"hit: {problem}")
        if self.cuts is not None:
            _check_cuts(self.cuts, self.blocks)

    def prefix_bytes(self, blocks: int) -> int:
        """Bytes that loading the leading `blocks` moves to one GPU; `blocks` is from 1 to all of them."""
        if blocks == self.blocks:
            return self.bytes
        return -(-blocks * self.bytes // self.blocks) if self.sizes is None else self.sizes.bytes_of(blocks)

    def prefix_tokens(self, blocks: int) -> int:
        """Tokens that the leading `blocks` cover; `blocks` is from 1 to all of them."""
        if blocks == self.blocks:
            return self.tokens
        return -(-blocks * self.tokens // self.blocks) if self.sizes is None else blocks * self.sizes.block_tokens

    def blocks_within_bytes(self, limit_bytes: int) -> int:
        """The most leading blocks at which the hit can be cut and that weigh no more than the limit; 0: none does."""
        if limit_bytes >= self.bytes:
            return self.blocks
        if limit_bytes <= 0:
            return 0
        if self.sizes is None:
            # k blocks weigh k * bytes / blocks, rounded up: no more than a whole limit exactly when the quotient is.
            return self._last_cut(limit_bytes * self.blocks // self.bytes)
        return self._last_cut(self.sizes.blocks_within(limit_bytes, self.blocks - 1))

    def blocks_within_tokens(self, limit_tokens: int) -> int:
        """The most leading blocks at which the hit can be cut and that cover no more tokens; 0: none does."""
        if limit_tokens >= self.tokens:
            return self.blocks
        if limit_tokens <= 0:
            return 0
        if self.sizes is None:
            return self._last_cut(limit_tokens * self.blocks // self.tokens)
        return self._last_cut(limit_tokens // self.sizes.block_tokens)

    def _last_cut(self, blocks: int) -> int:
        """The last cut at or before `blocks`, which are fewer than all: longer prefixes of whole blocks weigh more."""
        if self.cuts is None:
            return blocks
        position = bisect_right(self.cuts, blocks)
        return self.cuts[position - 1] if position else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StepState:
    """The state of the engine's step, as a policy sees it.

    Times are nanoseconds; `None` is an unknown estimate. Ranges are those of `kvmove.schema`.

    Raises:
        RecordError: a value is out of range, or more is left of the budget than it had.
    """

    budget_bytes: int
    budget_remaining_bytes: int
    inflight_bytes: int = 0
    inflight_loads: int = 0
    drain_time_ns: int | None = None
    step_time_ns: int | None = None
    async_delay_ns: int | None = None
    running: int = 0
    waiting: int = 0
    free_slots: int = 0
    sync_loads: int = 0

    def __post_init__(self) -> None:
        _check_ranges(self, schema.STEP, "step")
        _check_invariants(self, schema.STEP_INVARIANTS, "step")


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What happens to one hit in this step, and why."""

    request: str
    action: Action  # after the guard rails
    asked: Action | None  # what the policy said; None where it failed
    rule: int | None  # index of the rule that matched; the implicit last rule counts
    blocks: int  # leading blocks of the hit to load; 0 unless the action is sync or async
    tokens: int  # tokens of these blocks
    bytes: int  # bytes of these blocks on one GPU
    policy_hash: str
    demotion: Demotion | None = None
    partial: bool = False  # only some leading blocks of the hit; the rest of its tokens are computed

    def __post_init__(self) -> None:
        blocks, tokens, num_bytes, rule = self.blocks, self.tokens, self.bytes, self.rule or 0
        if not (type(blocks) is type(tokens) is type(num_bytes) is type(rule) is int) or (
            blocks < 0 or tokens < 0 or num_bytes < 0 or rule < 0
        ):
            who = f"decision of {self.request}"
            _check_counts(who, blocks=blocks, tokens=tokens, bytes=num_bytes, rule=rule)
        loads = self.action in (Action.SYNC, Action.ASYNC)
        if loads != (self.blocks > 0):
            raise RecordError(f"decision of {self.request}: {self.action} with {self.blocks} blocks to load")
        if self.partial and not loads:
            raise RecordError(f"decision of {self.request}: {self.action} loads nothing, so it is not partial")
        failed = self.demotion is Demotion.POLICY_FAILED
        if (self.action is self.asked) != (self.demotion is None) or failed != (self.asked is None):
            raise RecordError(
                f"decision of {self.request}: asked {self.asked}, got {self.action}, demotion {self.demotion}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """Everything that was decided for one step: what the engine's workers are to move."""

    step: int
    decisions: tuple[Decision, ...]
    sync_loads: tuple[Load, ...]  # expedited; their requests run in this step
    async_loads: tuple[Load, ...]  # bulk; their requests are parked
    stores: tuple[Store, ...]
    budget_bytes: int
    sync_bytes: int  # admitted as sync; never more than the budget
    version: int = RECORDS_VERSION

    def __post_init__(self) -> None:
        _check_counts("step plan", step=self.step, budget_bytes=self.budget_bytes, sync_bytes=self.sync_bytes)
        if self.sync_bytes > self.budget_bytes:
            raise RecordError(f"step {self.step}: {self.sync_bytes} sync bytes exceed the budget {self.budget_bytes}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """How one job ended. `error` is None, or a sentence that says what went wrong."""

    job: int
    kind: JobKind
    path: str  # direct, tma, staged, engine or reference
    lane: Lane
    blocks: int  # GPU blocks, of all its groups
    bytes: int  # payload bytes moved
    elapsed_ns: int | None  # from the start of its copies to their end on the device; None if not measured
    error: str | None = None
    predicted_ns: int | None = None  # `elapsed_ns` as the mover's profile has it; None without one
    queued_ns: int | None = None  # device time from where the caller's stream was to the start of its copies, or None

    def __post_init__(self) -> None:
        times = {name: getattr(self, name) or 0 for name in ("elapsed_ns", "predicted_ns", "queued_ns")}
        _check_counts("result", job=self.job, blocks=self.blocks, bytes=self.bytes, **times)
        if not isinstance(self.kind, JobKind) or not isinstance(self.lane, Lane):
            raise RecordError(f"result of job {self.job}: kind {self.kind!r} in lane {self.lane!r}")


def _check_cuts(cuts: tuple[int, ...], blocks: int) -> None:
    last = 0
    for cut in cuts:
        if type(cut) is not int or not last < cut < blocks:
            raise RecordError(f"hit: cuts is {cuts!r}; rising ints from 1 to {blocks - 1} are needed, or None")
        last = cut


def _check_counts(who: str, **counts: int) -> None:
    for name, value in counts.items():
        if type(value) is not int or value < 0:
            raise RecordError(f"{who}: {name} is {value!r}; an int of at least 0 is needed")


def _limits(variables: tuple[schema.Variable, ...]) -> tuple[Callable[[object], tuple[object, ...]], _Limits]:
    """What reads all the variables of a record at once, and the range and optionality of each."""
    return attrgetter(*(v.attribute for v in variables)), tuple((v.low, v.high, v.optional) for v in variables)


def _check_ranges(record: object, variables: tuple[schema.Variable, ...], what: str) -> None:
    read, limits = _LIMITS[what]
    for value, (low, high, optional) in zip(read(record), limits, strict=True):
        if not (type(value) is int and low <= value <= high) and not (value is None and optional):
            break
    else:  # a record is built for every hit, so the usual case has a loop that does nothing else
        return
    for v in variables:
        value = getattr(record, v.attribute)
        if (type(value) is int and v.low <= value <= v.high) or (value is None and v.optional):
            continue
        if type(value) is not int:
            hint = " or None" if v.optional else ""
            raise RecordError(f"{what}: {v.attribute} is {value!r}; an int{hint} is needed ({v.doc})")
        raise RecordError(f"{what}: {v.attribute} is {value}, outside [{v.low}, {v.high}] ({v.doc})")


_LIMITS = {"hit": _limits(schema.HIT), "step": _limits(schema.STEP)}


def _check_invariants(record: object, invariants: tuple[schema.Invariant, ...], what: str) -> None:
    for invariant in invariants:
        if not invariant.holds(record):
            raise RecordError(f"{what}: {invariant.complaint_about(record)}")
