"""`kvmove fmt`: exit statuses, what it prints, and what it leaves alone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import typer
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from kvmove.cli.fmt import fmt
from kvmove.testing import policies

MESSY = "# why\nsync   if bytes<3B # small\nasync"
NEAT = "# why\nsync if bytes < 3B  # small\nasync\n"
BROKEN = "sync if bytes <\n"


def run(*arguments: object, stdin: str | bytes | None = None) -> Result:
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


def test_a_diff_is_one_that_patch_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lines that go and come stand under the file's name; the status and standard error are those of --check."""
    monkeypatch.chdir(tmp_path)
    Path("p.kvpol").write_text(MESSY)
    result = run("--diff", "p.kvpol")
    assert result.exit_code == 1
    assert result.stderr == "p.kvpol: would be formatted\n"
    assert (
        result.stdout
        == """\
--- p.kvpol
+++ p.kvpol (formatted)
@@ -1,3 +1,3 @@
 # why
-sync   if bytes<3B # small
+sync if bytes < 3B  # small
 async
"""
    )
    assert run("--diff", "-", stdin=MESSY).stdout == result.stdout.replace("p.kvpol", "<stdin>")
    assert run("--diff", "--check", "p.kvpol").stdout == result.stdout


def test_folders_are_formatted_with_those_below(tmp_path: Path) -> None:
    """Every policy file in and below a folder, and nothing else; what is broken does not keep the others back."""
    files = {"a.kvpol": MESSY, "deep/er/b.kvpol": MESSY, "neat.kvpol": NEAT, "bad.kvpol": BROKEN}
    others = {"a.txt": MESSY, ".hidden/c.kvpol": MESSY, "a.kvpol.orig": MESSY}
    for name, text in {**files, **others}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    result = run("--check", tmp_path)
    assert result.exit_code == 2
    assert result.stderr.count(": would be formatted\n") == 2
    result = run(tmp_path)
    assert result.exit_code == 2
    assert {name for name in files if f"{tmp_path / name}: formatted\n" in result.stderr} == {
        "a.kvpol",
        "deep/er/b.kvpol",
    }
    for name, text in files.items():
        assert (tmp_path / name).read_text() == (text if name == "bad.kvpol" else NEAT)
    assert all((tmp_path / name).read_text() == text for name, text in others.items())
    (tmp_path / "bad.kvpol").unlink()
    assert run("--check", tmp_path).exit_code == 0


def test_a_folder_without_policies_is_a_mistake(tmp_path: Path) -> None:
    """Nothing to do there is more likely a wrong path."""
    result = run(tmp_path)
    assert result.exit_code == 2
    assert "has no .kvpol file" in result.output


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"sync\xff\nasync", "not UTF-8 text (byte 0xff at offset 4)"),
        (b"# \xe9t\xe9\nasync", "not UTF-8 text"),
        (b"s\x00y\x00n\x00c\x00", "error"),
        (b"# " + b"x" * (70 << 10), "64 KiB"),
        (b"sync if bytes < 3 MiB\nasync", "KV009"),
        (b'policy "a\nasync', "KV005"),
    ],
)
@pytest.mark.parametrize("options", [[], ["--check"], ["--diff"]])
def test_what_is_no_policy_is_left_byte_for_byte(tmp_path: Path, data: bytes, message: str, options: list[str]) -> None:
    """Other encodings, files that are too large and syntax errors: status 2, with the reason and the file's name."""
    path = tmp_path / "p.kvpol"
    path.write_bytes(data)
    result = run(*options, path)
    assert result.exit_code == 2
    assert message in result.stderr
    assert str(path) in result.stderr
    assert (path.read_bytes(), result.stdout) == (data, "")
    result = run(*options, "-", stdin=data)
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr


def test_a_read_only_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not replaced by way of its folder, which could be written."""
    # Root, whom tests may run as, can write whatever its mode is.
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)
    path = tmp_path / "p.kvpol"
    path.write_text(MESSY)
    path.chmod(0o444)
    result = run(path)
    assert result.exit_code == 2
    assert "change its mode" in result.stderr
    assert path.read_text() == MESSY


def test_a_pipe_is_no_file_to_replace(tmp_path: Path) -> None:
    """It is refused before anything is read, so that nobody waits for a writer."""
    path = tmp_path / "p.kvpol"
    os.mkfifo(path)
    result = run(path)
    assert result.exit_code == 2
    assert "neither a file nor a folder" in result.stderr


def test_a_file_named_twice_is_formatted_once(tmp_path: Path) -> None:
    """Also by way of its folder."""
    path = tmp_path / "p.kvpol"
    path.write_text(MESSY)
    result = run(path, tmp_path, path)
    assert (result.exit_code, result.stderr) == (0, f"{path}: formatted\n")


ENDS = st.sampled_from(["\n", "\r\n", "\r"])


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(policies(max_rules=3, max_depth=1), ENDS, st.booleans())
@example("# a\n\n\nsync#b\n", "\r\n", True)
def test_formatting_a_file_is_checked_clean_and_done_once(tmp_path: Path, text: str, end: str, bom: bool) -> None:
    """After `fmt`, `fmt --check` and `fmt --diff` have nothing to say, whatever the line ends were."""
    path = tmp_path / "p.kvpol"
    path.write_bytes((b"\xef\xbb\xbf" if bom else b"") + text.replace("\n", end).encode())
    assert run(path).exit_code == 0
    once = path.read_bytes()
    assert b"\r" not in once
    assert run("-", stdin=text).stdout.encode() == once
    for options in ([], ["--check"], ["--diff"]):
        result = run(*options, path)
        assert (result.exit_code, result.output) == (0, "")
    assert path.read_bytes() == once


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=80) | st.text(alphabet='sync if\n<>=()#@"3BMi', max_size=60).map(str.encode))
def test_any_bytes_are_formatted_or_left_alone(tmp_path: Path, data: bytes) -> None:
    """Status 2 leaves every byte; status 0 leaves a file that is formatted. There is nothing else, and no traceback."""
    path = tmp_path / "p.kvpol"
    path.write_bytes(data)
    result = run(path)
    assert result.exit_code in (0, 2), result.output
    if result.exit_code == 2:
        assert path.read_bytes() == data
        assert result.stderr
    else:
        assert run("--check", path).exit_code == 0
    assert list(tmp_path.iterdir()) == [path]
