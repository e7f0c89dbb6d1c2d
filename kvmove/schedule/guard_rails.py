"""From a policy's verdict to a decision: no policy gets an action past the guard rails."""

from __future__ import annotations

from kvmove.records import Action, Decision, Demotion, Hit
from kvmove.schedule.ledger import Ledger
from kvmove.schedule.open_step import LANE_OF
from kvmove.schedule.policy import BoundPolicy


def decision_after_guard_rails(rule: int, hit: Hit, bound: BoundPolicy, ledger: Ledger, max_deferrals: int) -> Decision:
    """Return what happens to the hit when `rule` matched; nothing is reserved yet."""
    asked = bound.actions[rule]
    demotion = _demotion_of(asked, hit, ledger, max_deferrals)
    # Loading asynchronously is always possible, and never in the way of the step.
    action = asked if demotion is None else Action.ASYNC
    loads = action in LANE_OF
    return Decision(
        request=hit.request,
        action=action,
        asked=asked,
        rule=rule,
        blocks=hit.blocks if loads else 0,
        tokens=hit.tokens if loads else 0,
        bytes=hit.bytes if loads else 0,
        policy_hash=bound.hash,
        demotion=demotion,
    )


def decision_without_policy(hit: Hit, bound: BoundPolicy) -> Decision:
    """Return what happens to the hit when the policy failed in this step, so that it asked for nothing."""
    return Decision(
        request=hit.request,
        action=Action.ASYNC,
        asked=None,
        rule=None,
        blocks=hit.blocks,
        tokens=hit.tokens,
        bytes=hit.bytes,
        policy_hash=bound.hash,
        demotion=Demotion.POLICY_FAILED,
    )


def _demotion_of(asked: Action, hit: Hit, ledger: Ledger, max_deferrals: int) -> Demotion | None:
    if asked is Action.SYNC:
        # A request in the step has to compute at least one token: its logits are what the next one is sampled from.
        if hit.compute_tokens == 0:
            return Demotion.NOTHING_TO_COMPUTE
        if hit.bytes > ledger.budget_remaining_bytes:
            return Demotion.OVER_BUDGET
    elif asked is Action.DEFER and hit.deferrals >= max_deferrals:
        return Demotion.DEFERRED_TOO_OFTEN
    return None
