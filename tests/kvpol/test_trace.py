"""A trace says what the evaluator says, and why."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings

from kvmove import Hit, Policy, StepState
from kvmove.kvpol import tree
from kvmove.kvpol.evaluate import Evaluator, Situation
from kvmove.kvpol.trace import Condition, Operand, Trace, trace
from kvmove.kvpol.written import written
from kvmove.testing import hits, policies, steps

STEP = StepState(budget_bytes=64 << 20, budget_remaining_bytes=1 << 20)


def any_hit(**changes: Any) -> Hit:
    values: dict[str, Any] = {
        "request": "r", "bytes": 4 << 20, "tokens": 64, "blocks": 4, "prompt_tokens": 100, "cached_tokens": 6,
        "compute_tokens": 30,
    }  # fmt: skip
    return Hit(**(values | changes))


def traced(text: str, **changes: Any) -> Trace:
    return trace(Policy.parse(text), any_hit(**changes), STEP)


@settings(max_examples=100)
@given(policies(), hits(), steps())
def test_trace_decides_what_the_evaluator_decides(text: str, hit: Hit, step: StepState) -> None:
    """The verdict is the same, and so is every rule's condition and its opposite."""
    policy = Policy.parse(text)
    found = trace(policy, hit, step)
    assert found.verdict == Evaluator(policy.analysis.file, policy.program.params).verdict(hit, step)
    assert len(found.rules) == len(policy.rules)
    here = Situation.of(policy.analysis.file, policy.program.params, hit, step)
    for rule, node in zip(found.rules, policy.analysis.file.rules, strict=False):
        if node.condition is not None and rule.condition is not None:
            assert (rule.condition.truth is True) == here.holds(node.condition)
            assert (rule.condition.truth is False) == here.holds(node.condition, opposite=True)
            assert bool(rule.condition.unknown) == (rule.condition.truth is None)
        assert (rule.why_not() is None) == rule.matches


def without_places(expr: tree.Expr) -> str:
    return re.sub(r"Span\(start=\d+, end=\d+\)", "", repr(expr))


@settings(max_examples=40)
@given(policies(max_rules=3))
def test_written_expression_parses_to_the_same_tree(text: str) -> None:
    """No parenthesis is lost that means something."""
    for statement in Policy.parse(text).analysis.file.statements:
        if isinstance(statement, tree.Let):
            expr = statement.value
        elif isinstance(statement, tree.Rule) and statement.condition is not None:
            expr = statement.condition
        else:
            continue
        lets = [line for line in text.splitlines() if line.startswith(("let", "param"))]
        again = Policy.parse("\n".join([*lets, f"let again = {written(expr)}"]))
        (found,) = [s for s in again.analysis.file.statements if isinstance(s, tree.Let) and s.name.text == "again"]
        assert without_places(found.value) == without_places(expr)


def test_a_comparison_shows_its_amounts_and_what_is_unknown() -> None:
    """Values are in canonical units and print as a policy would write them; truth is unknown, not false."""
    found = traced("let cost = load_time + 1ms\nsync if bytes <= budget_remaining and not cost < 3ms\nasync")
    condition = found.rules[0].condition
    assert condition is not None
    fits, cheap = condition.parts
    assert (fits.text, fits.truth, [str(o) for o in fits.operands]) == (
        "bytes <= budget_remaining",
        False,
        ["4MiB", "1MiB"],
    )
    assert (cheap.text, cheap.truth, cheap.unknown) == ("not cost < 3ms", None, ("load_time",))
    left, right = cheap.parts[0].operands
    assert (left.text, left.value, str(left), left.unknown) == ("cost", None, "unknown", ("load_time",))
    assert (right.value, right.is_constant) == (Fraction(3_000_000), True)
    assert condition.truth is False
    ((name, value),) = found.lets
    assert (name, isinstance(value, Operand) and value.text) == ("cost", "load_time + 1ms")
    assert [str(v.text) for v in found.variables] == ["bytes", "load_time", "budget_remaining"]
    assert found.rule.text == "async"


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        ("sync if bytes < 8MiB and bytes < 1MiB and bytes < 2MiB", "bytes < 1MiB"),
        ("sync if load_time < 1ms and bytes < 1MiB", "load_time < 1ms [unknown: load_time]"),
        ("sync if bytes < 1MiB and load_time < 1ms", "bytes < 1MiB"),
        ("sync if bytes < 1MiB or (tokens + 1tok) * 2 < 1tok", "bytes < 1MiB or (tokens + 1tok) * 2 < 1tok"),
        ("sync if bytes < 8MiB", None),
    ],
)  # fmt: skip
def test_why_not_names_the_first_conjunct_that_is_not_true(rule: str, reason: str | None) -> None:
    """It is the text of the condition, without values, so that it can be counted."""
    assert traced(rule).rules[0].why_not() == reason


def test_lets_that_double_are_traced_in_little_time() -> None:
    """A let's condition is a name in what uses it, and its value stands among the lets once."""
    lets = ["let b0 = load_time < 1ms"]
    lets += [f"let b{i} = (bytes < {i}B and b{i - 1}) or not b{i - 1}" for i in range(1, 45)]
    found = traced("\n".join([*lets, "sync if b44"]))
    condition = found.rules[0].condition
    assert condition is not None
    assert (condition.kind, condition.parts, condition.truth, condition.unknown) == ("let", (), None, ("load_time",))
    assert isinstance(dict(found.lets)["b44"], Condition)
