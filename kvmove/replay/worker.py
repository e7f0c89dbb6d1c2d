"""The worker's side of a step: moves what the plan says, lets the model compute, and compares every loaded page."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from kvmove.move import load_batch, store_batch
from kvmove.records import StepPlan
from kvmove.replay.replica import Replica
from kvmove.replay.sequence import Placed
from kvmove.replay.tally import Mismatch, Tally
from kvmove.replay.transfers import EndedJobs


class Source(StrEnum):
    """Where a block that was not computed came from."""

    SYNC_LOAD = "sync load"
    ASYNC_LOAD = "async load"
    GPU_CACHE = "GPU cache"


class Worker:
    """Moves and checks bytes; it knows no policy and no time."""

    def __init__(self, replica: Replica, tally: Tally) -> None:
        self._replica = replica
        self._tally = tally
        self._ended = EndedJobs(replica.mover)

    def run_step(
        self, plan: StepPlan, *, loaded: Sequence[Placed], cached: Sequence[Placed], computed: Sequence[Placed]
    ) -> None:
        """Do one step, in the order in which an engine's worker does it.

        Args:
            loaded: what the plan's sync loads bring, in their order.
            cached: what requests of this step use from the GPU cache.
            computed: the blocks that this step completes.

        Raises:
            MoveFailed: a sync load failed.
        """
        replica, mover = self._replica, self._replica.mover
        # Stores first: their slots may have been given to others in this very step.
        if plan.stores:
            store_batch(mover, plan.stores)
        loads = [*plan.sync_loads, *plan.async_loads]
        if loads:
            slots = [slot for load in loads for slot in load.dst_slots.tolist()]
            mover.wait_for_slots(slots)
            replica.poison(slots)
            ticket = load_batch(mover, loads)
            ticket.wait()
        self._compute(computed)
        if loads:
            ticket.check()
        for load in plan.sync_loads:
            self._tally.ended(self._ended.take(load.job))
        self._verify(Source.SYNC_LOAD, loaded)
        self._verify(Source.GPU_CACHE, cached)

    def end_load(self, job: int, loaded: Placed) -> None:
        """Take in the end of an async load, and compare what it brought.

        Raises:
            MoveFailed: it failed.
        """
        self._tally.ended(self._ended.take(job))
        self._verify(Source.ASYNC_LOAD, [loaded])

    def end_store(self, job: int) -> None:
        """Take in the end of a store.

        Raises:
            MoveFailed: it failed.
        """
        self._tally.ended(self._ended.take(job))

    def check_idle(self) -> None:
        """Raise `InternalError` where the mover still reports something."""
        self._ended.check_empty()

    def _compute(self, computed: Sequence[Placed]) -> None:
        if not computed:
            return
        slots = [slot for placed in computed for slot in placed.slots]
        self._replica.mover.wait_for_slots(slots)
        self._replica.fill(slots, [block for placed in computed for block in placed.block_hashes])

    def _verify(self, source: Source, placed: Sequence[Placed]) -> None:
        if not placed:
            return
        blocks = [(p.request, block) for p in placed for block in p.block_hashes]
        slots = [slot for p in placed for slot in p.slots]
        wrong = self._replica.wrong_pages(slots, [block for _, block in blocks])
        self._tally.compared(source is not Source.GPU_CACHE, len(blocks))
        for position, page in wrong.tolist():
            request, block = blocks[position]
            self._tally.mismatch(Mismatch(request, source, block, page))
