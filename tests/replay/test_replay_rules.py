"""What a replay says about a policy's rules, and about a shadow policy beside it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from rich.console import Console

from kvmove.kvpol import Policy
from kvmove.replay.engine import replay
from kvmove.replay.report import PolicyReport, as_json, table
from kvmove.replay.rules import RuleReport, rules_table
from kvmove.replay.settings import Settings
from kvmove.replay.synth import Workload, synthesize
from kvmove.replay.trace import Request
from kvmove.testing.scripted import ScriptedPolicy

# Tight enough that prefixes leave the GPU cache and come back from the host.
TIGHT = Settings(num_slots=40, num_host_blocks=400, budget_bytes=100 << 20)
POLICY = Policy.parse(
    "@few  recompute if blocks < 2\n"
    "@fits sync if bytes <= budget_remaining and deadline_left > 3s\n"
    "@part sync at most budget_remaining if waiting < 9\n"
    "      async\n"
)
ASYNC, SPLIT = Policy.load("always_async"), Policy.load("split")


@pytest.fixture(scope="module")
def requests() -> list[Request]:
    workload = Workload(requests_per_s=5, think_s=1, answer_tokens=30, max_prompt_tokens=8_192)
    return list(synthesize(60, seed=1, workload=workload))


def replayed(policy: Policy, requests: list[Request], **options: object) -> PolicyReport:
    report = replay(policy, requests, TIGHT, device="cpu", **options)  # type: ignore[arg-type]
    assert report.mismatches == 0
    return report


def shown(renderable: object) -> list[str]:
    console = Console(width=140)
    with console.capture() as captured:
        console.print(renderable)
    return captured.get().splitlines()


def test_a_shadow_changes_nothing_else_in_the_report(requests: list[Request]) -> None:
    """Every step, byte and time is that of the replay without it; explaining changes only the reasons."""
    alone = replayed(POLICY, requests)
    beside = replayed(POLICY, requests, shadow=SPLIT, explain=True)
    assert beside.shadow is not None
    assert any(rule.why_not for rule in beside.rules)
    without_reasons = tuple(replace(rule, why_not={}) for rule in beside.rules)
    assert replace(beside, shadow=None, rules=without_reasons) == alone


def test_a_shadow_is_compared_with_every_decision(requests: list[Request]) -> None:
    """What it would have done instead is counted by kind, and its bytes beside those that were loaded."""
    report = replayed(SPLIT, requests, shadow=ASYNC)
    shadow = report.shadow
    assert shadow is not None
    assert shadow.decisions == sum(report.decisions.values())
    assert report.decisions["sync"] > 0
    assert shadow.disagreements == {"sync -> async": report.decisions["sync"]}
    assert shadow.agreed + sum(shadow.disagreements.values()) == shadow.decisions
    assert shadow.bytes == {"live": report.bytes["expedited"], "shadow": 0}
    assert [rule.decided for rule in shadow.rules] == [shadow.decisions]
    itself = replayed(SPLIT, requests, shadow=SPLIT).shadow
    assert itself is not None
    assert (itself.agreed, itself.disagreements, itself.failures) == (itself.decisions, {}, 0)


def test_a_part_beside_a_whole_is_of_another_size() -> None:
    """Three blocks are hit: the policy loads them all, its shadow the first."""
    prefix, other = (1, 2, 3), (11, 12, 13)
    evicting = [Request(f"e{i}", 10_000 * i, 3 * 512, 1, ids) for i, ids in enumerate((prefix, other, (21, 22, 23)))]
    again = Request("again", 60_000, 3 * 512 + 9, 1, (*prefix, 4))
    settings = Settings(num_slots=4, num_host_blocks=32, budget_bytes=1 << 40)
    first = Policy.parse("sync at most 512tok\nasync")
    report = replay(Policy.parse("sync"), [*evicting, again], settings, device="cpu", shadow=first)
    assert report.shadow is not None
    assert report.shadow.disagreements == {"sync -> sync of another size": 1}
    block_bytes = settings.block_bytes
    assert report.shadow.bytes["shadow"] == block_bytes
    parts = replay(first, [*evicting, again], settings, device="cpu")
    assert (parts.partial_loads, parts.bytes["expedited"], parts.mismatches) == (1, block_bytes, 0)


def test_every_rule_says_how_often_it_decided_and_why_not(requests: list[Request]) -> None:
    """The counts are of the planned decisions, the reasons add up to what was passed over."""
    rules = replayed(POLICY, requests, explain=True).rules
    assert [rule.name for rule in rules] == [
        "rule 1 @few (line 1)", "rule 2 @fits (line 2)", "rule 3 @part (line 3)", "rule 4 (line 4)",
    ]  # fmt: skip
    assert [rule.action for rule in rules] == ["recompute", "sync", "sync", "async"]
    report = replayed(POLICY, requests)
    assert sum(rule.decided for rule in rules) == sum(report.decisions.values())
    for index, rule in enumerate(rules):
        assert sum(rule.why_not.values()) == rule.passed_over == sum(later.decided for later in rules[index + 1 :])
        assert list(rule.why_not.values()) == sorted(rule.why_not.values(), reverse=True)
    assert rules[1].decided == 0
    assert "deadline_left > 3s [unknown: deadline_left]" in rules[1].why_not
    assert [replace(rule, why_not={}) for rule in rules] == list(report.rules)


def test_rules_that_only_have_an_action_are_numbered(requests: list[Request]) -> None:
    """A policy of another make has no labels and no lines, and cannot explain itself."""
    report = replay(ScriptedPolicy(1), requests[:1], TIGHT, device="cpu", explain=True)
    assert [rule.name for rule in report.rules] == ["rule 1", "rule 2", "rule 3", "rule 4"]
    assert {rule.decided for rule in report.rules} == {0}


def test_the_table_has_a_line_for_each_kind_that_occurs(requests: list[Request]) -> None:
    """Beside a replay without a shadow, too."""
    reports = [replayed(SPLIT, requests, shadow=ASYNC), replayed(ASYNC, requests)]
    lines = [line.split("│") for line in shown(table(reports)) if "│" in line]
    cells = {name.strip(): [value.strip() for value in values] for name, *values in lines}
    first = reports[0].shadow
    assert first is not None
    assert cells["shadow always async: decisions"] == [f"{first.decisions:,}", "-"]
    assert cells["sync -> async"] == [f"{first.disagreements['sync -> async']:,}", "-"]
    assert "async -> sync" not in cells
    assert "shadow" not in "".join(shown(table(reports[1:])))


def test_the_table_of_rules_shows_the_most_frequent_reasons() -> None:
    """The rest is one line."""
    reasons = {f"bytes < {n}B": 100 - n for n in range(8)}
    rules = [RuleReport(name="rule 1 @a", action="sync", decided=1234, passed_over=772, why_not=reasons)]
    text = "\n".join(shown(rules_table("mine", rules)))
    for part in ("mine: rules", "rule 1 @a: sync", "1,234", "772", "100  bytes < 0B", "96  bytes < 4B"):
        assert part in text
    assert "bytes < 5B" not in text
    assert "282  3 other reasons" in text


def test_a_report_with_a_shadow_is_json(requests: list[Request]) -> None:
    """Plain values, with the names that the documentation uses."""
    report = replayed(SPLIT, requests, shadow=ASYNC, explain=True)
    (policy,) = json.loads(json.dumps(as_json([report], TIGHT)))["policies"]
    assert policy["shadow"]["policy"] == "always async"
    assert policy["shadow"]["disagreements"]["sync -> async"] > 0
    assert policy["rules"][0]["why_not"]["bytes <= budget_remaining"] == policy["rules"][0]["passed_over"]
