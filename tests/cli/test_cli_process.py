"""The command line as a process: its entry points, what it imports, interrupts and closed pipes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

import kvmove
from kvmove import cli
from kvmove.errors import InternalError
from kvmove.replay.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
DEFAULT = Settings()
RUN = [sys.executable, "-m", "kvmove"]


def test_the_version_is_the_packages() -> None:
    """`python -m kvmove --version`, the package and its metadata agree."""
    done = subprocess.run([*RUN, "--version"], cwd=ROOT, check=True, capture_output=True, text=True)
    assert done.stdout == f"kvmove {kvmove.__version__}\n"
    assert done.stderr == ""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == kvmove.__version__
    assert project["scripts"] == {"kvmove": "kvmove.cli:main"}


@pytest.mark.parametrize(
    "arguments",
    [
        ["--version"],
        ["--help"],
        ["replay", "--help"],
        ["check", "policies/budgeted.kvpol"],
        ["trace", "synth", "--requests", "5"],
        ["replay", "none.jsonl"],
    ],
)
def test_only_a_replay_imports_torch(arguments: list[str]) -> None:
    """Everything else runs at once, and on machines without torch."""
    program = (
        "import sys\nfrom kvmove.cli import main\n"
        "try:\n    main()\nfinally:\n    print(*{'torch', 'triton', 'numpy'} & set(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], cwd=ROOT, check=False, capture_output=True, text=True
    )
    assert done.returncode == (2 if "none.jsonl" in arguments else 0), done.stderr
    assert done.stderr.splitlines()[-1] == ""


def test_help_names_the_commands_and_the_defaults() -> None:
    """Every option has its default in the help, and no help is cut short."""
    runner = CliRunner()
    overview = runner.invoke(cli.app, ["--help"]).stdout
    assert all(f"\n  {command} " in overview for command in ("check", "replay", "trace"))
    assert "..." not in overview.replace("[ARGS]...", "")
    options = " ".join(runner.invoke(cli.app, ["replay", "--help"]).stdout.split())
    numbers = [str(n) for n in (DEFAULT.num_slots, DEFAULT.num_host_blocks, DEFAULT.block_tokens, DEFAULT.rate)]
    for default in ("budgeted", "all", "what the policy says", "40KiB", "auto", *numbers):
        assert f"[default: {default}" in options
    assert "budgeted" in options
    for group in ([], ["trace"]):
        assert "Usage:" in runner.invoke(cli.app, group).output  # nothing was asked for


def test_a_closed_pipe_is_quiet() -> None:
    """`| head` ends the program without a word."""
    command = subprocess.Popen(
        [*RUN, "trace", "synth", "--requests", "100000"], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert command.stdout is not None
    assert command.stderr is not None
    assert command.stdout.readline().startswith(b'{"timestamp": 0,')
    command.stdout.close()
    with command.stderr as stderr:
        assert stderr.read() == b""
    assert command.wait() == cli.BROKEN_PIPE


def test_a_full_disk_is_an_error() -> None:
    """What cannot be written is said, and nothing fails again at exit."""
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full")
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [*RUN, "trace", "synth"], cwd=ROOT, check=False, stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert done.returncode == 2
    assert done.stderr == "error: no space left on device\n"


@pytest.mark.parametrize(
    ("redirection", "arguments", "status"),
    [
        (">&-", "check policies/budgeted.kvpol", 0),
        (">&-", "trace synth --requests 3", 0),
        ("2>&-", "check none.kvpol", 2),
        ("<&-", "replay -", 2),
    ],
)
def test_closed_streams_make_no_traceback(redirection: str, arguments: str, status: int) -> None:
    """A program that was started without a standard stream does its work, and its exit status tells."""
    command = f'exec "{sys.executable}" -m kvmove {arguments} {redirection}'
    done = subprocess.run(["sh", "-c", command], cwd=ROOT, check=False, capture_output=True, text=True)
    assert done.returncode == status, done.stderr
    assert "Traceback" not in done.stderr


def test_an_interrupt_is_quiet(tmp_path: Path) -> None:
    """Ctrl-C gives status 130 and no traceback."""
    fifo = tmp_path / "t.jsonl"
    os.mkfifo(fifo)
    # What a script starts with `&` ignores interrupts, and so would the command: it gets Python's own handler back.
    program = (
        "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\nfrom kvmove.cli import main\nmain()"
    )
    command = subprocess.Popen(
        [sys.executable, "-c", program, "replay", str(fifo)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    with command, open(fifo, "wb"):  # opens when the command does: it is reading now
        command.send_signal(signal.SIGINT)
        try:
            out, err = command.communicate(timeout=30)
        finally:
            command.kill()
    assert (command.returncode, out, err) == (130, b"", b"")


def test_a_bug_asks_to_be_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broken invariant is not the user's mistake, and says so."""

    def broken(*arguments: object, **options: object) -> None:
        raise InternalError("slot 3 is held by nobody")

    monkeypatch.setattr("kvmove.cli.trace.synthesize", broken)
    result = CliRunner().invoke(cli.app, ["trace", "synth"])
    assert result.exit_code == 2
    assert result.stderr == "error: slot 3 is held by nobody\n  = note: this is a bug in kvmove, please report it\n"


def test_unknown_commands_are_status_2() -> None:
    """A usage error names what it does not know."""
    result = CliRunner().invoke(cli.app, ["reply"])
    assert result.exit_code == 2
    assert "reply" in result.stderr
