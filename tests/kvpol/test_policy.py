"""`Policy`: where policies are found, what params do, and what a policy says of itself."""

from __future__ import annotations

import hashlib
import pickle
from fractions import Fraction
from pathlib import Path

import pytest

from kvmove import Action, Hit, Policy, PolicyError, StepState
from kvmove.kvpol import Rule
from kvmove.kvpol.library import shipped

HIT = Hit(request="r", bytes=1 << 20, tokens=64, blocks=4, prompt_tokens=100, cached_tokens=6, compute_tokens=30)
STEP = StepState(budget_bytes=1 << 26, budget_remaining_bytes=1 << 26)
ONE_LINE = "sync if bytes <= budget_remaining"


def test_one_line_is_a_policy() -> None:
    """One rule is a complete policy; what it does not match is async by the implicit last rule."""
    policy = Policy.parse(ONE_LINE)
    assert policy.rules == (Rule(0, None, Action.SYNC, ONE_LINE, 1), Rule(1, None, Action.ASYNC, "async", None))
    assert policy.rules[1].is_implicit
    assert policy.decide(HIT, STEP) == 0
    assert policy.decide(HIT, StepState(budget_bytes=1 << 26, budget_remaining_bytes=(1 << 20) - 1)) == 1
    assert (policy.name, policy.text, policy.warnings, policy.budget_bytes) == ("policy", ONE_LINE, (), None)


def test_empty_policy_is_async_with_a_warning() -> None:
    """A text without a rule decides async, and says so."""
    policy = Policy.parse("# nothing\n")
    assert policy.decide(HIT, STEP) == 0
    assert policy.rules[0].action is Action.ASYNC
    assert "there is no rule" in policy.warnings[0].message
    assert Policy.parse("").rules == policy.rules


def test_last_rule_that_always_matches_is_the_last() -> None:
    """There is no implicit rule after one that always matches."""
    assert [r.action for r in Policy.parse("sync if bytes < 3B\ndefer").rules] == [Action.SYNC, Action.DEFER]
    assert len(Policy.parse("sync if true").rules) == 1


@pytest.mark.parametrize("name", shipped())
def test_shipped_policy_is_clean(name: str) -> None:
    """A policy that comes with kvmove has a name, a comment on when to use it, and no warnings."""
    policy = Policy.load(name)
    assert policy.warnings == ()
    assert policy.text.startswith("# ")
    for word in ("# When:", "# Trade-off:", "# Params:"):
        assert word in policy.text
    assert not policy.rules[-1].is_implicit
    assert all(p in policy.text.split("\npolicy ")[0] for p in policy.params)


def test_shipped_policies_without_estimates() -> None:
    """With every estimate unknown, the compute-aware policy decides what the budgeted one decides."""
    small = StepState(budget_bytes=100, budget_remaining_bytes=100)
    for step, action in ((STEP, Action.SYNC), (small, Action.ASYNC)):
        for name in ("budgeted", "compute_aware"):
            policy = Policy.load(name)
            assert policy.rules[policy.decide(HIT, step)].action is action


def test_load_by_path_uses_the_stem_as_name(tmp_path: Path) -> None:
    """A policy without a header is named after its file."""
    path = tmp_path / "mine.kvpol"
    path.write_text(ONE_LINE)
    assert Policy.load(path).name == "mine"
    assert Policy.load(str(path)).name == "mine"
    path.write_text('policy "the best"\n' + ONE_LINE)
    assert Policy.load(path).name == "the best"


def test_unknown_policy_lists_what_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bare name that is neither shipped nor a file is answered with the shipped names."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PolicyError) as caught:
        Policy.load("budgted")
    assert "did you mean `budgeted`?" in str(caught.value)
    assert "`deadline` and `split`" in str(caught.value)
    with pytest.raises(PolicyError, match="cannot be read: no such file"):
        Policy.load("./budgted.kvpol")
    with pytest.raises(PolicyError, match="this is empty; kvmove comes with"):
        Policy.load("")
    with pytest.raises(PolicyError, match="is a directory"):
        Policy.load(tmp_path)
    with pytest.raises(PolicyError, match="no path"):
        Policy.load("a\0b/c")
    (tmp_path / "local").write_text(ONE_LINE)
    assert Policy.load("local").text == ONE_LINE


PARAMS = """
param budget: bytes = 64MiB
param small: tokens = 64tok
param slow: time = 2ms
param ratio: number = 1.5
param on: bool = true
sync if on and bytes <= budget_remaining and tokens < small and waited < slow and running < ratio
"""


def test_params_have_their_effective_values() -> None:
    """Params are ints in canonical units, a Fraction where a number is not whole, and bools."""
    policy = Policy.parse(PARAMS)
    assert policy.params == {"budget": 64 << 20, "small": 64, "slow": 2_000_000, "ratio": Fraction(3, 2), "on": True}
    assert policy.budget_bytes == 64 << 20
    with pytest.raises(TypeError):
        policy.params["small"] = 3  # type: ignore[index]


def test_overrides_replace_values() -> None:
    """An override is an int in canonical units, a text, a bool or an exact fraction."""
    policy = Policy.parse(
        PARAMS, params={"budget": "128MiB", "small": 65, "slow": "1s", "ratio": Fraction(7, 3), "on": "false"}
    )
    assert policy.params == {"budget": 128 << 20, "small": 65, "slow": 10**9, "ratio": Fraction(7, 3), "on": False}
    assert policy.budget_bytes == 128 << 20
    assert policy.decide(HIT, STEP) == 1
    assert Policy.parse(PARAMS, params={"small": 65}).decide(HIT, STEP) == 0
    assert Policy.parse(PARAMS, params={"small": 64}).decide(HIT, STEP) == 1


def test_budget_can_be_given_for_every_policy() -> None:
    """`budget` overrides the step budget also where the file does not name one."""
    assert Policy.parse(ONE_LINE, params={"budget": "0B"}).budget_bytes == 0
    assert Policy.parse(ONE_LINE, params={"budget": 5}).params == {"budget": 5}


def test_budget_reads_the_steps_budget() -> None:
    """`budget` in an expression is the budget in force, not the file's constant."""
    policy = Policy.parse("param budget: bytes = 1B\nsync if bytes <= budget")
    assert policy.decide(HIT, STEP) == 0


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"smal": 3}, "did you mean `small`?"),
        ({"zzz": 3}, "the params are `small`, `slow`, `ratio`, `on` and `budget`"),
        ({"small": "3B"}, "param `small` is in tokens, but `3B` is in bytes"),
        ({"small": "3"}, "write it like `3tok`"),
        ({"small": True}, "is no exact amount"),
        ({"small": 1.5}, "as text such as"),
        ({"small": "1.5tok"}, "is not a whole number of `tok`"),
        ({"small": Fraction(1, 2)}, "is a whole number of tok"),
        ({"small": None}, "is no exact amount"),
        ({"slow": "3 ms"}, "write `3ms`"),
        ({"slow": "3 MS"}, "unknown unit `MS`"),
        ({"ratio": True}, "param `ratio` is a number, and `True` is no exact amount; give it as an int, or as text"),
        ({"ratio": "3ms"}, "param `ratio` is a number, but `3ms` is in time"),
        ({"ratio": 1 << 128}, "below 2^128"),
        ({"ratio": "9" * 100}, "too long"),
        ({"on": 3}, "true or false"),
        ({"on": "yes"}, "true or false"),
        ({"budget": -1}, "a budget lies between 0B and 16384GiB, and this is -1B"),
        ({"budget": "32TB"}, "unknown unit"),
        ({"budget": 1 << 60}, "a budget lies between"),
        ({"small": ""}, "a number is needed"),
    ],
)
def test_wrong_override_is_refused(params: dict[str, object], message: str) -> None:
    """An override with another name, unit or type is refused with what to write instead."""
    with pytest.raises(PolicyError) as caught:
        Policy.parse(PARAMS, params=params)  # type: ignore[arg-type]
    assert message in str(caught.value)


def test_override_is_bounded_like_the_file() -> None:
    """A param's value counts for the bound on magnitudes, after overrides."""
    text = "param n: number = 3\nsync if n * bytes * bytes > 3B * 1B"
    Policy.parse(text)
    with pytest.raises(PolicyError, match="stay below"):
        Policy.parse(text, params={"n": 1 << 100})


def test_hash_tells_texts_and_params_apart() -> None:
    """The hash is 12 hexadecimal digits that depend on the text and the effective params, and on nothing else."""
    hashes = {
        Policy.parse(PARAMS).hash,
        Policy.parse(PARAMS + " ").hash,
        Policy.parse(PARAMS, params={"small": 65}).hash,
        Policy.parse(ONE_LINE).hash,
        Policy.parse(ONE_LINE, params={"budget": 1}).hash,
    }
    assert len(hashes) == 5
    assert Policy.parse(PARAMS, params={"small": "64tok"}, name="other").hash == Policy.parse(PARAMS).hash
    assert Policy.parse(ONE_LINE).hash == hashlib.sha256(f"{len(ONE_LINE)}\n{ONE_LINE}".encode()).hexdigest()[:12]


def test_policy_survives_pickling() -> None:
    """A policy is sent between processes as its text and params."""
    policy = Policy.parse(PARAMS, params={"small": 65, "ratio": "7"}, name="sent")
    copy = pickle.loads(pickle.dumps(policy))
    assert (copy.hash, copy.name, copy.params, copy.rules) == (policy.hash, policy.name, policy.params, policy.rules)
    assert copy.decide(HIT, STEP) == policy.decide(HIT, STEP)


def test_errors_carry_findings_and_a_report() -> None:
    """A `PolicyError` has every mistake as a record, and the rendered report as its text."""
    with pytest.raises(PolicyError) as caught:
        Policy.parse("sync if byts < 3B\nasync if tokens < 3", name="x.kvpol")
    assert [f.message for f in caught.value.findings] == [
        "unknown name `byts`", "cannot compare tokens with a number",
    ]  # fmt: skip
    assert "--> x.kvpol:2:17" in str(caught.value)
    assert "^^^^" in str(caught.value)


def test_warnings_do_not_keep_a_policy_from_use() -> None:
    """What only looks like a mistake is in `warnings`."""
    policy = Policy.parse("let unused = bytes\nsync if bytes < 1B")
    assert [w.message for w in policy.warnings] == ["let `unused` is never used", "this comparison is always false"]


def test_a_limit_is_in_bytes_or_tokens() -> None:
    """Any other unit is a mistake."""
    with pytest.raises(PolicyError, match="in bytes or tokens, but this is time"):
        Policy.parse("sync at most load_time")


def test_at_most_is_never_unconditional() -> None:
    """A rule after one with `at most` can be reached, and one that is not written is added."""
    assert [r.is_implicit for r in Policy.parse("sync at most 3MiB\nasync").rules] == [False, False]
    assert [r.is_implicit for r in Policy.parse("sync at most 3MiB").rules] == [False, True]
