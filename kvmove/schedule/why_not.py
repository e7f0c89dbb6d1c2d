"""Counts why rules did not match: for every rule, what kept it from deciding."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvmove.records import Hit
from kvmove.schedule.policy import BoundPolicy

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleExplained:
    """What became of one rule in the decisions that were explained."""

    matched: int  # it decided
    passed_over: Mapping[str, int]  # it was tried and did not match -> what kept it from matching, and how often


class WhyNot:
    """Explains every `every`-th decision, and counts.

    Explaining walks the policy's tree, which takes hundreds of times as long as deciding: with 1 the counts are
    exact, with more they are a sample. A policy that cannot explain itself is not counted.
    """

    __slots__ = ("_every", "_failed", "_rules", "_since")

    def __init__(self, every: int) -> None:
        self._every, self._since, self._failed = every, 0, False
        # Only the latest policy's, because rules of different policies are not comparable.
        self._rules: tuple[str, list[Counter[str]], list[int]] = ("", [], [])

    def saw(self, hit: Hit, step: Any, bound: BoundPolicy) -> None:
        """Take a decision in that is about to be made with this state of the ledger."""
        self._since += 1
        if self._since < self._every or bound.explain is None or self._failed:
            return
        self._since = 0
        policy_hash, reasons, matched = self._rules
        if policy_hash != bound.hash:
            reasons, matched = [Counter() for _ in bound.actions], [0] * len(bound.actions)
            self._rules = (bound.hash, reasons, matched)
        try:
            rule, passed_over = bound.explain(hit, step)
            matched[rule] += 1
            for index, reason in enumerate(passed_over):
                reasons[index][reason] += 1
        except Exception:  # any: an explanation is not worth a step
            self._failed = True
            _log.exception("explaining a decision about %r failed, and is off from now on; please report it", hit)

    def snapshot(self) -> tuple[RuleExplained, ...]:
        """Return the counts of the latest policy's rules, in order; nothing where no decision was explained."""
        _, reasons, matched = self._rules
        return tuple(RuleExplained(matched=m, passed_over=dict(r)) for m, r in zip(matched, reasons, strict=True))
