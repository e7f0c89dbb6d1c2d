"""The guides for operators and for who tests policies run as they stand: each is one session in an empty folder.

A block after `<!-- file: NAME -->` is that file. Python runs in one set of names; a `text` block right after it is what
it prints. In a `console` block each `$` line is a command, and what follows is its output; a line of `...` stands for
any lines. The commands of `sh` and `yaml` blocks take too long or need what a
test has not: they exist, with their options.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from typer.testing import CliRunner

from kvmove.cli import app

DOCS = Path(__file__).resolve().parent.parent / "docs"
GUIDES = ("operating.md", "proofs.md", "testing-policies.md")
BLOCK = re.compile(
    r"^(?:<!-- file: (?P<file>\S+) -->\n)?```(?P<kind>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)
TEXT_AFTER = re.compile(r"\n\n```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)
DURATION = re.compile(r"\bin \d+\.\d\ds\b")


QUICK = """\
from hypothesis import settings

settings.register_profile("quick", max_examples=20, deadline=None, database=None, derandomize=True)
settings.load_profile("quick")
"""


class Block(NamedTuple):
    line: int
    kind: str
    text: str
    file: str | None
    prints: str | None  # what a `text` block right behind says


def blocks(guide: str) -> Iterator[Block]:
    whole = (DOCS / guide).read_text(encoding="utf-8")
    for found in BLOCK.finditer(whole):
        after = TEXT_AFTER.match(whole, found.end())
        line = whole.count("\n", 0, found.start("text"))
        yield Block(line, found["kind"], found["text"], found["file"], after[1] if after else None)


def commands(text: str) -> Iterator[tuple[str, str]]:
    """Each command of a `console` block, and the output that is shown."""
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, _, output = part.partition("\n")
        yield command, output


def run(command: str) -> str:
    """What a command prints, errors included."""
    name, *arguments = shlex.split(command)
    if name == "kvmove":
        return CliRunner().invoke(app, arguments).output
    if name == "pytest":
        # As the entry point would load the plugin, and no other: they take time and add to the output.
        arguments = ["-p", "kvmove.testing.plugin", "-p", "no:cacheprovider", *arguments]
        environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        arguments = [sys.executable, "-m", "pytest", *arguments]
        done = subprocess.run(arguments, check=False, capture_output=True, text=True, env=environment)
        return DURATION.sub("in 0.12s", done.stdout)
    {"cp": shutil.copy, "mv": shutil.move}[name](*arguments)
    return ""


def expected(output: str) -> str:
    """A pattern for `output`, in which a line of `...` stands for any lines."""
    return "(?:.*\n)*?".join(re.escape(part) for part in re.split(r"^\.\.\.\n", output, flags=re.MULTILINE))


def check_options(text: str) -> None:
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line.removeprefix("- run: "), comments=True)
        if words and words[0] == "kvmove":
            command = [w for w in words[1:3] if re.fullmatch("[a-z]+", w)][: 2 if words[1] == "trace" else 1]
            result = CliRunner().invoke(app, [*command, "--help"])
            assert result.exit_code == 0, line
            assert all(w in result.output for w in words if w.startswith("--")), line


@pytest.mark.parametrize("guide", GUIDES)
def test_the_guide_runs_as_it_stands(guide: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every file, command and program of it, in order, with the output that it shows."""
    pytest.importorskip("z3")
    pytest.importorskip("watchfiles")
    monkeypatch.chdir(tmp_path)
    Path("conftest.py").write_text(QUICK, encoding="utf-8")  # for the runs of pytest inside this one
    names: dict[str, object] = {"__name__": "guide"}
    kinds = set()
    for block in blocks(guide):
        where = f"{guide}, line {block.line}"
        kinds.add(block.kind)
        if block.file is not None:
            Path(block.file).write_text(block.text, encoding="utf-8")
        elif block.kind == "console":
            for command, output in commands(block.text):
                got = run(command)
                assert re.fullmatch(expected(output), got), f"{where}: {command}\n{got}"
        elif block.kind == "python":
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(compile("\n" * block.line + block.text, guide, "exec"), names)
            assert printed.getvalue() == (block.prints or ""), where
        elif block.kind in ("sh", "yaml"):
            check_options(block.text)
        else:
            assert block.kind == "text", where
    assert {"console", "python"} <= kinds


def test_a_wrong_guide_would_be_found() -> None:
    """Another output is none that was shown."""
    assert re.fullmatch(expected("a\n...\nd\n"), "a\nb\nc\nd\n")
    assert not re.fullmatch(expected("a\n...\nd\n"), "a\nb\nc\n")
    with pytest.raises(AssertionError):
        check_options("kvmove check --stricter chat.kvpol\n")
    assert list(commands("$ a b\nc\n$ d\n")) == [("a b", "c\n"), ("d", "")]
