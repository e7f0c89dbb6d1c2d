"""What the next step begins with: a change of policy, shadow or budget waits here for the boundary between two steps.

A policy is either fixed or comes from a source, such as a `kvmove.PolicyFile`: anything whose `current` is the
policy to use now. A source may change on another thread at any time. It is read once a step, when the step begins,
so that no step sees two policies and no decision takes a lock.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Protocol, cast

from kvmove import schema
from kvmove.records import StepState
from kvmove.schedule.policy import BoundPolicy, HitPolicy, checked_budget
from kvmove.schedule.shadow import ShadowCounters, ShadowStatistics, ShadowStep

_log = logging.getLogger(__name__)


class PolicySource(Protocol):
    """Where a policy comes from that may change while the engine runs."""

    @property
    def current(self) -> HitPolicy:
        """The policy to use from the next step on. Read on the scheduler's thread; it must not block."""


class FollowedPolicy:
    """A policy ready to be asked, kept up with its source if it has one.

    Raises:
        Refused: this is neither a policy nor a source of one, or the policy cannot be used.
    """

    __slots__ = ("_failed", "_seen", "_source", "bound")

    def __init__(self, policy: HitPolicy | PolicySource) -> None:
        self._source: PolicySource | None = None
        self._failed = False
        self._seen: HitPolicy = cast(HitPolicy, policy)
        # Not by asking whether there is a `current`, which would read it: a source may count that, or change meanwhile.
        if not hasattr(policy, "decide"):
            try:
                self._seen = policy.current
                self._source = policy
            except AttributeError:
                pass  # nor a source: what binds it says what is wrong
        self.bound = BoundPolicy(self._seen)

    def look(self) -> bool:
        """Take the source's policy if it is another one, and return whether it was.

        A source that fails, or has what is no policy, leaves the last good one, and is reported to the log once:
        an engine must not stop for the sake of a reload.
        """
        if self._source is None:
            return False
        try:
            policy = self._source.current
            if policy is self._seen:
                self._failed = False
                return False
            bound = BoundPolicy(policy)
        except Exception as error:  # any: a source's failure must not become the engine's
            if not self._failed:
                _log.error("%r gives no policy, %s stays", self._source, self.bound.hash, exc_info=error)
            self._failed = True
            return False
        self._seen, self.bound, self._failed = policy, bound, False
        return True


class Upcoming:
    """The policy, the shadow policy and the budget of the step that begins next."""

    __slots__ = ("_budget_bytes", "_policy", "_shadow", "_shadow_counters")

    def __init__(self, policy: HitPolicy | PolicySource, budget_bytes: int | None) -> None:
        self._policy = FollowedPolicy(policy)
        self._budget_bytes = checked_budget(budget_bytes, "budget_bytes")
        self._shadow: FollowedPolicy | None = None
        self._shadow_counters: ShadowCounters | None = None

    def set_policy(self, policy: HitPolicy | PolicySource) -> None:
        """Use another policy, or those of another source; where it is refused, the present one stays."""
        self._policy = FollowedPolicy(policy)

    def set_shadow(self, policy: HitPolicy | PolicySource | None) -> None:
        """Use another shadow, with counters at zero, or none; where it is refused, the present one stays."""
        self._shadow = None if policy is None else FollowedPolicy(policy)
        self._shadow_counters = None if self._shadow is None else ShadowCounters(self._shadow.bound)

    def set_budget(self, budget_bytes: int | None) -> None:
        """Use another budget, or with None the policy's; where it is refused, the present one stays."""
        self._budget_bytes = checked_budget(budget_bytes, "budget_bytes")

    def bound(self) -> BoundPolicy:
        """Return the policy that a step begins with now."""
        self._policy.look()
        return self._policy.bound

    def budget_bytes(self, bound: BoundPolicy) -> int:
        """Return the budget of a step under this policy: the engine's, else the policy's, else the default."""
        for budget_bytes in (self._budget_bytes, bound.budget_bytes):
            if budget_bytes is not None:
                return budget_bytes
        return schema.DEFAULT_BUDGET_BYTES

    def shadow_step(self, state: StepState, max_deferrals: int) -> ShadowStep | None:
        """Return the shadow's side of a step, with the budget that it would have if it were the live policy."""
        if self._shadow is None:
            return None
        if self._shadow.look() or self._shadow_counters is None:
            self._shadow_counters = ShadowCounters(self._shadow.bound)
        budget_bytes = self.budget_bytes(self._shadow.bound)
        own_state = replace(state, budget_bytes=budget_bytes, budget_remaining_bytes=budget_bytes)
        return ShadowStep(self._shadow.bound, own_state, max_deferrals, self._shadow_counters)

    def shadow_statistics(self) -> ShadowStatistics | None:
        """Return what the present shadow has done so far; None where there is none."""
        return None if self._shadow_counters is None else self._shadow_counters.snapshot()
