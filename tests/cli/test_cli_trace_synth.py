"""`kvmove trace synth`: what it writes and refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from kvmove.cli import app
from kvmove.replay.synth import synthesize
from kvmove.replay.trace import read_trace


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["trace", "synth", *(str(a) for a in arguments)])


def test_a_file_and_standard_output_hold_the_same(tmp_path: Path) -> None:
    """What is written reads back as what `synthesize` makes; only the file's count goes to stderr."""
    path = tmp_path / "t.jsonl"
    to_file, to_output = run("--requests", 30, "--seed", 5, "--output", path), run("--requests", 30, "--seed", 5)
    assert (to_file.exit_code, to_output.exit_code) == (0, 0)
    assert (to_file.stdout, to_output.stderr) == ("", "")
    assert to_file.stderr == f"{path}: 30 requests\n"
    assert path.read_text() == to_output.stdout
    assert list(read_trace(path)) == list(synthesize(30, seed=5))


def test_options_shape_the_trace(tmp_path: Path) -> None:
    """The options are those of a `Workload`."""
    path = tmp_path / "t.jsonl"
    options = ["--block-tokens", 64, "--max-prompt-tokens", 1000, "--system-prompts", 1, "--turns", 1, "--think-s", 0.5]
    lengths = ["--system-tokens", 100, "--question-tokens", 50, "--answer-tokens", 7]
    rates = ["--requests-per-s", 1000, "--popularity-skew", 0]
    assert run("--requests", 100, "--output", path, *options, *lengths, *rates).exit_code == 0
    requests = list(read_trace(path, block_tokens=64))
    assert max(r.input_tokens for r in requests) <= 1000
    assert requests[-1].timestamp_ms < 1000
    assert 3 < sorted(r.output_tokens for r in requests)[50] < 14


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--requests", "0"], "error: a trace has at least 1 request, not 0"),
        (["--seed", "-1"], "error: a seed is 0 or more, not -1"),
        (["--turns", "nan"], "error: turns lies between 1 and 10000, not nan"),
        (["--block-tokens", "0"], "error: block_tokens lies between 1 and 1.67772e+07, not 0"),
        (["--requests", "many"], "--requests"),
        (["--output", "/none/t.jsonl"], "error: /none/t.jsonl: cannot be written: no such file or directory"),
    ],
)
def test_what_cannot_be_made_is_status_2(options: list[str], message: str) -> None:
    """Each is refused with what is wrong."""
    result = run(*options)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert message in result.stderr
