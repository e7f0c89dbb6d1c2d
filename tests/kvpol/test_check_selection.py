"""`kvmove check --select` and `--ignore`: which findings are reported, and what the exit status says of the others."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from kvmove.cli import app
from kvmove.kvpol.codes import CODES
from kvmove.kvpol.selection import Selection, UnknownCode

# KV101 and KV201 are errors, KV304 is a warning; strictly, KV302 is one too.
MIXED = "sync if byts > 3B\ndefer if bytes < load_time\nasync if 1B > 2B\n"
WARNED = "sync if 1B > 2B\nasync if bytes > 3B\n"


def check(folder: Path, text: str, *options: str) -> Result:
    path = folder / "p.kvpol"
    path.write_text(text, encoding="utf-8")
    return CliRunner().invoke(app, ["check", str(path), *options])


def codes_in(result: Result) -> list[str]:
    return [line.split("[")[1][:5] for line in result.stdout.splitlines() if line.startswith(("error[", "warning["))]


@pytest.mark.parametrize(
    ("options", "codes", "status"),
    [
        ([], ["KV101", "KV201", "KV304"], 1),
        (["--select", "KV2"], ["KV201"], 1),
        (["--select", "kv2,KV101"], ["KV101", "KV201"], 1),
        (["--select", "KV2", "--select", "KV3"], ["KV201", "KV304"], 1),
        (["--ignore", "KV1"], ["KV201", "KV304"], 1),
        (["--ignore", "KV1, KV201"], ["KV304"], 0),
        (["--ignore", "KV1", "--ignore", "KV201", "--strict"], ["KV304"], 1),
        (["--select", "KV3"], ["KV304"], 0),
        (["--select", "KV3", "--strict"], ["KV304"], 1),
        (["--select", "KV20", "--ignore", "KV2"], ["KV201"], 1),
        (["--select", "KV2", "--ignore", "KV201"], [], 0),
        (["--select", "KV201", "--ignore", "KV201"], [], 0),
        (["--select", "ALL", "--ignore", "KV"], [], 0),
        (["--select", "KV201", "--ignore", "ALL"], ["KV201"], 1),
        (["--ignore", "all"], [], 0),
        (["--select", "KV4"], [], 0),
    ],
)
def test_what_is_reported_decides_the_exit_status(
    tmp_path: Path, options: list[str], codes: list[str], status: int
) -> None:
    """The longer prefix counts; errors fail, warnings only with --strict, and what is left out not at all."""
    result = check(tmp_path, MIXED, *options)
    assert codes_in(result) == codes
    assert result.exit_code == status


def test_the_summary_says_that_errors_were_left_out(tmp_path: Path) -> None:
    """A policy with errors that nobody asked about is not called ok."""
    assert (
        check(tmp_path, MIXED, "--select", "KV3")
        .stdout.splitlines()[-1]
        .endswith(": cannot be used, 1 warning, 2 errors left out")
    )
    assert (
        check(tmp_path, MIXED, "--ignore", "KV1")
        .stdout.splitlines()[-1]
        .endswith(": failed, 1 error, 1 warning, 1 error left out")
    )
    assert check(tmp_path, WARNED, "--ignore", "KV304").stdout.splitlines()[-1].endswith(": ok, 2 rules")


def test_selecting_a_strict_code_asks_for_it(tmp_path: Path) -> None:
    """What is given on request only is given when its code is named; it fails a check with --strict only."""
    text = "sync if load_time < 3ms\n"
    assert codes_in(check(tmp_path, text)) == []
    result = check(tmp_path, text, "--select", "KV302")
    assert (codes_in(result), result.exit_code) == (["KV302"], 0)
    assert codes_in(check(tmp_path, text, "--select", "KV2")) == ["KV214"]
    assert codes_in(check(tmp_path, text, "--select", "ALL", "--ignore", "KV302")) == ["KV214"]
    assert codes_in(check(tmp_path, text, "--ignore", "KV1")) == []
    assert codes_in(check(tmp_path, text, "--ignore", "KV302", "--strict")) == ["KV214"]
    result = check(tmp_path, text, "--select", "KV302", "--strict")
    assert (codes_in(result), result.exit_code) == (["KV302"], 1)


@pytest.mark.parametrize("option", ["--select", "--ignore"])
@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("KV999", "`KV999` begins no code"),
        ("KVV201", "did you mean KV201?"),
        ("2", "`2` begins no code"),
        ("", "`` begins no code"),
        ("KV2,,KV3", "`` begins no code"),
        ("KV2011", "begins no code"),
        ("E501", "a code is like KV201, a prefix like KV2"),
    ],
)
def test_a_prefix_of_no_code_is_refused(tmp_path: Path, option: str, written: str, message: str) -> None:
    """A code that does not exist would silently report nothing, so it is status 2."""
    result = check(tmp_path, MIXED, option, written)
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.split())


def test_every_code_and_prefix_can_be_named() -> None:
    """`Selection` takes each code and each of its prefixes, and then has that code."""
    for name in CODES:
        for length in range(2, 6):
            assert Selection.of([name[:length]]).has(name)
            assert not Selection.of([], [name[:length]]).has(name)
    assert all(Selection.of().has(name) for name in CODES)
    with pytest.raises(UnknownCode):
        Selection.of(["K"])
