"""What became of each rule of a policy in a replay, and what a shadow policy would have done, with their tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from kvmove.kvpol.reasons import named
from kvmove.records import Action
from kvmove.replay.figures import percent, size

if TYPE_CHECKING:
    from rich.table import Table

    from kvmove.schedule import HitPolicy, HitRule, ShadowStatistics, Statistics

REASONS_SHOWN = 5  # of a rule, in a table


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleReport:
    """One rule of the policy, in the decisions that were planned."""

    name: str  # as in messages, with its label and line
    action: str
    decided: int
    passed_over: int  # it was tried and did not match
    why_not: dict[str, int]  # what kept it from matching, most frequent first; empty where nothing was explained


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowReport:
    """What a shadow policy would have done about the same hits in the same steps, had it been live in these steps.

    The engine does what the live policy says, so later hits are those that follow from that.
    """

    policy: str
    policy_hash: str
    decisions: int
    agreed: int  # with the same action and as many blocks
    disagreements: dict[str, int]  # `sync -> async`: done, and what the shadow would have done
    bytes: dict[str, int]  # loaded inside the steps: `live` and `shadow`
    failures: int  # steps in which the shadow failed
    rules: tuple[RuleReport, ...]  # the shadow's


def rule_reports(policy: HitPolicy, statistics: Statistics) -> tuple[RuleReport, ...]:
    """Put together what was counted about each rule of the live policy."""
    rows = zip_longest(policy.rules, statistics.rule_counts(policy.hash), statistics.why_not)
    reports = []
    for index, (rule, counts, explained) in enumerate(rows):
        reasons = {} if explained is None else explained.passed_over
        decided, passed_over = (0, 0) if counts is None else (counts.decided, counts.passed_over)
        reports.append(_rule(index, rule, decided, passed_over, reasons))
    return tuple(reports)


def shadow_report(policy: HitPolicy, counted: ShadowStatistics) -> ShadowReport:
    """Put together what was counted about a shadow."""
    decided = counted.rules
    rules = (
        _rule(index, rule, decided[index], sum(decided[index + 1 :]), {}) for index, rule in enumerate(policy.rules)
    )
    return ShadowReport(
        policy=policy.name,
        policy_hash=policy.hash,
        decisions=counted.decisions,
        agreed=counted.agreed,
        disagreements={_kind(*pair): count for pair, count in counted.disagreements.items()},
        bytes={"live": counted.live_sync_bytes, "shadow": counted.sync_bytes},
        failures=counted.failures,
        rules=tuple(rules),
    )


def shadow_rows(report: ShadowReport | None, beside: Sequence[ShadowReport]) -> list[tuple[str, str]]:
    """Name and value of each line about one replay's shadow, in a table that shows those in `beside`.

    A line without a name is a rule; None is a replay without a shadow.
    """
    names = ", ".join(dict.fromkeys(other.policy for other in beside))
    kinds = [kind for kind in _kinds() if any(kind in other.disagreements for other in beside)]
    values = ["-"] * (len(kinds) + 4)
    if report is not None:
        values = [
            f"{report.decisions:,}",
            percent(report.agreed, report.decisions),
            *(f"{report.disagreements.get(kind, 0):,}" for kind in kinds),
            f"{size(report.bytes['live'])} / {size(report.bytes['shadow'])}",
            f"{report.failures:,}",
        ]
    lines = [f"shadow {names}: decisions", "  as the policy", *(f"  {kind}" for kind in kinds)]
    lines += ["  loaded in the step, policy / shadow", "  steps in which the shadow failed"]
    return [("", ""), *zip(lines, values, strict=True)]


def rules_table(policy: str, rules: Sequence[RuleReport]) -> Table:
    """The rules of one policy, each with what kept it from matching."""
    from rich.table import Table
    from rich.text import Text

    made = Table(title=None, show_edge=False, pad_edge=False)
    for name in (f"{policy}: rules", "decided", "passed over", "because not"):
        made.add_column(Text(name), justify="right" if name in ("decided", "passed over") else "left")
    for rule in rules:
        shown = list(rule.why_not.items())[:REASONS_SHOWN]
        lines = [f"{count:,}  {reason}" for reason, count in shown]
        if len(rule.why_not) > len(shown):
            rest = sum(rule.why_not.values()) - sum(count for _, count in shown)
            lines.append(f"{rest:,}  {len(rule.why_not) - len(shown)} other reasons")
        name = f"{rule.name}: {rule.action}"
        made.add_row(Text(name), f"{rule.decided:,}", f"{rule.passed_over:,}", Text("\n".join(lines)))
    return made


def _rule(index: int, rule: HitRule, decided: int, passed_over: int, reasons: Mapping[str, int]) -> RuleReport:
    described: Any = rule  # a rule of `kvmove.Policy` has a label and a line; another policy's only an action
    name = named(index, described.label, described.line) if hasattr(rule, "line") else f"rule {index + 1}"
    return RuleReport(
        name=name,
        action=str(rule.action),
        decided=decided,
        passed_over=passed_over,
        why_not=dict(sorted(reasons.items(), key=lambda item: (-item[1], item[0]))),
    )


def _kinds() -> Iterator[str]:
    """Every kind of disagreement, in the order in which they are shown."""
    for live in Action:
        for other in Action:
            yield _kind(live, other)


def _kind(live: Action, other: Action) -> str:
    return f"{live} -> {other}" if live is not other else f"{live} -> {other} of another size"
