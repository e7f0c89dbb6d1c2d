"""What the language's reference says about trying a policy out, and about the policies that come with kvmove."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kvmove import Action, Policy
from kvmove.cli import app
from kvmove.kvpol.library import shipped
from kvmove.schedule import ShadowStatistics, Statistics

TEXT = (Path(__file__).parents[2] / "docs" / "language.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    (found,) = re.findall(rf"^## {title}\n(.*?)^## ", TEXT, re.MULTILINE | re.DOTALL)
    return str(found)


def code(language: str) -> str:
    (found,) = re.findall(rf"^```{language}\n(.*?)^```", section("Trying a policy out"), re.MULTILINE | re.DOTALL)
    return str(found)


def test_the_commands_show_a_shadow_and_reasons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trace is made and replayed, in which the two policies do not always agree."""
    monkeypatch.chdir(tmp_path)
    for line in code("sh").splitlines():
        program, *arguments = shlex.split(line)
        assert program == "kvmove"
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 0, result.output
    assert re.search(r"shadow split: decisions +│ +[1-9]", result.stdout)
    assert "async -> sync" in result.stdout
    assert re.search(r"rule 1 @fits .*bytes <= budget_remaining", result.stdout)


def test_the_python_example_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it shows at the end is there, under these names."""
    monkeypatch.chdir(tmp_path)
    Path("live.kvpol").write_text("async\n")
    steps = """
for _ in range(250):
    scheduler.begin_step()
    scheduler.decide(kvmove.Hit(
        request="r", bytes=1, tokens=1, blocks=1, prompt_tokens=2, cached_tokens=0, compute_tokens=1))
    scheduler.confirm("r")
    scheduler.end_step()
"""
    names: dict[str, object] = {}
    exec(compile(code("python").replace("# ... steps", steps + "# ... steps", 1), "language.md", "exec"), names)
    told = names["told"]
    assert isinstance(told, Statistics)
    assert isinstance(told.shadow, ShadowStatistics)
    assert told.shadow.disagreements == {(Action.ASYNC, Action.SYNC): 250}
    assert (told.shadow.sync_bytes, told.shadow.live_sync_bytes) == (250, 0)
    assert [rule.matched for rule in told.why_not] == [2]


def test_every_policy_that_comes_with_kvmove_is_described() -> None:
    """Once, under its name, with the actions that it can decide."""
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", section("Policies that come with kvmove"), re.MULTILINE))
    assert sorted(rows) == shipped()
    for name, row in rows.items():
        actions = {rule.action for rule in Policy.load(name).rules} - {Action.SYNC}
        assert {action for action in Action if f"`{action}`" in row} == actions, name
