"""A second policy that decides beside the live one and changes nothing: what would it have done?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kvmove.records import Action, Decision, Hit, StepState
from kvmove.schedule.guard_rails import decision_after_guard_rails
from kvmove.schedule.ledger import Ledger
from kvmove.schedule.policy import BoundPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowStatistics:
    """What a shadow policy would have done, beside what was done; like `Statistics` it covers planned decisions."""

    policy_hash: str
    decisions: int  # that both policies made
    agreed: int  # of these, with the same action and as many blocks
    actions: Mapping[Action, Mapping[Action, int]]  # the live action -> the shadow's -> how many
    sync_bytes: int  # what the shadow would have loaded inside the steps
    live_sync_bytes: int  # what the live policy loaded inside them, of these decisions
    failures: int  # steps in which the shadow raised or gave an invalid verdict; it sat out the rest of each
    rules: tuple[int, ...]  # how often each rule of the shadow decided, of these decisions
    resized: Mapping[Action, int]  # with the same action, but another number of blocks: only one of them cut the hit

    @property
    def disagreements(self) -> dict[tuple[Action, Action], int]:
        """How often what was done and what the shadow would have done differed, for each (live, shadow) that did.

        A pair of one action twice is a load of another number of blocks.
        """
        pairs = {
            (live, other): self.resized[live] if live is other else count
            for live, row in self.actions.items()
            for other, count in row.items()
        }
        return {pair: count for pair, count in pairs.items() if count}


class ShadowStep:
    """The shadow's side of one step: a ledger of its own, from the same hits.

    It holds a decision for exactly those requests that the live policy has one for, unless the shadow failed.
    Guard rails hold here too, so that what is compared is what an engine would have done.
    """

    __slots__ = ("_bound", "_counters", "_decisions", "_ledger", "_max_deferrals", "failed")

    def __init__(self, bound: BoundPolicy, state: StepState, max_deferrals: int, counters: ShadowCounters) -> None:
        self._bound, self._max_deferrals, self._counters = bound, max_deferrals, counters
        self._ledger = Ledger(state)
        self._decisions: dict[str, Decision] = {}
        self.failed = False

    def decide(self, hit: Hit) -> None:
        """Decide about a hit; a failure is remembered and never raised."""
        if self.failed:
            return
        try:
            verdict = self._bound.verdict(hit, self._ledger)
            decision = decision_after_guard_rails(verdict, hit, self._bound, self._ledger, self._max_deferrals)
            if decision.action is Action.SYNC:
                self._ledger.reserve(decision.bytes)
            self._decisions[hit.request] = decision
        except Exception as error:  # any: the shadow is what is being tried out
            self.failed = True
            self._bound.report_failure(hit, error, "as a shadow it sits out the rest of every step")

    def drop(self, request: str) -> None:
        """Forget a decision, because the live one is forgotten."""
        decision = self._decisions.pop(request, None)
        if decision is not None and decision.action is Action.SYNC:
            self._ledger.refund(decision.bytes)

    def end(self, decisions: tuple[Decision, ...]) -> None:
        """Count the step, which ended with these decisions of the live policy."""
        self._counters.add_step(self, decisions)

    def decision_of(self, request: str) -> Decision | None:
        """Return what the shadow decided about a request, if it did."""
        return self._decisions.get(request)


class ShadowCounters:
    """The live counters behind `ShadowStatistics`."""

    __slots__ = ("_actions", "_failures", "_hash", "_live_sync_bytes", "_resized", "_rules", "_sync_bytes")

    def __init__(self, bound: BoundPolicy) -> None:
        self._hash = bound.hash
        self._failures = self._sync_bytes = self._live_sync_bytes = 0
        self._actions = {live: dict.fromkeys(Action, 0) for live in Action}
        self._resized = dict.fromkeys(Action, 0)
        self._rules = [0] * len(bound.actions)

    def add_step(self, shadow: ShadowStep, decisions: tuple[Decision, ...]) -> None:
        """Count a step that ended with these decisions of the live policy."""
        self._failures += shadow.failed
        for live in decisions:
            other = shadow.decision_of(live.request)
            if other is None:
                continue
            self._actions[live.action][other.action] += 1
            self._resized[live.action] += live.action is other.action and live.blocks != other.blocks
            if other.rule is not None:  # it never is None: a shadow that fails has no decision
                self._rules[other.rule] += 1
            self._sync_bytes += other.bytes if other.action is Action.SYNC else 0
            self._live_sync_bytes += live.bytes if live.action is Action.SYNC else 0

    def snapshot(self) -> ShadowStatistics:
        """Return the counters as a record that later steps do not change."""
        decisions = sum(sum(row.values()) for row in self._actions.values())
        alike = sum(self._actions[action][action] for action in Action)
        return ShadowStatistics(
            policy_hash=self._hash,
            decisions=decisions,
            agreed=alike - sum(self._resized.values()),
            actions={live: dict(row) for live, row in self._actions.items()},
            sync_bytes=self._sync_bytes,
            live_sync_bytes=self._live_sync_bytes,
            failures=self._failures,
            rules=tuple(self._rules),
            resized=dict(self._resized),
        )
