"""Examples beside a policy: what a file of them may say, what holds, and what they exercise."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvmove import Action, Demotion, Hit, Policy, StepScheduler, StepState
from kvmove.errors import ExamplesError, PolicyError, Refused
from kvmove.kvpol.dry_run import MAX_DEFERRALS, DryRun
from kvmove.kvpol.examples import examples_path, load_examples, parse_examples, policy_path, run_examples
from kvmove.kvpol.examples_coverage import Coverage
from kvmove.kvpol.examples_places import places
from kvmove.kvpol.examples_run import Report
from kvmove.kvpol.library import shipped
from kvmove.testing import hits, policies, steps

FOLDER = Path(__file__).parents[2] / "policies"

PARTS = """\
param cap: bytes = 2MiB
let quick = load_time < 1ms and known(load_time)

@quick sync if quick
@part  sync at most min(cap, budget_remaining) if bytes > 1MiB
@later defer if deferrals < 3
"""


def run(policy: str, examples: str) -> Report:
    return run_examples(Policy.parse(policy), parse_examples(examples, "p.tests.toml"))


def problems(policy: str, example: str) -> list[str]:
    (result,) = run(policy, f'[[example]]\nname = "one"\n{example}').results
    return [line for problem in result.problems for line in problem.split("\n") if not line.startswith(" ")]


def complaints(text: str) -> list[tuple[int, str]]:
    with pytest.raises(ExamplesError) as e:
        parse_examples(text, "p.tests.toml")
    assert str(e.value).startswith("p.tests.toml:")
    return list(e.value.problems)


@pytest.mark.parametrize("name", shipped())
def test_every_shipped_policy_has_examples_that_hold_and_reach_every_rule(name: str) -> None:
    """Each rule decides some example, and each condition comes out both ways."""
    report = run_examples(Policy.load(name), load_examples(FOLDER / f"{name}.tests.toml"))
    assert [problem for result in report.failed for problem in result.problems] == []
    assert list(report.coverage.never()) == []
    assert report.coverage.percent == 100


def test_no_file_of_examples_is_without_its_policy() -> None:
    """A policy that is renamed takes its examples along."""
    for path in FOLDER.glob("*.toml"):
        assert policy_path(path).exists(), path
        assert examples_path(policy_path(path)) == path


def test_hits_of_an_example_share_its_budget() -> None:
    """What one hit loads inside the step is gone for the next, as in an engine's scheduler."""
    report = run(
        "sync if bytes <= budget_remaining and sync_loads < 2\nasync",
        """
        [[example]]
        name = "three hits"
        step = { budget = "4MiB" }
        hits = [
          { hit = { bytes = "3MiB" }, expect = "sync", rule = 1 },
          { hit = { bytes = "2MiB" }, expect = "async", rule = 2 },
          { hit = { bytes = "1MiB" }, expect = "sync" },
          { hit = { bytes = "1B" }, expect = "async" },
        ]
        """,
    )
    assert report.passed
    (result,) = report.results
    assert [d.decision.bytes >> 20 for d in result.decisions] == [3, 2, 1, 0]


@settings(max_examples=60)
@given(policies(max_rules=4, max_depth=2), st.lists(hits(max_bytes=1 << 34), min_size=1, max_size=5), steps())
def test_a_dry_run_decides_what_the_scheduler_decides(text: str, asked: list[Hit], step: StepState) -> None:
    """Hit after hit of one step, guard rails and ledger included."""
    policy = Policy.parse(text)
    scheduler = StepScheduler(policy, budget_bytes=step.budget_bytes)
    state = scheduler.begin_step(
        inflight_bytes=step.inflight_bytes, inflight_loads=step.inflight_loads, drain_time_ns=step.drain_time_ns,
        step_time_ns=step.step_time_ns, async_delay_ns=step.async_delay_ns, running=step.running,
        waiting=step.waiting, free_slots=step.free_slots,
    )  # fmt: skip
    dry_run = DryRun(policy, state)
    by_request = {hit.request: hit for hit in asked}
    for hit in by_request.values():
        assert dry_run.decide(hit).decision == scheduler.decide(hit)


def test_the_deferrals_of_a_dry_run_are_the_schedulers() -> None:
    """The guard rail on deferrals acts where that of a scheduler with its defaults does."""
    policy = Policy.parse("defer")
    example = f"hit = {{ deferrals = {MAX_DEFERRALS} }}\n"
    assert problems("defer", example + 'expect = "async"\nguard_rail = "deferred_too_often"') == []
    scheduler = StepScheduler(policy)
    scheduler.begin_step()
    for deferrals, action in ((MAX_DEFERRALS - 1, Action.DEFER), (MAX_DEFERRALS, Action.ASYNC)):
        (each,) = parse_examples(f'[[example]]\nname="d"\nexpect="defer"\nhit.deferrals = {deferrals}')
        assert scheduler.decide(each.hits[0].hit).action is action


@pytest.mark.parametrize(
    ("example", "wrong"),
    [
        ('hit.bytes = "1MiB"\nexpect = "defer"\nrule = "@later"', []),
        ('hit.bytes = "1MiB"\nexpect = "sync"', ["expected sync, got defer by rule 3 @later (line 6)"]),
        (
            'hit.bytes = "1MiB"\nexpect = "defer"\nrule = "@part"',
            ["expected defer by rule 2 @part (line 5), got defer by rule 3 @later (line 6)"],
        ),
        (
            'hit = { bytes = "8MiB", blocks = 8 }\nexpect = "sync"\nblocks = 3\nmax_bytes = "1MiB"',
            ["expected 3 blocks, got 2 of 8", "expected at most 1MiB, got 2MiB"],
        ),
        ('hit = { bytes = "8MiB", blocks = 8 }\nexpect = "sync"\nblocks = 2\nmax_bytes = "2MiB"', []),
        ('params.cap = "3MiB"\nhit = { bytes = "8MiB", blocks = 8 }\nexpect = "sync"\nblocks = 3', []),
        ('expect = "sync"\nrule = "@qick"', ["the policy has no rule `@qick`; did you mean `@quick`?"]),
        ('expect = "sync"\nrule = 5', ["there is no rule 5; the policy has 4"]),
        ('params.cpa = "3MiB"\nexpect = "sync"', ["<policy>: there is no param `cpa`, only `cap` and `budget`"]),
        (
            'hit.load_time = "0ns"\nstep.budget = "1MiB"\nexpect = "async"',
            [
                "the policy asked for sync, which a guard rail made async: more bytes than the step's budget has left; "
                'where that is meant, write guard_rail = "over_budget"'
            ],
        ),
        ('hit.load_time = "0ns"\nstep.budget = "1MiB"\nexpect = "async"\nguard_rail = "over_budget"', []),
        (
            'hit.deferrals = 3\nhit.bytes = "1B"\nexpect = "async"\nguard_rail = "over_budget"',
            ["expected the guard rail over_budget, and none changed the async asked for"],
        ),
    ],
)
def test_what_does_not_hold_is_said(example: str, wrong: list[str]) -> None:
    """Action, rule, guard rail, blocks and bytes are compared, and each difference has a line."""
    found = problems(PARTS, example)
    if wrong and wrong[0].startswith("<policy>"):
        assert len(found) >= 1
        assert "`cpa`" in found[0]
    else:
        assert found == wrong


def test_a_failure_shows_why_the_rules_did_not_match() -> None:
    """The rules up to the one that decides are there with their values, and the one that was expected."""
    (result,) = run(PARTS, '[[example]]\nname="x"\nhit.bytes="1MiB"\nexpect="sync"\nrule="@quick"').results
    (problem,) = result.problems
    assert "false   bytes > 1MiB   [bytes = 1MiB]" in problem
    assert "rule 1 @quick (line 4): does not match" in problem
    assert "rule 4" not in problem


GOOD = '[[example]]\nname = "x"\nexpect = "sync"\n'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (GOOD + "expct = 1", (4, "an example has no `expct`; did you mean `expect`?")),
        (GOOD + "zzz = 1", (4, "an example has no `zzz`; the keys are `name`,")),
        (GOOD + 'hit = {\n}'.replace("\n", " ") + "\nstep.budgt = 3", (5, "step: there is no `budgt`; did you mean")),
        (GOOD + '[example.hit]\nload_time = "1ms"\nbytes = "3ms"', (6, "hit: bytes is in bytes, such as `3MiB`")),
        (GOOD + 'hit = { bytes = 3 }', (4, "hit: bytes is in bytes, such as `3MiB`, and `3` has no unit")),
        (GOOD + 'hit = { tokens = "1tok", blocks = 2 }', (4, "hit: 2 blocks for 1 tokens")),
        (GOOD + "hit = 3", (4, "`hit` is a table, such as `hit = {}`")),
        (GOOD + "params = { x = 1.5 }", (4, "param `x` is `1.5`; write a text as a policy does")),
        (GOOD + "params = { x = [1] }", (4, "param `x` is `[1]`")),
        (GOOD + 'rule = "fits"', (4, "`rule` is `fits`; write a label such as `@fits`")),
        (GOOD + "rule = true", (4, "`rule` is `True`")),
        (GOOD + "rule = 0", (4, "`rule` is `0`")),
        (GOOD + "blocks = 0", (4, "`blocks` is `0`; a number of blocks from 1")),
        (GOOD + "hit = { blocks = 2 }\nblocks = 3", (5, "3 blocks are expected of a hit of 2")),
        (GOOD + 'max_bytes = "3tok"', (4, "`max_bytes` `3tok` is not in bytes")),
        (GOOD + 'max_bytes = "3mb"', (4, "`max_bytes` `3mb` is no size: unknown unit `mb`")),
        (GOOD + 'guard_rail = "over_budgt"', (4, "`guard_rail` is `over_budgt`; did you mean `over_budget`?")),
        (GOOD + 'guard_rail = "policy_failed"', (4, "`guard_rail` is `policy_failed`; write one of")),
        (GOOD + "\n" + GOOD, (6, "`x` is the name of the example in line 1 too")),
        ('[[example]]\nname = "x"', (1, "`expect` is missing: `sync`, `async`, `recompute` and `defer`")),
        ('[[example]]\nname = "x"\nexpect = "sink"', (3, "`expect` is `sink`;")),
        ('[[example]]\nexpect = "sync"', (1, "an example wants a `name`")),
        ('[[example]]\nname = "a\\u001b"\nexpect = "sync"', (2, "a `name` is one line of printable text")),
        (
            '[[example]]\nname = "x"\nexpect = "defer"\nblocks = 1',
            (4, "`defer` loads nothing, so there is no `blocks`"),
        ),
        ('[[example]]\nname = "x"\nhits = []', (3, "`hits` are tables")),
        (
            '[[example]]\nname = "x"\nexpect = "sync"\nhits = [{ expect = "sync" }]',
            (3, "with `hits`, `expect` belongs"),
        ),
        (
            '[[example]]\nname = "x"\nhits = [\n{ expect = "sync" },\n{ name = 1, expect = "sync" }]',
            (5, "one of `hits`"),
        ),
        ("[example]\nname = 1", (1, "an example starts with `[[example]]`, in double brackets")),
        ("example = [1]", (1, "an example is a table")),
        ("examples = 3", (1, "a file of examples has no `examples`; did you mean `example`?")),
        ("", (1, "there is no example; each starts with `[[example]]`")),
        ("\n\na = ", (3, "not TOML: invalid value")),
        ('[[example]]\nname = "x', (2, "not TOML:")),
        ("x = " + "[" * 5000, (1, "nests too deep")),
    ],
)  # fmt: skip
def test_what_a_file_of_examples_cannot_say_is_an_error_with_its_line(text: str, expected: tuple[int, str]) -> None:
    """Keys, values, units and ranges are checked without a policy."""
    line, message = expected
    found = complaints(text)
    assert any(at == line and problem.startswith(message) for at, problem in found), found


def test_all_mistakes_are_reported_at_once() -> None:
    """A file has its mistakes in the order of its lines."""
    found = complaints('[[example]]\nname="a"\nexpect="sink"\n[[example]]\nhit.bytes="3"\nexpect="sync"\nx=1\n')
    assert [line for line, _ in found] == [3, 4, 5, 7]
    assert issubclass(ExamplesError, PolicyError)


@pytest.mark.parametrize(
    ("data", "message"),
    [(b"\xff", r"p\.tests\.toml:1: not UTF-8"), (b"#" * (1 << 20) + b"##", "larger than 1 MiB")],
)
def test_a_file_that_is_no_text_is_refused(tmp_path: Path, data: bytes, message: str) -> None:
    """The file is named, and nothing of it is read further."""
    path = tmp_path / "p.tests.toml"
    path.write_bytes(data)
    with pytest.raises(ExamplesError, match=message):
        load_examples(path)
    with pytest.raises(ExamplesError, match="cannot be read: no such file"):
        load_examples(tmp_path / "none.tests.toml")


@settings(max_examples=150)
@given(st.text(alphabet="[]{}=\"'\\#, .\nexamplhit01é\ufeff\r\t", max_size=60) | st.text(max_size=40))
def test_any_text_is_examples_or_an_examples_error(text: str) -> None:
    """Nothing else is raised, whatever the text."""
    for each in (text, GOOD + text):
        try:
            parse_examples(each)
        except ExamplesError as e:
            assert all(1 <= line <= each.count("\n") + 1 for line, _ in e.problems)  # noqa: PT017 - most texts have no error


KEYS = st.sampled_from(["a", "b-1", "2", '"q # ]"', "'}'", '"x\\"y"', '""'])
SCALARS = st.sampled_from(
    ["1", "true", "1979-05-27 07:32:00", '"]# \\" }"', "'#\\'", '"""a\n"" ]\\"\n"""', "'''\n'' }\n'''", "-1.5e3"]
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3), max_leaves=6
)
TABLES = st.lists(st.dictionaries(KEYS, VALUES, max_size=3), min_size=1, max_size=3)


class Written:
    """A TOML text in the making, with the line of each key and item as it is written."""

    def __init__(self, gap: str) -> None:
        self.text, self.gap = "", gap
        self.lines: dict[tuple[str | int, ...], int] = {}

    def note(self, path: tuple[str | int, ...]) -> None:
        self.lines[path] = self.text.count("\n") + 1

    def value(self, value: Any, path: tuple[str | int, ...]) -> None:
        if isinstance(value, str):
            self.text += value
        elif isinstance(value, list):
            self.text += "["
            for i, item in enumerate(value):
                self.text += self.gap
                self.note((*path, i))
                self.value(item, (*path, i))
                self.text += f"{self.gap},"
            self.text += f"{self.gap}]"
        else:
            self.text += "{ "
            for i, (key, item) in enumerate(value.items()):
                self.text += ", " if i else ""
                self.pair(key, item, path)
            self.text += " }"

    def pair(self, key: str, value: Any, path: tuple[str | int, ...]) -> None:
        (name,) = tomllib.loads(f"{key} = 1")
        self.note((*path, name))
        self.text += f"{key} = "
        self.value(value, (*path, name))


def ways(data: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in items:
        yield (*path, key)
        yield from ways(value, (*path, key))


@settings(max_examples=150)
@given(TABLES, st.sampled_from(["", " ", "\n", " # , ]\n\n  "]))
def test_places_are_those_of_tomllib_and_of_the_text(tables: list[dict[str, Any]], gap: str) -> None:
    """Every way into what `tomllib` reads has a line, no other has one, and it is the line that it was written on."""
    written = Written(gap)
    for i, table in enumerate(tables):
        written.text += "# [[no]]\n  "
        if i == 0:
            written.note(("t",))
        written.note(("t", i))
        written.text += "[[ t ]] # x = 1\n"
        for key, value in table.items():
            written.pair(key, value, ("t", i))
            written.text += "\n"
    data = tomllib.loads(written.text)
    found = places(written.text)
    assert set(found) == set(ways(data))
    assert found == written.lines


def test_places_of_dotted_keys_and_subtables() -> None:
    """Headers below an item of an array belong to its last item."""
    text = '[[e]]\na.b = 1\n[e.h]\nx = 1\n[[e]]\n[[e.hits]]\n[e.hits."k.l"]\ny.z = {p.q = 1}\n[[e.hits]]\n'
    assert places(text) == {
        ("e",): 1, ("e", 0): 1, ("e", 0, "a"): 2, ("e", 0, "a", "b"): 2, ("e", 0, "h"): 3, ("e", 0, "h", "x"): 4,
        ("e", 1): 5, ("e", 1, "hits"): 6, ("e", 1, "hits", 0): 6, ("e", 1, "hits", 0, "k.l"): 7,
        ("e", 1, "hits", 0, "k.l", "y"): 8, ("e", 1, "hits", 0, "k.l", "y", "z"): 8,
        ("e", 1, "hits", 0, "k.l", "y", "z", "p"): 8, ("e", 1, "hits", 0, "k.l", "y", "z", "p", "q"): 8,
        ("e", 1, "hits", 1): 9,
    }  # fmt: skip
    assert set(places(text)) == set(ways(tomllib.loads(text)))


def test_coverage_says_which_rules_and_outcomes_never_came() -> None:
    """A condition counts where its rule is tried, and a let where a rule that reads it is."""
    report = run(PARTS, '[[example]]\nname="x"\nhit = { bytes = "8MiB", load_time = "5ms" }\nexpect="sync"')
    coverage = report.coverage
    assert (coverage.percent, [r.decided for r in coverage.rules]) == (25, [0, 1, 0, 0])
    assert list(coverage.never()) == [
        "rule 1 @quick (line 4) never decided: @quick sync if quick",
        "rule 3 @later (line 6) never decided: @later defer if deferrals < 3",
        "rule 4 (the implicit async) never decided: async",
        "let quick (line 2): `load_time < 1ms` was never true",
        "let quick (line 2): `known(load_time)` was never false",
        "rule 2 @part (line 5): `bytes > 1MiB` was never false",
        "rule 2 @part (line 5): `at most min(cap, budget_remaining)` was never false",
        "rule 3 @later (line 6): `deferrals < 3` was never true and never false",
    ]
    more = run(PARTS, '[[example]]\nname="y"\nhit = { bytes = "1MiB" }\nexpect="defer"').coverage
    coverage.merge(more)
    assert (coverage.decisions, coverage.percent) == (2, 50)
    (unknown,) = [c for c in coverage.conditions if c.text == "load_time < 1ms"]
    assert (unknown.true, unknown.false, unknown.unknown) == (0, 1, 1)
    with pytest.raises(Refused, match="their texts differ"):
        coverage.merge(Coverage(Policy.parse("async")))


@settings(max_examples=40)
@given(policies(max_rules=4, max_depth=2), st.lists(st.tuples(hits(), steps()), max_size=4))
def test_coverage_of_any_policy_adds_up(text: str, decisions: list[tuple[Hit, StepState]]) -> None:
    """Every decision is counted for one rule, and a condition no more often than there are decisions."""
    policy = Policy.parse(text)
    coverage = Coverage(policy)
    for hit, step in decisions:
        assert coverage.record(hit, step).verdict == policy.decide(hit, step)
    assert sum(rule.decided for rule in coverage.rules) == len(decisions) == coverage.decisions
    assert all(c.true + c.false + c.unknown <= len(decisions) for c in coverage.conditions)
    read = {statement.line for statement in coverage.conditions}
    assert read <= set(range(1, text.count("\n") + 2))
    assert (coverage.percent == 100) == all(rule.decided for rule in coverage.rules)


def test_lets_that_double_are_counted_in_little_time() -> None:
    """Each comparison of a let is counted once a decision, however often rules read it."""
    lets = ["let b0 = bytes < 1B"]
    lets += [f"let b{i} = (bytes < {i}KiB and b{i - 1}) or not b{i - 1}" for i in range(1, 45)]
    coverage = run("\n".join([*lets, "sync if b44"]), GOOD.replace('"sync"', '"async"\nhit.bytes = "8MiB"')).coverage
    assert len(coverage.conditions) == 45
    assert all(c.true + c.false == 1 for c in coverage.conditions)


def test_demotions_can_all_be_expected() -> None:
    """A new guard rail has to get its words in a dry run."""
    from kvmove.kvpol.dry_run import WHY

    assert set(WHY) == set(Demotion) - {Demotion.POLICY_FAILED}
