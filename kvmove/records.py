"""The records that the deciding half, the moving half and the engine exchange; all are imported from here.

What a policy sees is defined in `kvmove.policy_inputs`, what is to be copied in `kvmove.transfers`; what was decided,
planned and done is defined here.

Plain, frozen and picklable, because engines send them between processes; `RECORDS_VERSION` changes when a
field does. Every range is checked when a record is built, so that nothing behind it has to check again.
Nothing here imports torch, and numpy is imported only where an index array is made.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from kvmove.errors import RecordError
from kvmove.policy_inputs import Hit, StepState
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


def _check_counts(who: str, **counts: int) -> None:
    for name, value in counts.items():
        if type(value) is not int or value < 0:
            raise RecordError(f"{who}: {name} is {value!r}; an int of at least 0 is needed")
