"""`kvmove fmt`: exit statuses, what it prints, and what it leaves alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from kvmove.cli.fmt import fmt

MESSY = "# why\nsync   if bytes<3B # small\nasync"
NEAT = "# why\nsync if bytes < 3B  # small\nasync\n"
BROKEN = "sync if bytes <\n"


def run(*arguments: object, stdin: str | None = None) -> Result:
    app = typer.Typer()
    app.command()(fmt)
    return CliRunner().invoke(app, [str(a) for a in arguments], input=stdin)


def test_a_file_is_rewritten_with_its_mode_and_link(tmp_path: Path) -> None:
    """The text is replaced, the mode and a link to the file stay, and no other file is left behind."""
    path, link = tmp_path / "p.kvpol", tmp_path / "link.kvpol"
    path.write_text(MESSY)
    path.chmod(0o640)
    link.symlink_to(path)
    assert run(link).exit_code == 0
    assert path.read_text() == NEAT
    assert path.stat().st_mode & 0o777 == 0o640
    assert link.is_symlink()
    assert sorted(tmp_path.iterdir()) == [link, path]
    result = run(path)
    assert (result.exit_code, result.output) == (0, "")


@pytest.mark.parametrize("option", ["--check", "--diff"])
def test_check_and_diff_write_nothing(tmp_path: Path, option: str) -> None:
    """Both say 1 where a file would change, and 0 where none would; the diff shows the lines."""
    path = tmp_path / "p.kvpol"
    path.write_text(MESSY)
    result = run(option, path)
    assert result.exit_code == 1
    assert path.read_text() == MESSY
    assert ("+sync if bytes < 3B  # small\n" in result.stdout) == (option == "--diff")
    path.write_text(NEAT)
    assert run(option, path).exit_code == 0


@pytest.mark.parametrize("data", [NEAT.replace("\n", "\r\n").encode(), b"\xef\xbb\xbf" + NEAT.encode()])
def test_line_ends_and_a_byte_order_mark_count_as_changes(tmp_path: Path, data: bytes) -> None:
    """A file that differs in bytes alone would change, and is changed."""
    path = tmp_path / "p.kvpol"
    path.write_bytes(data)
    assert run("--check", path).exit_code == 1
    assert run(path).exit_code == 0
    assert path.read_bytes() == NEAT.encode()


def test_a_broken_file_is_left_alone_and_the_others_are_formatted(tmp_path: Path) -> None:
    """A syntax error is shown with its place and ends in status 2; the next file is formatted all the same."""
    bad, good = tmp_path / "bad.kvpol", tmp_path / "good.kvpol"
    bad.write_text(BROKEN)
    good.write_text(MESSY)
    result = run(bad, good)
    assert result.exit_code == 2
    assert f"{bad}:1" in result.stderr
    assert bad.read_text() == BROKEN
    assert good.read_text() == NEAT
    result = run(tmp_path / "none.kvpol")
    assert result.exit_code == 2
    assert "no such file" in result.stderr


def test_standard_input_goes_to_standard_output() -> None:
    """`-` reads and writes the standard streams, and a broken text prints nothing there."""
    result = run("-", stdin=MESSY)
    assert (result.exit_code, result.stdout) == (0, NEAT)
    assert run("--check", "-", stdin=MESSY).exit_code == 1
    result = run("-", stdin=BROKEN)
    assert (result.exit_code, result.stdout) == (2, "")
