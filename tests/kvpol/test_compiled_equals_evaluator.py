"""The compiled function decides what the tree evaluator decides, for whatever the checker accepts."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kvmove import Hit, Policy, StepState, schema
from kvmove.kvpol.evaluate import Evaluator
from kvmove.kvpol.library import shipped
from kvmove.testing import hits, policies, steps


def expected(policy: Policy, hit: Hit, step: StepState) -> int:
    return Evaluator(policy.analysis.file, policy.program.params).verdict(hit, step)


def any_hit(**changes: Any) -> Hit:
    values: dict[str, Any] = {
        "request": "r", "bytes": 1 << 20, "tokens": 64, "blocks": 4, "prompt_tokens": 100, "cached_tokens": 6,
        "compute_tokens": 30,
    }  # fmt: skip
    return Hit(**(values | changes))


UNKNOWN = any_hit()
STEP = StepState(budget_bytes=1 << 26, budget_remaining_bytes=1 << 20)


@settings(max_examples=150)
@given(policies(), st.lists(st.tuples(hits(), steps()), min_size=1, max_size=8))
@example("sync if not (load_time < 0ns)", [(UNKNOWN, STEP)])
@example("sync if not (load_time > 3ns or bytes < 1B)", [(UNKNOWN, STEP)])
@example("let a = load_time < 3ns\nsync if not a and not a\ndefer if a", [(UNKNOWN, STEP)])
@example("sync if bytes / tokens == 16384B / 1tok", [(UNKNOWN, STEP)])
@example("sync if (bytes > 1B or tokens > 1tok) and tokens > 2tok", [(UNKNOWN, STEP)])
@example("sync if bytes < 1B and tokens > 1tok\ndefer if tokens > 2tok", [(UNKNOWN, STEP)])
@example("sync if (known(load_time) or bytes > 1B) and load_time < 5ns", [(UNKNOWN, STEP)])
@example("sync if -3 * bytes >= -8B", [(UNKNOWN, STEP)])
@example("sync if -bytes / -blocks >= 262144B", [(UNKNOWN, STEP)])
@example("sync at most 0.75 * bytes if blocks > 3\nasync at most 33tok", [(UNKNOWN, STEP)])
@example("sync at most bytes * (load_time / 1s)\nasync at most -bytes\ndefer", [(UNKNOWN, STEP)])
@example(
    "let x = load_time < 1ns\nsync at most 1B if x\nsync at most 100tok if not x", [(any_hit(load_time_ns=5), STEP)]
)
def test_compiled_function_equals_evaluator(text: str, situations: list[tuple[Hit, StepState]]) -> None:
    """A drawn policy compiles, never raises, and gives the rule and the blocks that the evaluator gives."""
    policy = Policy.parse(text)
    for hit, step in situations:
        got = policy.decide(hit, step)
        assert got == expected(policy, hit, step)
        assert got >> 8 < hit.blocks
        assert policy.rules[got & 255].index == got & 255


@settings(max_examples=150)
@given(st.sampled_from(shipped()), hits(), steps())
def test_shipped_policies_equal_evaluator(name: str, hit: Hit, step: StepState) -> None:
    """Every policy that comes with kvmove decides what the evaluator decides."""
    policy = SHIPPED[name]
    assert policy.decide(hit, step) == expected(policy, hit, step)


SHIPPED = {name: Policy.load(name) for name in shipped()}


def corners(scope: schema.Scope) -> list[dict[str, Any]]:
    """All variables of a scope at their lowest, at their highest, and every estimate unknown."""
    variables = [v for v in schema.VARIABLES if v.scope is scope]
    lows = {v.attribute: v.low for v in variables}
    highs = {v.attribute: v.high for v in variables}
    unknown = {v.attribute: None if v.optional else v.high for v in variables}
    return [lows, highs, unknown]


class Situation:
    """A hit or a step without the invariants of one."""

    sizes = cuts = None
    blocks_within_bytes = Hit.blocks_within_bytes
    blocks_within_tokens = Hit.blocks_within_tokens
    _last_cut = Hit._last_cut

    def __init__(self, values: dict[str, Any]) -> None:
        self.__dict__.update(values)


@settings(max_examples=200)
@given(policies())
def test_never_raises_at_the_corners_of_the_ranges(text: str) -> None:
    """What the checker accepts runs with every variable at the end of its range."""
    policy = Policy.parse(text)
    for hit in corners(schema.Scope.HIT):
        for step in corners(schema.Scope.STEP):
            h, s = Situation(hit), Situation(step)
            evaluator = Evaluator(policy.analysis.file, policy.program.params)
            assert policy.decide(h, s) == evaluator.verdict(h, s)


def test_first_match_wins() -> None:
    """The first rule whose condition holds decides, and later ones are not asked."""
    policy = Policy.parse("defer if bytes > 8MiB\nsync if bytes > 1KiB\nrecompute if bytes > 0.5KiB\n")
    assert [policy.decide(any_hit(bytes=b), STEP) for b in (9 << 20, 2 << 10, 600, 1)] == [0, 1, 2, 3]


def test_early_rule_reads_nothing_of_later_rules() -> None:
    """A rule that matches early is decided without the attributes that only later rules read."""
    policy = Policy.parse(
        "sync if bytes <= budget_remaining\nasync if load_time < step_time * 2\ndefer if priority > 3\n"
    )
    hit, step = Situation({"bytes": 1}), Situation({"budget_remaining_bytes": 1})
    assert policy.decide(hit, step) == 0
    with pytest.raises(AttributeError):
        policy.decide(Situation({"bytes": 2}), step)


def test_each_attribute_is_read_once() -> None:
    """An attribute that several rules compare is read from the record once a decision."""
    reads: list[str] = []

    class Counting:
        def __getattr__(self, name: str) -> int:
            reads.append(name)
            return 1 << 30

    text = "".join(f"sync if bytes < {n}B and bytes < 2 * budget_remaining\n" for n in range(1, 9))
    assert Policy.parse(text + "defer if bytes > budget_remaining").decide(Counting(), Counting()) == 9
    assert sorted(reads) == ["budget_remaining_bytes", "bytes"]


def test_many_lets_that_double_compile_to_little_code() -> None:
    """Conditions that each use the one before twice do not double the code with every level."""
    lets = ["let b0 = load_time < 1ms"]
    lets += [f"let b{i} = (bytes < {i}B and b{i - 1}) or (tokens < {i}tok and not b{i - 1})" for i in range(1, 45)]
    policy = Policy.parse("\n".join([*lets, "sync if b44 or not b44"]))
    assert len(policy.decide.__code__.co_code) < 60_000
    for hit in (UNKNOWN, any_hit(load_time_ns=5), any_hit(load_time_ns=5_000_000)):
        assert policy.decide(hit, STEP) in (0, 1)


def test_amount_lets_used_in_many_places_compile_to_little_code() -> None:
    """A long let that many conditions use is computed ahead of them, not written out at each."""
    total = " + ".join(["load_time", *(f"{i} * step_time" for i in range(2, 300))])
    rule = " or ".join(f"(tokens < {i}tok and cost > {i}s)" for i in range(1, 200))
    later = "defer if load_time < 9ns\nrecompute if step_time > 9ns"
    policy = Policy.parse(f"let cost = {total}\nsync if {rule}\n{later}")
    assert len(policy.decide.__code__.co_code) < 60_000
    for hit in (UNKNOWN, any_hit(load_time_ns=5), any_hit(load_time_ns=10**12)):
        for step_time in (None, 0, 10**9):
            step = StepState(budget_bytes=0, budget_remaining_bytes=0, step_time_ns=step_time)
            assert policy.decide(hit, step) == expected(policy, hit, step)


def test_function_has_no_globals_and_no_user_text() -> None:
    """The function reaches no builtins, and no name or text of the policy gets into its code."""
    policy = Policy.parse("let evil_name = load_time\n@evil_label sync if evil_name < 3s and evil_name > 1s")
    function = policy.decide
    assert function.__globals__ == {"__builtins__": {}}
    code = function.__code__
    assert not [n for n in (*code.co_names, *code.co_varnames, *map(str, code.co_consts)) if "evil" in n]


def test_line_numbers_point_into_the_policy() -> None:
    """A traceback from a decision names the policy and the line of its rule."""
    policy = Policy.parse("sync if bytes < 1B\n\n\nasync if tokens < 5tok", name="mine.kvpol")
    with pytest.raises(AttributeError) as caught:
        policy.decide(Situation({"bytes": 5}), Situation({}))
    entry = caught.traceback[-1]
    assert entry.lineno + 1 == 4
    assert "mine.kvpol" in str(entry.path)
