"""One step as an engine's scheduler would decide it, with the reasons, and without an engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvmove.kvpol.trace import Trace, trace
from kvmove.records import Action, Decision, Demotion, Hit, StepState
from kvmove.schedule.guard_rails import decision_after_guard_rails
from kvmove.schedule.ledger import Ledger
from kvmove.schedule.policy import BoundPolicy

if TYPE_CHECKING:
    from kvmove.kvpol.policy import Policy

MAX_DEFERRALS = 16  # what a scheduler has that was told nothing else

WHY = {
    Demotion.OVER_BUDGET: "more bytes than the step's budget has left",
    Demotion.NOTHING_TO_COMPUTE: "the step would have no token of it to compute",
    Demotion.DEFERRED_TOO_OFTEN: f"deferred {MAX_DEFERRALS} times already",
}


@dataclass(frozen=True, slots=True)
class DryDecision:
    """What happens to a hit, and how the policy came to ask for it."""

    hit: Hit
    decision: Decision  # after the guard rails
    trace: Trace  # before them


class DryRun:
    """A step in which hits are decided one after the other; what loads inside it is debited from its budget."""

    def __init__(self, policy: Policy, state: StepState) -> None:
        self._policy, self._bound, self._ledger = policy, BoundPolicy(policy), Ledger(state)

    def decide(self, hit: Hit) -> DryDecision:
        """Decide the next hit of the step."""
        traced = trace(self._policy, hit, self._ledger)
        decision = decision_after_guard_rails(traced.verdict, hit, self._bound, self._ledger, MAX_DEFERRALS)
        if decision.action is Action.SYNC:
            self._ledger.reserve(decision.bytes)
        return DryDecision(hit, decision, traced)
