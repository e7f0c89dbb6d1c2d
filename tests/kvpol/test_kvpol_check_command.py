"""`kvmove check`: exit statuses and what it prints."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from kvmove.cli.check import check

POLICIES = Path(__file__).parents[2] / "policies"


def run(*arguments: object) -> Result:
    app = typer.Typer()
    app.command()(check)
    return CliRunner().invoke(app, [str(a) for a in arguments])


def write(folder: Path, text: str | bytes, name: str = "p.kvpol") -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_clean_files_are_ok() -> None:
    """Every shipped policy is ok, strictly too, with one line each and exit status 0."""
    files = sorted(POLICIES.glob("*.kvpol"))
    for options in ([], ["--strict"]):
        result = run(*files, *options)
        assert result.exit_code == 0, result.output
        assert result.stdout.splitlines() == [line for line in result.stdout.splitlines() if ": ok, " in line]
        assert len(result.stdout.splitlines()) == len(files)


def test_errors_are_shown_with_their_line(tmp_path: Path) -> None:
    """A mistake is shown with its line, a caret, and what was probably meant; the exit status is 1."""
    path = write(tmp_path, "async if tokens < 3tok\nsync if byts <= budget_remaining\n")
    result = run(path)
    assert result.exit_code == 1
    assert "2 | sync if byts <= budget_remaining" in result.stdout
    assert "  |         ^^^^" in result.stdout
    assert "did you mean `bytes`?" in result.stdout
    assert result.stdout.splitlines()[-1] == f"{path}: failed, 1 error"
    assert "\x1b" not in result.stdout


def test_warnings_fail_only_strictly(tmp_path: Path) -> None:
    """A warning is shown and does not fail the check, except with --strict."""
    path = write(tmp_path, "let x = bytes\nsync if tokens < 3tok\nasync\n")
    assert run(path).exit_code == 0
    assert run(path).stdout.splitlines()[-1] == f"{path}: ok, 2 rules, 1 warning"
    assert run("--strict", path).exit_code == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sync if bytes < 3B", "the last rule is left to be `async`"),
        ("sync if load_time < 3ms\nasync", "`load_time` may be unknown"),
        ("let fast = load_time < 3ms\nsync if not fast\nasync", "`load_time` may be unknown"),
    ],
)
def test_strict_wants_more_said(tmp_path: Path, text: str, message: str) -> None:
    """--strict wants the last rule written, and to know that an estimate may be unknown."""
    path = write(tmp_path, text)
    assert run(path).exit_code == 0
    assert message not in run(path).output
    result = run("--strict", path)
    assert result.exit_code == 1
    assert message in result.stdout


@pytest.mark.parametrize(
    "text",
    [
        "sync if known(load_time) and load_time < 3ms\nasync",
        "let k = known(load_time)\nsync if k and load_time < 3ms\nasync",
    ],
)
def test_strict_is_content_when_asked(tmp_path: Path, text: str) -> None:
    """A rule that asks `known` about what it compares has no hint."""
    assert run("--strict", write(tmp_path, text)).exit_code == 0


def test_unusable_input_is_status_2(tmp_path: Path) -> None:
    """A missing file and a binary file are reported on stderr, and the other files are still checked."""
    good = write(tmp_path, "async", "good.kvpol")
    for bad, message in (
        (tmp_path / "none.kvpol", "no such file or directory"),
        (write(tmp_path, b"\x7fELF\x00\x01", "binary.kvpol"), "not a text file"),
        (write(tmp_path, b"sync if \xff", "latin.kvpol"), "not UTF-8"),
    ):
        result = run(bad, good)
        assert result.exit_code == 2
        assert message in result.stderr
        assert result.stdout.splitlines() == [f"{good}: ok, 1 rule"]


def test_too_large_file_is_an_error(tmp_path: Path) -> None:
    """A text over the size limit is a mistake of the policy: status 1."""
    result = run(write(tmp_path, "# " + "x" * (70 << 10)))
    assert result.exit_code == 1
    assert "larger than 64 KiB" in result.stdout


def test_escapes_do_not_reach_the_terminal(tmp_path: Path) -> None:
    """Control characters of a file are shown, not sent."""
    result = run(write(tmp_path, "sync if \x1b[2J byts < 3B # \x1b[31m"))
    assert result.exit_code == 1
    assert "\x1b" not in result.stdout
    assert "\\x1b" in result.stdout
