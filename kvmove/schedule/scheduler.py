"""The scheduler of one engine: takes its step from the beginning to the plan, and refuses calls out of order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kvmove.errors import InternalError, Refused
from kvmove.records import Decision, Hit, Load, StepPlan, StepState, Store
from kvmove.schedule.asking import Asking
from kvmove.schedule.ledger import Ledger
from kvmove.schedule.open_step import OpenStep
from kvmove.schedule.policy import HitPolicy
from kvmove.schedule.statistics import Counters, Statistics
from kvmove.schedule.upcoming import PolicySource, Upcoming
from kvmove.schedule.why_not import WhyNot

if TYPE_CHECKING:
    from kvmove.transfers import IndexLike


class StepScheduler:
    """Decides, step by step, what each hit does, and never lets a step load more than its budget inside itself.

    The life of a step:

    1. `begin_step`: a new ledger. A policy or budget set since the last step takes effect here and only here.
       A step that was never ended, because the engine failed in it, is forgotten here.
    2. For every hit, `decide`: the policy's answer after the guard rails. A sync decision reserves its bytes.
    3. For every request that the engine then gave slots, `admit` or `confirm`; for one that it did not, `refund`.
       Steps 2 and 3 alternate freely; `store` adds what this step stores.
    4. `end_step`: the plan for the workers. Decisions to load that were not admitted by then are refunded.
       Or `abort_step`: no plan.

    The guard rails, whatever the policy says: sync bytes stay within the budget; a hit that leaves nothing to
    compute is not sync; a request is deferred at most `max_deferrals` times; a policy that raises or returns
    nonsense leaves the rest of its step all async, is counted, and is reported to the log once.

    A call in the wrong order, or for a request without a decision, raises `Refused` and changes nothing.

    The caller's duties: one thread at a time; `Hit.bytes` is the maximum over the GPUs of a group;
    `Hit.deferrals` counts the steps that deferred the request; the jobs of an aborted step are not submitted.

    Args:
        policy: anything with the shape of `HitPolicy`, such as a `kvmove.Policy`; or a source of one, such as a
            `kvmove.PolicyFile`, whose `current` is read once a step, when the step begins.
        budget_bytes: bytes per GPU that a step may load inside itself; 0 turns sync off. None: what the policy
            says, and where it says nothing, `schema.DEFAULT_BUDGET_BYTES`.
        max_deferrals: how often a request may be deferred; 0 turns deferral off.
        shadow: a policy, or a source of one, that decides about the same hits beside the live one, with a ledger of
            its own, and changes nothing. What it would have done is in `statistics().shadow`.
        explain_every: explain every so many decisions in `statistics().why_not`; 1 explains all, 0 none. Explaining
            takes hundreds of times as long as deciding.

    Raises:
        Refused: an argument is out of range, or a policy has no usable rules.
    """

    def __init__(
        self,
        policy: HitPolicy | PolicySource,
        *,
        budget_bytes: int | None = None,
        max_deferrals: int = 16,
        shadow: HitPolicy | PolicySource | None = None,
        explain_every: int = 0,
    ) -> None:
        if type(explain_every) is not int or explain_every < 0:
            raise Refused(f"explain_every is {explain_every!r}; an int of at least 0 is needed (0 explains nothing)")
        if type(max_deferrals) is not int or max_deferrals < 0:
            raise Refused(f"max_deferrals is {max_deferrals!r}; an int of at least 0 is needed (0 turns deferral off)")
        self._upcoming = Upcoming(policy, budget_bytes)
        self._upcoming.set_shadow(shadow)
        self._step: OpenStep | None = None
        self._steps_begun = 0
        self._next_job = 0
        self._counters = Counters()
        self._why_not = WhyNot(explain_every) if explain_every else None
        self._max_deferrals = max_deferrals
        self._asking = Asking(max_deferrals, self._counters, self._why_not)

    def set_policy(self, policy: HitPolicy | PolicySource) -> None:
        """Use another policy from the next `begin_step` on; a step under way keeps the one it began with.

        A source that was followed so far is not followed any more.

        Raises:
            Refused: the policy has no usable rules or a budget out of range; the present one stays.
        """
        self._upcoming.set_policy(policy)

    def set_shadow(self, policy: HitPolicy | PolicySource | None) -> None:
        """Try another policy out from the next `begin_step` on, with counters at zero; None: none any more.

        The counters of a source's shadow begin at zero with each policy that it has.

        Raises:
            Refused: the policy has no usable rules or a budget out of range; the present one stays.
        """
        self._upcoming.set_shadow(policy)

    def set_budget(self, budget_bytes: int | None) -> None:
        """Use another budget from the next `begin_step` on; None returns to the policy's.

        Raises:
            Refused: the budget is out of range; the present one stays.
        """
        self._upcoming.set_budget(budget_bytes)

    def begin_step(
        self,
        *,
        inflight_bytes: int = 0,
        inflight_loads: int = 0,
        drain_time_ns: int | None = None,
        step_time_ns: int | None = None,
        async_delay_ns: int | None = None,
        running: int = 0,
        waiting: int = 0,
        free_slots: int = 0,
    ) -> StepState:
        """Start a step with its whole budget, and return the state that the first hit will see.

        Raises:
            RecordError: a value is out of the schema's range; a step that was under way goes on.
        """
        bound = self._upcoming.bound()
        budget_bytes = self._upcoming.budget_bytes(bound)
        state = StepState(
            budget_bytes=budget_bytes,
            budget_remaining_bytes=budget_bytes,
            inflight_bytes=inflight_bytes,
            inflight_loads=inflight_loads,
            drain_time_ns=drain_time_ns,
            step_time_ns=step_time_ns,
            async_delay_ns=async_delay_ns,
            running=running,
            waiting=waiting,
            free_slots=free_slots,
        )
        if self._step is not None:
            self._counters.aborted_steps += 1
        shadow = self._upcoming.shadow_step(state, self._max_deferrals)
        self._step = OpenStep(self._steps_begun, bound, Ledger(state), shadow)
        self._steps_begun += 1
        self._counters.add_policy(bound.hash, len(bound.actions))
        return state

    def decide(self, hit: Hit) -> Decision:
        """Decide what this hit does in this step; the budget that a sync load takes is reserved at once.

        A second call for a request replaces its first decision, whose reservation is refunded beforehand.
        Where the policy failed in this step, `asked` and `rule` of the decision are None.

        Raises:
            Refused: no step is open, or the request was admitted already.
        """
        step = self._require_step("decide")
        step.require_unadmitted(hit.request)
        return self._asking.decide(step, hit)

    def decide_batch(self, hits: Sequence[Hit]) -> list[Decision]:
        """Decide what each of these hits does in this step: the same as `decide` for one after the other, in less time.

        Raises:
            Refused: no step is open, or a request was admitted already; nothing is decided then.
        """
        step = self._require_step("decide_batch")
        for hit in hits:
            step.require_unadmitted(hit.request)
        return self._asking.decide_batch(step, hits) if hits else []

    def admit(self, request: str, src_blocks: IndexLike, dst_slots: IndexLike) -> Load:
        """Turn a decision to load into a load: host block `src_blocks[i]` goes to slot `dst_slots[i]`.

        Call it when the engine has allocated the slots. The job id is new; the lane follows the decision.
        That the slots are free and the host blocks pinned is the caller's duty; the mover refuses a plan that
        writes a slot twice.

        Args:
            request: a request whose decision in this step is sync or async.
            src_blocks: host blocks, flat ints, as many as the decision has.
            dst_slots: GPU slots, flat ints, as many.

        Raises:
            Refused: no step is open, the request has no decision to load in it, has a load already, or the
                number of blocks is not the decision's.
            RecordError: the arrays differ in length or do not hold indices.
        """
        step = self._require_step("admit")
        decision, lane = step.require_unadmitted_load("admit", request)
        if len(src_blocks) != decision.blocks:
            raise Refused(
                f"admit: {len(src_blocks)} blocks for {request}, but its decision has {decision.blocks}; "
                f"pass these, or refund({request!r}) and decide a hit of the right size"
            )
        load = Load(self._next_job, src_blocks, dst_slots, lane)
        self._next_job += 1
        step.loads[request] = load
        return load

    def confirm(self, request: str) -> None:
        """Keep a decision to load whose load the caller makes, since `admit` makes none of several groups.

        Instead of `admit`: the decision and its bytes are in the plan, the load is not.

        Raises:
            Refused: no step is open, or the request has no decision to load in it, or is admitted already.
        """
        step = self._require_step("confirm")
        step.require_unadmitted_load("confirm", request)
        step.confirmed.add(request)

    def refund(self, request: str) -> None:
        """Take a decision back because the engine does not run the request in this step after all.

        Its bytes return to the budget, and its load, if it was admitted, leaves the plan; the job id stays used.

        Raises:
            Refused: no step is open, or the request has no decision in it.
        """
        step = self._require_step("refund")
        step.require_decision("refund", request)
        step.drop(request)
        self._counters.refunds += 1

    def store(self, src_slots: IndexLike, dst_blocks: IndexLike) -> Store:
        """Add a store to the step: slot `src_slots[i]` goes to host block `dst_blocks[i]`.

        Raises:
            Refused: no step is open.
            RecordError: the arrays are empty, differ in length or do not hold indices.
        """
        step = self._require_step("store")
        store = Store(self._next_job, src_slots, dst_blocks)
        self._next_job += 1
        step.stores.append(store)
        return store

    def end_step(self) -> StepPlan:
        """Close the step and return its plan; what was to load and was not admitted is refunded first.

        Raises:
            Refused: no step is open.
        """
        step = self._require_step("end_step")
        for request in step.unadmitted():
            step.drop(request)
            self._counters.unadmitted += 1
        plan = step.plan()
        self._step = None
        self._counters.add_plan(plan)
        if step.shadow is not None:
            step.shadow.end(plan.decisions)
        if self._why_not is not None:
            self._why_not.add_step(step.bound, step.explained.values())
        return plan

    def abort_step(self) -> None:
        """Forget the step: no plan, and nothing reserved. Its job ids are not used again.

        The caller does not submit its jobs, and releases what it prepared for them in the host tier.

        Raises:
            Refused: no step is open. (After an error, `begin_step` alone is enough.)
        """
        self._require_step("abort_step")
        self._step = None
        self._counters.aborted_steps += 1

    def statistics(self) -> Statistics:
        """Return what happened since the scheduler was made."""
        why_not = () if self._why_not is None else self._why_not.snapshot()
        return self._counters.snapshot(self._next_job, self._upcoming.shadow_statistics(), why_not)

    def check_integrity(self) -> None:
        """Raise `InternalError` where an invariant of the open step is broken; for tests and debugging."""
        step = self._step
        if step is None:
            return
        step.check_integrity()
        for job in step.jobs():
            if job >= self._next_job:
                raise InternalError(f"job {job} is in step {step.number}, but the next job id is {self._next_job}")

    def _require_step(self, call: str) -> OpenStep:
        if self._step is None:
            raise Refused(f"{call}: no step is open; call begin_step() first")
        return self._step
