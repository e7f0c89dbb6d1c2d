"""Counts why rules did not match: for every rule, what kept it from deciding."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from kvmove.errors import InternalError
from kvmove.records import Hit
from kvmove.schedule.policy import BoundPolicy

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleExplained:
    """What became of one rule in the decisions that were explained; like `Statistics` it covers planned ones."""

    matched: int  # it decided
    passed_over: Mapping[str, int]  # it was tried and did not match -> what kept it from matching, and how often


class Explanation(NamedTuple):
    """Which rule decided about a hit, and for each rule before it, in order, what kept it from matching."""

    rule: int
    passed_over: Sequence[str]


class WhyNot:
    """Explains every `every`-th decision, and counts those that ended up in a plan.

    Explaining walks the policy's tree, which takes hundreds of times as long as deciding: with 1 the counts are
    exact, with more they are a sample. A policy that cannot explain itself is not counted.
    """

    __slots__ = ("_every", "_failed", "_matched", "_policy_hash", "_reasons", "_since")

    def __init__(self, every: int) -> None:
        self._every, self._since, self._failed = every, 0, False
        # Only the latest policy's, because rules of different policies are not comparable.
        self._policy_hash = ""
        self._matched: list[int] = []
        self._reasons: list[Counter[str]] = []

    def explained(self, hit: Hit, step: Any, bound: BoundPolicy) -> Explanation | None:
        """Explain the decision that is about to be made with this state of the ledger, where it is one's turn."""
        self._since += 1
        if self._since < self._every or bound.explain is None or self._failed:
            return None
        self._since = 0
        try:
            rule, passed_over = bound.explain(hit, step)
            if not 0 <= rule < len(bound.actions) or len(passed_over) != rule:
                raise InternalError(f"rule {rule} of {len(bound.actions)} decides after {len(passed_over)} reasons")
            return Explanation(rule, tuple(passed_over))
        except Exception:  # any: an explanation is not worth a step
            self._failed = True
            _log.exception("explaining a decision about %r failed, and is off from now on; please report it", hit)
            return None

    def add_step(self, bound: BoundPolicy, explained: Iterable[Explanation]) -> None:
        """Count the explanations of a step that ended, which had this policy."""
        for rule, passed_over in explained:
            if self._policy_hash != bound.hash:
                self._policy_hash = bound.hash
                self._matched = [0] * len(bound.actions)
                self._reasons = [Counter() for _ in bound.actions]
            self._matched[rule] += 1
            for index, reason in enumerate(passed_over):
                self._reasons[index][reason] += 1

    def snapshot(self) -> tuple[RuleExplained, ...]:
        """Return the counts of the latest policy's rules, in order; nothing where no decision was explained."""
        pairs = zip(self._matched, self._reasons, strict=True)
        return tuple(RuleExplained(matched=matched, passed_over=dict(reasons)) for matched, reasons in pairs)
