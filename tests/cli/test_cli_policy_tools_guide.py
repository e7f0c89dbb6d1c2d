"""What `docs/language.md` says of fmt, test and decide: its commands run as they stand, and its tables are complete."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kvmove.cli import app
from kvmove.kvpol.examples_reader import EXAMPLE_KEYS
from kvmove.records import Demotion

TEXT = (Path(__file__).parents[2] / "docs" / "language.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^(?:<!-- file: (\S+) -->\n)?```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def section(title: str) -> str:
    """What stands under a heading."""
    return TEXT.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def test_every_command_prints_what_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A block after a file's name is that file; in a `console` block each `$` line is a command with its output."""
    monkeypatch.chdir(tmp_path)
    ran = set()
    for file, kind, text in BLOCK.findall(TEXT):
        if file:
            Path(file).write_text(text, encoding="utf-8")
        elif kind == "console":
            for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
                command, _, output = part.partition("\n")
                program, *arguments = shlex.split(command)
                assert program == "kvmove"
                assert CliRunner().invoke(app, arguments).output == output, command
                ran.add(arguments[0])
    assert {"fmt", "test", "decide"} <= ran


def test_the_keys_of_an_example_are_all_there() -> None:
    """Each key that a file of examples may have has its line, and so has each guard rail that can be expected."""
    under = section("Examples beside a policy")
    assert set(re.findall(r"^\| `(\w+)` \|", under, re.MULTILINE)) == set(EXAMPLE_KEYS)
    (rails,) = re.findall(r"^\| `guard_rail` \|(.*)$", under, re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", rails)) == set(Demotion) - {Demotion.POLICY_FAILED}


def test_the_exit_statuses_are_those_of_the_commands_help() -> None:
    """The tables and `--help` name the same statuses."""
    for title, command in (("Layout", "fmt"), ("Examples beside a policy", "test")):
        shown = re.findall(r"^\| (\d) \|", section(title), re.MULTILINE)
        told = " ".join(CliRunner().invoke(app, [command, "--help"]).output.split())
        assert shown == re.findall(r"\b(\d):", told.replace("Exit status ", "")), command
