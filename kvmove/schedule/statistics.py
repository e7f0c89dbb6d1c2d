"""What a scheduler has done so far: counters that do not grow with the number of steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kvmove.records import Action, Demotion, Lane, StepPlan
from kvmove.schedule.shadow import ShadowStatistics
from kvmove.schedule.why_not import RuleExplained

# Hot reloads would otherwise make the table of rules grow for as long as the engine lives.
MAX_POLICIES_COUNTED = 8


@dataclass(frozen=True, slots=True)
class RuleCounts:
    """How often one rule was asked, and what came of it."""

    decided: int  # its condition held, and no earlier rule's did
    passed_over: int  # it was asked and did not match, so that a later rule decided

    @property
    def reached(self) -> int:
        """How often it was asked."""
        return self.decided + self.passed_over


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """A snapshot of a scheduler's counters since it was made.

    `decisions`, `demotions`, `rules`, the bytes and the budget cover what ended up in a plan: an aborted step,
    a replaced decision and a refunded one do not count there.
    """

    steps: int  # ended with a plan
    aborted_steps: int  # aborted, or never ended before the next one began
    decisions: Mapping[Action, int]
    demotions: Mapping[Demotion, int]
    refunds: int  # decisions that `refund` took back
    unadmitted: int  # decisions to load that `end_step` took back because they were never admitted
    policy_errors: int  # steps in which the policy raised or gave an invalid verdict
    admitted_bytes: Mapping[Lane, int]
    budget_offered_bytes: int  # sum of the budgets of all planned steps
    rules: Mapping[str, tuple[int, ...]]  # policy hash -> matches of each rule, for the latest policies
    jobs: int  # job ids given out, those of aborted and refunded jobs included
    partial_loads: int = 0  # decisions to load only some leading blocks of a hit
    shadow: ShadowStatistics | None = None  # of the shadow policy, since it was set
    why_not: tuple[RuleExplained, ...] = ()  # of the latest policy's rules, where decisions are explained

    @property
    def budget_used_bytes(self) -> int:
        """Bytes of the offered budgets that sync loads took."""
        return self.admitted_bytes[Lane.EXPEDITED]

    def rule_counts(self, policy_hash: str) -> tuple[RuleCounts, ...]:
        """Return what became of each rule of a policy, in order; nothing where it is not counted, or not any more.

        The first rule that matches decides, so a rule was passed over as often as a later one decided. That is why
        counting it costs a decision nothing, and `why_not`, which knows the reasons, a lot.
        """
        decided = self.rules.get(policy_hash, ())
        return tuple(RuleCounts(count, sum(decided[index + 1 :])) for index, count in enumerate(decided))


class Counters:
    """The live counters behind `Statistics`."""

    __slots__ = (
        "_admitted_bytes",
        "_budget_offered_bytes",
        "_decisions",
        "_demotions",
        "_partial_loads",
        "_rules",
        "_steps",
        "aborted_steps",
        "policy_errors",
        "refunds",
        "unadmitted",
    )

    def __init__(self) -> None:
        self.aborted_steps = 0
        self.refunds = 0
        self.unadmitted = 0
        self.policy_errors = 0
        self._steps = 0
        self._partial_loads = 0
        self._budget_offered_bytes = 0
        self._decisions = dict.fromkeys(Action, 0)
        self._demotions = dict.fromkeys(Demotion, 0)
        self._admitted_bytes = dict.fromkeys(Lane, 0)
        self._rules: dict[str, list[int]] = {}

    def add_policy(self, policy_hash: str, num_rules: int) -> None:
        """Make room for a policy's rules; the one unused for longest is forgotten when there are too many."""
        counts = self._rules.pop(policy_hash, [])
        counts.extend([0] * (num_rules - len(counts)))
        self._rules[policy_hash] = counts
        if len(self._rules) > MAX_POLICIES_COUNTED:
            del self._rules[next(iter(self._rules))]

    def add_plan(self, plan: StepPlan) -> None:
        """Count a step that ended."""
        self._steps += 1
        self._budget_offered_bytes += plan.budget_bytes
        self._admitted_bytes[Lane.EXPEDITED] += plan.sync_bytes
        for decision in plan.decisions:
            self._decisions[decision.action] += 1
            self._partial_loads += decision.partial
            if decision.demotion is not None:
                self._demotions[decision.demotion] += 1
            if decision.rule is not None:
                self._rules[decision.policy_hash][decision.rule] += 1
            if decision.action is Action.ASYNC:
                self._admitted_bytes[Lane.BULK] += decision.bytes

    def snapshot(self, jobs: int, shadow: ShadowStatistics | None, why_not: tuple[RuleExplained, ...]) -> Statistics:
        """Return the counters as a record that later steps do not change."""
        return Statistics(
            steps=self._steps,
            aborted_steps=self.aborted_steps,
            decisions=dict(self._decisions),
            demotions=dict(self._demotions),
            refunds=self.refunds,
            unadmitted=self.unadmitted,
            policy_errors=self.policy_errors,
            admitted_bytes=dict(self._admitted_bytes),
            budget_offered_bytes=self._budget_offered_bytes,
            rules={policy_hash: tuple(counts) for policy_hash, counts in self._rules.items()},
            jobs=jobs,
            partial_loads=self._partial_loads,
            shadow=shadow,
            why_not=why_not,
        )
