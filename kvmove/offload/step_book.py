"""What the open step did for requests: their new slots, the loads admitted for them, and how to take it back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kvmove.errors import Refused
from kvmove.offload.endings import Endings
from kvmove.offload.loads import LoadBook, LoadJob
from kvmove.offload.records import Group
from kvmove.offload.requests import Before, Request, RequestState
from kvmove.offload.tables import block_tables, new_slots
from kvmove.schedule import StepScheduler
from kvmove.tier import HostTier

if TYPE_CHECKING:
    from kvmove.transfers import IndexArray, IndexLike


class StepBook:
    """Keeps, between the beginning and the end of a step, what it changed of requests.

    A step that ends lets all of it stand (`close`). A request that does not take part after all is as before
    (`undo`), unless others depend on its load already (`leave`).

    Attributes:
        is_open: whether there is a step.
        written: groups and slots that the step writes: what a store may still read there has to be flushed.
    """

    def __init__(
        self, steps: StepScheduler, tier: HostTier, loads: LoadBook, endings: Endings, groups: Sequence[Group],
        block_tokens: int,
    ) -> None:  # fmt: skip
        self._steps = steps
        self._tier = tier
        self._loads = loads
        self._endings = endings
        self._num_groups = len(groups)
        self._has_full = any(group.needed_blocks is None for group in groups)
        self._block_tokens = block_tokens
        self._blocks_per_chunk = loads.blocks_per_chunk
        self._requests: dict[str, Request] = {}
        self.is_open = False
        self.written: list[tuple[int, IndexArray]] = []

    def close(self) -> None:
        """The step is over, and what it did stands."""
        for request in self._requests.values():
            request.forget_step()
        self._requests.clear()
        self.written.clear()
        self.is_open = False

    def abort(self) -> None:
        """The step is over, and nothing of it stands."""
        for request in list(self._requests.values()):
            self.undo(request)
        for load in self._loads.unsubmitted():  # of requests that left in this step
            self._endings.withdraw_abandoned(load)
        self._steps.abort_step()
        self.close()

    def load_of(self, request: Request) -> LoadJob | None:
        """The load that the step admitted for the request."""
        for job in request.loads:
            load = self._loads.get(job)
            if load is not None and not load.is_submitted:
                return load
        return None

    def looks_up(self, request: Request, cached_blocks: int) -> None:
        """The request is looked up, perhaps again: what was decided for it in this step does not count."""
        if request.decision is not None:
            self._steps.refund(request.name)
        request.found = request.decision = None
        request.cached_blocks = cached_blocks
        self._requests[request.name] = request

    def allocate(self, request: Request, slots: Sequence[IndexLike], job: int) -> bool:
        """Take the request's block tables, and admit the load that was decided for it as `job`; whether there is one.

        Raises:
            Refused: the tables are none, a load under way writes one of the new slots, a block of the load has no slot
                of its own, or its keys are being loaded since the lookup.
        """
        tables = block_tables(request.name, slots, self._num_groups)
        is_first = not request.tables
        shared: set[int] = set()
        written: list[tuple[int, IndexArray]] = []
        for group, table in enumerate(tables):
            fresh = new_slots(None if is_first else request.tables[group], table)
            for writer, slot in self._loads.writers(group, fresh).items():
                self._refuse_unless_sync(request, group, slot, writer)
                shared.add(writer)
            written.append((group, new_slots(None, table, request.cached_blocks) if is_first else fresh))
        if is_first and request.cached_blocks and not self._has_full:
            # Windows drop the blocks that later ones were computed from, so the table does not show them.
            shared.update(self._loads.sync_jobs())
        load = None
        decision = request.decision
        if decision is not None and decision.blocks and self.load_of(request) is None:
            load = self._loads.admit(job, request, decision, tables)
            self._steps.confirm(request.name)
        self._requests[request.name] = request
        if request.before is None:
            request.before = Before(request)
        if is_first:
            self._begin(request)
        request.tables = tables
        self.written += [(group, fresh) for group, fresh in written if len(fresh)]
        for writer in shared:
            self._depend(request, writer)
        if load is not None and decision is not None:
            request.base_blocks = load.first_blocks + decision.blocks
            if load.is_sync:
                self._depend(request, job)
            else:
                request.state = RequestState.PARKED
        return load is not None

    def refund(self, request: Request) -> None:
        """The request neither runs nor parks in this step.

        Raises:
            Refused: another one got slots that its sync load brings.
        """
        load = self.load_of(request)
        if load is not None and len(load.sharers) > 1:
            others = ", ".join(name for name in load.sharers if name != request.name)
            raise Refused(f"refund: {others} got slots that the sync load of {request.name} brings; refund those first")
        self.undo(request)

    def leave(self, request: Request) -> bool:
        """The request lets go of its slots, and of what the step did for it; whether no load writes the slots now."""
        load = self.load_of(request)
        if load is not None and len(load.sharers) > 1:
            # Others got slots that the load brings: it stays in the plan, and with it what it takes of the budget.
            request.forget_step()
        else:
            self.undo(request)
        self._requests.pop(request.name, None)
        return self._endings.leave(request)

    def undo(self, request: Request) -> None:
        """Take back what the step did for the request."""
        if request.decision is not None:
            self._steps.refund(request.name)
        load, before = self.load_of(request), request.before
        if load is not None:
            self._endings.withdraw(load)
        if before is not None and before.tables:
            before.restore(request)
        elif before is not None:
            for job in request.tainted_by:
                sharing = self._loads.get(job)
                if sharing is not None:
                    sharing.sharers.pop(request.name, None)
            request.lose_slots()
        request.forget_step()
        self._requests.pop(request.name, None)

    def _begin(self, request: Request) -> None:
        """The request has its first slots: what the GPU cache had is in some of them."""
        request.base_blocks = request.cached_blocks
        request.computed_tokens = request.cached_blocks * self._block_tokens
        cached_chunks = request.cached_blocks // self._blocks_per_chunk
        for keys in request.keys if cached_chunks else ():
            self._tier.touch(keys[:cached_chunks])

    def _depend(self, request: Request, job: int) -> None:
        """What the request computes is worth nothing unless this sync load succeeds."""
        load = self._loads.get(job)
        if load is not None:
            load.sharers[request.name] = request
            request.tainted_by.add(job)

    def _refuse_unless_sync(self, request: Request, group: int, slot: int, job: int) -> None:
        """Several requests may hold a slot that a sync load brings; one that an async load writes serves nobody yet."""
        load = self._loads.get(job)
        if load is None or not load.is_sync:
            owner = "another request" if load is None else load.spec.request
            raise Refused(
                f"update_after_alloc: slot {slot} of {request.name} in group {group} is being written by load {job} of "
                f"{owner}; share its blocks once it is released, and free them when abort() or Outcome.freed says so"
            )
