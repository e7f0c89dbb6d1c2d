"""What a proof gives: plain records, without z3."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from kvmove.kvpol.findings import Finding
from kvmove.kvpol.policy import Policy, Rule
from kvmove.records import Hit, StepState


class Status(StrEnum):
    """What is known of a claim."""

    PROVED = "proved"  # it holds for every hit and step
    FALSE = "false"  # there is a hit and a step for which it does not
    UNKNOWN = "unknown"  # the time was not enough, or the solver gave up


@dataclass(frozen=True, slots=True)
class Example:
    """One hit in one step."""

    hit: Hit
    step: StepState


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a claim holds for every hit and step.

    Attributes:
        claim: what was asked, in words or as written.
        examples: where the claim is false, a hit and a step that show it; for `monotone` two, the smaller first.
            Each was run through the tree evaluator before it got here.
        reason: why the answer is unknown; None where it is known.
        seconds: what the answer took.
    """

    claim: str
    status: Status
    examples: tuple[Example, ...]
    reason: str | None
    seconds: float


@dataclass(frozen=True, slots=True)
class RuleProof:
    """Whether a rule can decide anything.

    Attributes:
        status: PROVED where some hit and step reach the rule, FALSE where none do.
        shadowed_by: for a dead rule, the earlier rules that together take every hit which it would match, none of
            them to spare; empty where its own condition never holds, None where they are unknown.
        beyond_budget: whether it asks for `sync` with more bytes than are left of the budget for some hit, so that
            guard rail 1 decides; None where that is unknown or the rule is no `sync`.
        beyond_budget_example: such a hit.
        reason: why `status` or, where that is known, `beyond_budget` is unknown.
    """

    rule: Rule
    status: Status
    shadowed_by: tuple[Rule, ...] | None
    beyond_budget: bool | None
    beyond_budget_example: Example | None
    reason: str | None
    seconds: float


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that `prove` found out about a policy.

    Attributes:
        rules: one for each rule that is written.
        asserts: one for each `assert`, in order.
        monotone: None unless it was asked for.
        findings: what is wrong or noteworthy, in source order, for the same renderers as those of the checker.
    """

    policy: Policy
    rules: tuple[RuleProof, ...]
    asserts: tuple[Verdict, ...]
    monotone: Verdict | None
    findings: tuple[Finding, ...]

    @property
    def status(self) -> Status:
        """FALSE where a rule is dead or a claim is false; else UNKNOWN where something is; else PROVED."""
        known = [r.status for r in self.rules] + [a.status for a in self.asserts]
        if self.monotone is not None:
            known.append(self.monotone.status)
        for status in (Status.FALSE, Status.UNKNOWN):
            if status in known:
                return status
        return Status.PROVED


class SyncOrder(StrEnum):
    """Which of two policies loads more hits inside the step."""

    SAME = "same"
    FIRST_WITHIN_SECOND = "first within second"  # whatever the first loads in the step, the second does too
    SECOND_WITHIN_FIRST = "second within first"
    NEITHER = "neither"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Comparison:
    """How two policies differ.

    Attributes:
        equivalent: whether they ask for the same action, and load the same blocks, for every hit and step.
        sync: which of them asks for `sync` more often.
        only_first: a hit that the first alone loads inside the step, where there is one.
        only_second: the same for the second.
    """

    first: Policy
    second: Policy
    where: str | None
    equivalent: Verdict
    sync: SyncOrder
    only_first: Example | None
    only_second: Example | None
