"""Asks the policy about the hits of one step, and puts each of its verdicts through the guard rails into the step."""

from __future__ import annotations

from collections.abc import Sequence

from kvmove.errors import InternalError
from kvmove.records import Decision, Hit
from kvmove.schedule.guard_rails import decision_after_guard_rails, decision_without_policy
from kvmove.schedule.open_step import OpenStep
from kvmove.schedule.statistics import Counters
from kvmove.schedule.why_not import WhyNot


class Asking:
    """What decides about hits, step after step; a failure of the policy is never one of the engine.

    A policy that raises or returns nonsense is not asked again in its step, is counted, and is reported to the log.

    Args:
        max_deferrals: how often a request may be deferred.
        counters: where failures of policies are counted.
        why_not: what explains decisions before they are made; None: nothing does.
    """

    __slots__ = ("_counters", "_max_deferrals", "_why_not")

    def __init__(self, max_deferrals: int, counters: Counters, why_not: WhyNot | None) -> None:
        self._max_deferrals, self._counters, self._why_not = max_deferrals, counters, why_not

    def decide(self, step: OpenStep, hit: Hit) -> Decision:
        """Decide about this hit, in place of what was decided about its request before."""
        step.drop(hit.request)
        explained = None
        if self._why_not is not None and not step.policy_failed:
            explained = self._why_not.explained(hit, step.ledger, step.bound)
        decision = self._take(step, hit, self._verdict(step, hit))
        if explained is not None and decision.rule is not None:
            step.explained[hit.request] = explained
        return decision

    def decide_batch(self, step: OpenStep, hits: Sequence[Hit]) -> list[Decision]:
        """Decide about these hits: the same as `decide` for one after the other, in less time."""
        requests = {hit.request for hit in hits}
        is_replacing = len(requests) < len(hits) or not requests.isdisjoint(step.decisions)
        if is_replacing or self._why_not is not None or step.policy_failed:
            return [self.decide(step, hit) for hit in hits]
        decisions: list[Decision] = []
        admission_failed = False

        def admit(hit: Hit, verdict: int) -> None:
            nonlocal admission_failed
            if len(decisions) == len(hits) or hit is not hits[len(decisions)]:
                raise InternalError(f"the policy decided about {hit!r} out of turn")
            checked = step.bound.checked(verdict, hit)
            admission_failed = True
            decisions.append(self._take(step, hit, checked))
            admission_failed = False

        try:
            step.bound.decide_each(hits, step.ledger, admit)
            if len(decisions) < len(hits):
                raise InternalError(f"the policy decided about {len(decisions)} of {len(hits)} hits")
        except Exception as error:  # any: a policy's failure must not become the engine's
            if admission_failed:
                raise
            self._policy_failed(step, hits[min(len(decisions), len(hits) - 1)], error)
        decisions += [self._take(step, hit, None) for hit in hits[len(decisions) :]]
        return decisions

    def _verdict(self, step: OpenStep, hit: Hit) -> int | None:
        """Return the policy's verdict about this hit, or None when the policy failed in this step."""
        if step.policy_failed:
            return None
        try:
            return step.bound.verdict(hit, step.ledger)
        except Exception as error:  # any: a policy's failure must not become the engine's
            self._policy_failed(step, hit, error)
            return None

    def _policy_failed(self, step: OpenStep, hit: Hit, error: Exception) -> None:
        step.policy_failed = True
        self._counters.policy_errors += 1
        step.bound.report_failure(hit, error, "hits load asynchronously for the rest of every step")

    def _take(self, step: OpenStep, hit: Hit, verdict: int | None) -> Decision:
        """Put a verdict through the guard rails into the step; None: the policy failed."""
        if verdict is None:
            decision = decision_without_policy(hit, step.bound)
        else:
            decision = decision_after_guard_rails(verdict, hit, step.bound, step.ledger, self._max_deferrals)
        step.add(decision)
        if step.shadow is not None:
            step.shadow.decide(hit)
        return decision
