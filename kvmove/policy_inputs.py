"""What a policy sees: a `Hit`, and the `StepState` of the engine's step.

The public names are in `kvmove.records`. Both records keep to the ranges and invariants of `kvmove.schema`, where
every variable of the policy language is one of their attributes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass

from kvmove import schema
from kvmove.errors import RecordError
from kvmove.prefix import BlockSizes


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


def _check_cuts(cuts: tuple[int, ...], blocks: int) -> None:
    last = 0
    for cut in cuts:
        if type(cut) is not int or not last < cut < blocks:
            raise RecordError(f"hit: cuts is {cuts!r}; rising ints from 1 to {blocks - 1} are needed, or None")
        last = cut


def _test_of(variables: tuple[schema.Variable, ...]) -> Callable[[object], bool]:
    """A function that says whether all the variables of a record are in range.

    Written out as one expression, because a record is built for every hit: a loop over a dozen variables would take
    a quarter of the time of a decision.
    """
    tests = []
    for v in variables:
        value = f"r.{v.attribute}"
        test = f"type({value}) is int and {v.low} <= {value} <= {v.high}"
        tests.append(f"({value} is None or {test})" if v.optional else f"({test})")
    made: Callable[[object], bool] = eval(f"lambda r: {' and '.join(tests)}")  # of names and numbers of our own
    return made


def _check_ranges(record: object, variables: tuple[schema.Variable, ...], what: str) -> None:
    if _IN_RANGE[what](record):
        return
    for v in variables:
        value = getattr(record, v.attribute)
        if (type(value) is int and v.low <= value <= v.high) or (value is None and v.optional):
            continue
        if type(value) is not int:
            hint = " or None" if v.optional else ""
            raise RecordError(f"{what}: {v.attribute} is {value!r}; an int{hint} is needed ({v.doc})")
        raise RecordError(f"{what}: {v.attribute} is {value}, outside [{v.low}, {v.high}] ({v.doc})")


_IN_RANGE = {"hit": _test_of(schema.HIT), "step": _test_of(schema.STEP)}


def _check_invariants(record: object, invariants: tuple[schema.Invariant, ...], what: str) -> None:
    for invariant in invariants:
        if not invariant.holds(record):
            raise RecordError(f"{what}: {invariant.complaint_about(record)}")
