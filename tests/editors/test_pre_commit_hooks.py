"""The hooks for pre-commit name commands that there are, and those do what a hook has to."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HOOKS_FILE = ROOT / ".pre-commit-hooks.yaml"
BROKEN, UNTIDY, TIDY = "sync if byts > 3B\n", "sync   if bytes<=3B\nasync\n", "sync  if bytes <= 3B\nasync\n"


def hooks() -> dict[str, dict[str, str]]:
    """The hooks by id. The file is a list of flat mappings of plain scalars, read here without a YAML parser."""
    found: dict[str, dict[str, str]] = {}
    for line in HOOKS_FILE.read_text(encoding="utf-8").splitlines():
        match = re.fullmatch(r"(- |  )([a-z_]+): ([^\s'\"#&*!|>%@`\[{][^#]*)", line)
        assert match is not None, line
        start, key, value = match.groups()
        assert ": " not in value
        if start == "- ":
            assert key == "id"
            current = found.setdefault(value, {})
        else:
            assert key not in current
            current[key] = value
    return found


def run(entry: str, *files: Path) -> subprocess.CompletedProcess[str]:
    """What pre-commit does: the entry with the names of the files that match, and a look at the status."""
    program, *arguments = entry.split()
    assert program == "kvmove"
    command = [sys.executable, "-m", program, *arguments, *map(str, files)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)


def test_the_hooks_are_the_two_that_are_offered() -> None:
    """`kvpol-check` and `kvpol-fmt` have all that pre-commit requires, and match policies only."""
    found = hooks()
    assert found.keys() == {"kvpol-check", "kvpol-fmt"}
    for hook in found.values():
        assert hook.keys() == {"name", "description", "entry", "language", "files"}
        assert hook["language"] == "python"
        assert re.search(hook["files"], "policies/a.kvpol")
        assert not re.search(hook["files"], "policies/a.kvpol.txt")


@pytest.mark.parametrize(("text", "status"), [(BROKEN, 1), (UNTIDY, 0), (TIDY, 0)])
def test_the_check_stops_a_commit_of_a_mistake(tmp_path: Path, text: str, status: int) -> None:
    """The hook fails where one of its files has an error, and changes none."""
    first, second = tmp_path / "a.kvpol", tmp_path / "b.kvpol"
    first.write_text(TIDY, encoding="utf-8")
    second.write_text(text, encoding="utf-8")
    assert run(hooks()["kvpol-check"]["entry"], first, second).returncode == status
    assert second.read_text(encoding="utf-8") == text


def test_the_formatter_changes_what_is_untidy_and_is_then_content(tmp_path: Path) -> None:
    """A changed file is how pre-commit knows of a failure; the second run changes nothing."""
    path = tmp_path / "a.kvpol"
    path.write_text(UNTIDY, encoding="utf-8")
    entry = hooks()["kvpol-fmt"]["entry"]
    assert run(entry, path).returncode == 0
    formatted = path.read_text(encoding="utf-8")
    assert formatted != UNTIDY
    again = run(entry, path)
    assert (again.returncode, again.stderr) == (0, "")
    assert path.read_text(encoding="utf-8") == formatted


def test_the_formatter_stops_a_commit_of_what_does_not_parse(tmp_path: Path) -> None:
    """A file that cannot be formatted fails the hook and stays as it is."""
    path = tmp_path / "a.kvpol"
    path.write_text("sync if (bytes\n", encoding="utf-8")
    assert run(hooks()["kvpol-fmt"]["entry"], path).returncode != 0
    assert path.read_text(encoding="utf-8") == "sync if (bytes\n"
