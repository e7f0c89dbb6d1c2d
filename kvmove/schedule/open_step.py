"""Everything that belongs to one step, in one object: a new step starts from nothing because it is a new object."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvmove.errors import InternalError, Refused
from kvmove.records import Action, Decision, Lane, Load, StepPlan, Store
from kvmove.schedule.ledger import Ledger
from kvmove.schedule.policy import BoundPolicy

if TYPE_CHECKING:
    from kvmove.schedule.shadow import ShadowStep
    from kvmove.schedule.why_not import Explanation

LANE_OF = {Action.SYNC: Lane.EXPEDITED, Action.ASYNC: Lane.BULK}


class OpenStep:
    """A step between its beginning and its end.

    Every request has at most one decision. A sync decision holds a reservation in the ledger for as long as it
    is here. `loads` has the admitted ones, in the order of admission, `confirmed` the requests whose loads the caller
    makes. `shadow` is the side of the shadow policy. `explained` says of some decisions why the rules before theirs did
    not match.
    """

    __slots__ = (
        "bound",
        "confirmed",
        "decisions",
        "explained",
        "ledger",
        "loads",
        "number",
        "policy_failed",
        "shadow",
        "stores",
    )

    def __init__(self, number: int, bound: BoundPolicy, ledger: Ledger, shadow: ShadowStep | None = None) -> None:
        self.number = number
        self.bound = bound
        self.ledger = ledger
        self.shadow = shadow
        self.policy_failed = False
        self.decisions: dict[str, Decision] = {}
        self.explained: dict[str, Explanation] = {}
        self.loads: dict[str, Load] = {}
        self.confirmed: set[str] = set()
        self.stores: list[Store] = []

    def add(self, decision: Decision) -> None:
        """Take a decision in, with its reservation."""
        if decision.action is Action.SYNC:
            self.ledger.reserve(decision.bytes)
        self.decisions[decision.request] = decision

    def drop(self, request: str) -> None:
        """Take a decision out again, with its reservation and its load; nothing happens where there is none."""
        decision = self.decisions.pop(request, None)
        if decision is not None:
            self.loads.pop(request, None)
            self.explained.pop(request, None)
            self.confirmed.discard(request)
            if decision.action is Action.SYNC:
                self.ledger.refund(decision.bytes)
            if self.shadow is not None:
                self.shadow.drop(request)

    def is_admitted(self, request: str) -> bool:
        """Return whether the request has a load, made here or by the caller."""
        return request in self.loads or request in self.confirmed

    def unadmitted(self) -> list[str]:
        """Return the requests that were to load and have no load."""
        return [r for r, d in self.decisions.items() if d.action in LANE_OF and not self.is_admitted(r)]

    def jobs(self) -> list[int]:
        """Return the ids of the step's jobs, loads first."""
        return [load.job for load in self.loads.values()] + [store.job for store in self.stores]

    def plan(self) -> StepPlan:
        """Return the step as the record that the engine's workers get."""
        ledger = self.ledger
        return StepPlan(
            step=self.number,
            decisions=tuple(self.decisions.values()),
            sync_loads=tuple(load for load in self.loads.values() if load.lane is Lane.EXPEDITED),
            async_loads=tuple(load for load in self.loads.values() if load.lane is Lane.BULK),
            stores=tuple(self.stores),
            budget_bytes=ledger.budget_bytes,
            sync_bytes=ledger.budget_bytes - ledger.budget_remaining_bytes,
        )

    def require_decision(self, call: str, request: str) -> Decision:
        """Return the request's decision, or raise `Refused` on behalf of `call`."""
        decision = self.decisions.get(request)
        if decision is None:
            raise Refused(f"{call}: {request} has no decision in this step; call decide(hit) first")
        return decision

    def require_unadmitted(self, request: str) -> None:
        """Raise `Refused` where it is too late to decide about this request."""
        if self.is_admitted(request):
            raise Refused(f"decide: {request} is admitted in this step already; call refund({request!r}) first")

    def require_unadmitted_load(self, call: str, request: str) -> tuple[Decision, Lane]:
        """Return the request's decision to load and the load's lane, or raise `Refused` on behalf of `call`."""
        decision = self.require_decision(call, request)
        lane = LANE_OF.get(decision.action)
        if lane is None:
            raise Refused(f"{call}: {request} is to {decision.action} in this step, not to load; leave the call out")
        if self.is_admitted(request):
            job = f"has job {self.loads[request].job}" if request in self.loads else "is confirmed"
            raise Refused(f"{call}: {request} {job} in this step already")
        return decision, lane

    def check_integrity(self) -> None:
        """Raise `InternalError` where decisions, loads and ledger disagree."""
        reserved = [d.bytes for d in self.decisions.values() if d.action is Action.SYNC]
        self.ledger.check_integrity(sum(reserved), len(reserved))
        for request, load in self.loads.items():
            decision = self.decisions.get(request)
            if decision is None or LANE_OF.get(decision.action) is not load.lane:
                raise InternalError(f"job {load.job} of {request} is in lane {load.lane}, decided was {decision}")
            if len(load.src_blocks) != decision.blocks:
                raise InternalError(f"job {load.job} of {request} has {len(load.src_blocks)} blocks: {decision}")
        for request in self.confirmed:
            if request not in self.decisions or self.decisions[request].action not in LANE_OF:
                raise InternalError(f"{request} is confirmed, decided was {self.decisions.get(request)}")
        jobs = self.jobs()
        if len(set(jobs)) != len(jobs):
            raise InternalError(f"step {self.number} uses a job id twice: {sorted(jobs)}")
