"""From a policy's verdict to a decision: no policy gets an action past the guard rails."""

from __future__ import annotations

from kvmove.records import Action, Decision, Demotion, Hit
from kvmove.schedule.ledger import Ledger
from kvmove.schedule.open_step import LANE_OF
from kvmove.schedule.policy import BoundPolicy


def decision_after_guard_rails(
    verdict: int, hit: Hit, bound: BoundPolicy, ledger: Ledger, max_deferrals: int
) -> Decision:
    """Return what happens to the hit after this verdict of its policy; nothing is reserved yet."""
    rule, blocks, tokens, num_bytes = verdict & 0xFF, hit.blocks, hit.tokens, hit.bytes
    partial = verdict > 0xFF and verdict >> 8 < blocks
    if partial:
        blocks = verdict >> 8
        tokens, num_bytes = hit.prefix_tokens(blocks), hit.prefix_bytes(blocks)
    asked = bound.actions[rule]
    demotion: Demotion | None = None
    if asked is Action.SYNC:
        # A request in the step has to compute at least one token: its logits are what the next one is sampled from.
        # A part of a hit leaves the hit's last tokens.
        if hit.compute_tokens == 0 and not partial:
            demotion = Demotion.NOTHING_TO_COMPUTE
        elif num_bytes > ledger.budget_remaining_bytes:
            demotion = Demotion.OVER_BUDGET
    elif asked is Action.DEFER and hit.deferrals >= max_deferrals:
        demotion = Demotion.DEFERRED_TOO_OFTEN
    # Loading asynchronously is always possible, and never in the way of the step.
    action = asked if demotion is None else Action.ASYNC
    loads = action in LANE_OF
    return Decision(
        request=hit.request,
        action=action,
        asked=asked,
        rule=rule,
        blocks=blocks if loads else 0,
        tokens=tokens if loads else 0,
        bytes=num_bytes if loads else 0,
        policy_hash=bound.hash,
        demotion=demotion,
        partial=partial and loads,
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
