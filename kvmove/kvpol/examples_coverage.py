"""Which rules and conditions of a policy some decisions exercised, and which never."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvmove.errors import Refused
from kvmove.kvpol import tree
from kvmove.kvpol.given import hit_of, step_of
from kvmove.kvpol.reasons import named
from kvmove.kvpol.trace import Condition, Trace, Truth, trace

if TYPE_CHECKING:
    from kvmove.kvpol.policy import Policy

_Key = tuple[str | int, ...]  # the rule's index or the let's name, then the way down to the part


@dataclass(frozen=True, slots=True)
class RuleCoverage:
    """How often a rule decided. The implicit last rule has no line."""

    index: int
    label: str | None
    line: int | None
    text: str
    decided: int

    @property
    def name(self) -> str:
        """What it is called in messages."""
        return named(self.index, self.label, self.line)


@dataclass(frozen=True, slots=True)
class ConditionCoverage:
    """How often a comparison, a `known` or an `at most` came out each way, in rules that were tried."""

    where: str  # the rule or let that it stands in
    line: int
    text: str
    true: int
    false: int
    unknown: int

    @property
    def never(self) -> tuple[str, ...]:
        """The outcomes of `true` and `false` that never came."""
        return tuple(word for word, times in (("true", self.true), ("false", self.false)) if not times)


class Coverage:
    """Counts, decision by decision, what of a policy was exercised.

    A rule is exercised when it decides. A condition is when a rule that reads it is tried, which is when no rule
    before it matches. Params may differ from decision to decision; the text of the policy may not.
    """

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.decisions = 0
        self._decided: Counter[int] = Counter()
        self._outcomes: Counter[tuple[_Key, Truth]] = Counter()

    def add(self, traced: Trace) -> None:
        """Count one decision of the policy."""
        self.decisions += 1
        self._decided[traced.rule.index] += 1
        for key, _, truth in {(key, text, truth) for key, text, truth in _parts(traced, traced.rule.index)}:
            self._outcomes[key, truth] += 1

    def record(self, hit: Any, step: Any) -> Trace:
        """Count, and return, what the policy decides about a `Hit` in a `StepState`."""
        traced = trace(self.policy, hit, step)
        self.add(traced)
        return traced

    def merge(self, other: Coverage) -> None:
        """Count what `other` counted.

        Raises:
            Refused: it is about another text.
        """
        if other.policy.text != self.policy.text:
            raise Refused(f"coverage of {other.policy!r} does not add to that of {self.policy!r}: their texts differ")
        self.decisions += other.decisions
        self._decided += other._decided
        self._outcomes += other._outcomes

    @property
    def rules(self) -> tuple[RuleCoverage, ...]:
        """Every rule, the implicit last one included."""
        return tuple(
            RuleCoverage(r.index, r.label, r.line, " ".join(r.text.split()), self._decided[r.index])
            for r in self.policy.rules
        )

    @property
    def percent(self) -> float:
        """How many of 100 rules decided at least once. It is 100 only where all did."""
        return 100 * len(+self._decided) / len(self.policy.rules)

    @property
    def conditions(self) -> tuple[ConditionCoverage, ...]:
        """Every comparison, `known` and `at most` of the rules and of the lets that they read, in order."""
        lines = self._lines()
        names = {r.index: r.name for r in self.rules}
        found: dict[_Key, ConditionCoverage] = {}
        for key, text, _ in _parts(self._any_trace(), len(self.policy.rules)):
            owner = key[0]
            where = names[owner] if isinstance(owner, int) else f"let {owner} (line {lines[owner]})"
            counts = (self._outcomes[key, truth] for truth in (True, False, None))
            found[key] = ConditionCoverage(where, lines[owner], text, *counts)
        return tuple(sorted(found.values(), key=lambda c: c.line))

    def never(self) -> Iterator[str]:
        """A line for each rule that never decided, and each condition that never came out one way."""
        for rule in self.rules:
            if not rule.decided:
                yield f"{rule.name} never decided: {rule.text}"
        for condition in self.conditions:
            if condition.never:
                yield f"{condition.where}: `{condition.text}` was never {' and never '.join(condition.never)}"

    def as_json(self) -> dict[str, object]:
        """Plain data for `json.dumps`."""
        return {
            "decisions": self.decisions,
            "percent": self.percent,
            "rules": [
                {"index": r.index, "label": r.label, "line": r.line, "text": r.text, "decided": r.decided}
                for r in self.rules
            ],
            "conditions": [
                {
                    "where": c.where,
                    "line": c.line,
                    "text": c.text,
                    "true": c.true,
                    "false": c.false,
                    "unknown": c.unknown,
                }
                for c in self.conditions
            ],
        }

    def _any_trace(self) -> Trace:
        """A trace has every rule and let, whatever the hit."""
        return trace(self.policy, hit_of({})[0], step_of({}, None)[0])

    def _lines(self) -> dict[str | int, int]:
        """The line of each rule, by its index, and of each let, by its name."""
        source = self.policy.analysis.source
        lines: dict[str | int, int] = {r.index: r.line or 0 for r in self.policy.rules}
        for statement in self.policy.analysis.file.statements:
            if isinstance(statement, tree.Let):
                lines[statement.name.text] = source.line_of(statement.span.start)
        return lines


def _parts(traced: Trace, last: int) -> Iterator[tuple[_Key, str, Truth]]:
    """What rules up to number `last` ask, each part with its place, text and outcome; a let's parts come once."""
    lets = dict(traced.lets)
    seen: set[str] = set()

    def walk(condition: Condition, key: _Key) -> Iterator[tuple[_Key, str, Truth]]:
        if condition.kind in ("comparison", "known"):
            yield key, condition.text, condition.truth
        for i, part in enumerate(condition.parts):
            yield from walk(part, (*key, i))
        meaning = lets.get(condition.text) if condition.kind == "let" else None
        if isinstance(meaning, Condition) and condition.text not in seen:
            seen.add(condition.text)
            yield from walk(meaning, (condition.text,))

    for rule in traced.rules[: last + 1]:
        if rule.condition is not None:
            yield from walk(rule.condition, (rule.index,))
        if rule.limit is not None:
            fits = None if rule.limit.value is None else rule.blocks != 0
            yield (rule.index, "at most"), f"at most {rule.limit.text}", fits
