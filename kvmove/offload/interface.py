"""The calls that an engine makes to an offload scheduler: what `OffloadScheduler` is, and any model of it."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

from kvmove.records import Decision

if TYPE_CHECKING:
    from kvmove.offload.records import JobResult, Lookup, OffloadPlan, Outcome
    from kvmove.transfers import IndexLike


class OffloadCalls(Protocol):
    """One step: `begin_step`; for each waiting request `lookup`, and on a hit `decide`; for each request that the step
    runs or that is to load `update_after_alloc`, before the next request's `lookup`; `build_step`. Results are taken
    between steps. A request may be preempted, finished or aborted at any time.
    """

    def on_request(self, request: str, keys: Sequence[Hashable], num_tokens: int) -> None:
        """Make a request known: one chained key a whole chunk of its tokens, all of which are known now."""

    def extend(self, request: str, keys: Sequence[Hashable], num_tokens: int) -> None:
        """The request has grown to `num_tokens` tokens, and has these further keys."""

    def begin_step(self, *, running: int = 0, waiting: int = 0, free_slots: int = 0) -> None:
        """Open a step with its whole budget; a step left open is aborted."""

    def lookup(self, request: str, cached_tokens: int) -> Lookup:
        """What is in the tier beyond the tokens (whole blocks) that the GPU cache has; may join another's load."""

    def decide(self, request: str) -> Decision:
        """What the request does with the hit that `lookup` found in this step."""

    def update_after_alloc(self, request: str, slots: Sequence[IndexLike]) -> None:
        """The request's block tables: `slots[g][i]` is the slot of block i in group g. Admits a load decided."""

    def refund(self, request: str) -> None:
        """The engine does not run or park the request in this step after all."""

    def build_step(self) -> OffloadPlan:
        """Close the step: its loads, the stores deferred so far, and what to flush."""

    def abort_step(self) -> None:
        """Forget the open step; nothing of it is submitted."""

    def computed(self, request: str, num_tokens: int) -> None:
        """The request's leading `num_tokens` tokens have their KV in its slots: whole chunks are stored next step."""

    def on_results(self, results: Iterable[JobResult]) -> Outcome:
        """Take in results of any ranks, in any order."""

    def worker_died(self, rank: int, error: str) -> Outcome:
        """Fail, for this rank, every job that it has not reported; load and store nothing until it was replaced.

        With it, the KV in all slots is lost: requests that have some are to be preempted.
        """

    def worker_replaced(self, rank: int, *, kept_pool: bool) -> None:
        """The rank has a worker again; without the pool's contents, nothing that was stored is served any more."""

    def preempt(self, request: str) -> bool:
        """The request loses its slots and waits again; whether they are free now, else `Outcome.freed` names it."""

    def finish(self, request: str) -> bool:
        """The request ended; deferred stores are still made. Whether its slots are free now (see `preempt`)."""

    def abort(self, request: str) -> bool:
        """The request was cancelled; deferred stores are still made. Whether its slots are free now."""

    def reset_cache(self) -> None:
        """Serve nothing that was stored so far, nor what is being stored (as after a change of weights)."""

    def check_integrity(self) -> None:
        """Raise `InternalError` where an invariant is broken; for tests."""
