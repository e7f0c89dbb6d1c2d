"""`docs/editors.md` shows configurations that parse, and commands, hooks and files that there are."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from pygments.lexers import get_lexer_by_name
from typer.testing import CliRunner

from kvmove.cli import app
from kvmove.cli.check import Format
from kvmove.editors.pygments_lexer import KvpolLexer

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "editors.md").read_text(encoding="utf-8")
HOOKS = (ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)


def test_the_commands_exist() -> None:
    """Every `kvmove` command and option of the guide is one that there is."""
    shown = re.findall(r"kvmove (lsp|check|fmt|explain)\b((?: --[a-z-]+)*)", GUIDE)
    assert ("check", " --format") in shown
    assert {command for command, _ in shown} == {"lsp", "check", "fmt", "explain"}
    for command, options in shown:
        result = CliRunner().invoke(app, [command, "--help"])
        assert result.exit_code == 0
        assert all(option in result.stdout for option in options.split())


def test_the_helix_configuration_is_toml() -> None:
    """The language names the server that is defined beside it."""
    (text,) = blocks("toml")
    configuration = tomllib.loads(text)
    (language,) = configuration["language"]
    ((name, server),) = configuration["language-server"].items()
    assert language["language-servers"] == [name]
    assert [server["command"], *server["args"]] == ["kvmove", "lsp"]


def test_the_hooks_are_those_that_are_offered() -> None:
    """Both configurations name every hook, and the local one has the same entries and files."""
    published, local, _ = blocks("yaml")
    ids = re.findall(r"^- id: (.*)$", HOOKS, re.MULTILINE)
    assert re.findall(r"- id: (.*)$", published, re.MULTILINE) == ids
    assert re.findall(r"- id: (.*)$", local, re.MULTILINE) == ids
    for key in ("name", "entry", "files"):
        pattern = rf"^ *{key}: (.*)$"
        assert re.findall(pattern, local, re.MULTILINE) == re.findall(pattern, HOOKS, re.MULTILINE)


def test_the_files_and_the_lexer_exist() -> None:
    """The paths of the guide are in the repository, and Pygments finds the lexer by its name."""
    for path in re.findall(r"\b(?:editors|policies)/[\w./-]+", GUIDE):
        assert (ROOT / path).exists(), path
    assert type(get_lexer_by_name("kvpol")) is KvpolLexer


def test_the_formats_are_those_that_there_are() -> None:
    """The table of formats is complete, and the workflow uses no other."""
    assert set(re.findall(r"^\| `(\w+)` \| ", GUIDE, re.MULTILINE)) == {str(f) for f in Format}
    assert set(re.findall(r"--format (\w+) ", blocks("yaml")[2])) <= {str(f) for f in Format}
