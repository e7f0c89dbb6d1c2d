"""`kvmove bench` as a command: sections, options, exit statuses and files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from kvmove import cli
from kvmove.bench import device
from kvmove.bench.plan import Plan
from kvmove.bench.results import Report, read
from kvmove.bench.rows import Row
from kvmove.cli import bench as command
from kvmove.move.paths.staged import StagedPath


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(cli.app, ["bench", *arguments])


@pytest.fixture
def on_cpu(tiny: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the command measure a tiny plan on the CPU."""
    monkeypatch.setattr(command, "_refuse_without_cuda", lambda: None)
    monkeypatch.setattr(device, "CudaDevice", device.HostDevice)
    monkeypatch.setattr(command, "QUICK", tiny)


@pytest.mark.usefixtures("on_cpu")
def test_sections_are_measured_written_and_drawn(tmp_path: Path) -> None:
    """The table is on stdout, what is going on is on stderr, and figures come from the same rows."""
    pytest.importorskip("matplotlib")
    output, drawn = tmp_path / "r.json", tmp_path / "figures"
    result = invoke("interference", "bandwidth", "--quick", "--output", str(output), "--figures", str(drawn))
    assert result.exit_code == 0, result.output
    assert "M7 expedited 256 B" in result.stdout
    assert "bandwidth: pages of 48 B" in result.stderr
    report = read(output)
    assert {r.labels["section"] for r in report.rows} == {"interference", "bandwidth"}
    assert sorted(p.name for p in drawn.iterdir()) == ["bandwidth.svg", "interference.svg"]
    again = tmp_path / "again"
    assert invoke("figures", str(output), "--output", str(again)).exit_code == 0
    for path in drawn.iterdir():
        assert (again / path.name).read_bytes() == path.read_bytes()


@pytest.mark.usefixtures("on_cpu")
def test_a_red_check_is_exit_status_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What could be measured is written all the same, and the file says what could not."""
    monkeypatch.setattr(StagedPath, "load", lambda *arguments: None)
    output = tmp_path / "r.json"
    result = invoke("bandwidth", "--quick", "--output", str(output))
    assert result.exit_code == 1
    assert "not measured: bandwidth, pages of 48 B: the staged path is not measured" in result.stderr
    assert json.loads(output.read_text())["failures"]
    assert read(output).rows


@pytest.mark.usefixtures("on_cpu")
def test_page_sizes_and_sizes_can_be_chosen(tmp_path: Path) -> None:
    """Both take several numbers with commas between them, fractions too."""
    output = tmp_path / "r.json"
    arguments = ["--page-kib", "0.0625, 0.125", "--sizes-mib", "0.015625"]
    assert invoke("bandwidth", "--quick", *arguments, "--output", str(output)).exit_code == 0
    rows = [r for r in read(output).rows if "block_bytes" in r.labels]
    assert {(r.labels["page_bytes"], r.labels["block_bytes"]) for r in rows} == {(64, 4096), (128, 8192)}
    assert {r.labels["bytes"] for r in rows} == {16384}


def test_without_cuda_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """One sentence, exit status 2, and no traceback."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    result = invoke("latency", "--quick")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: measuring needs a CUDA device")
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["speed"], "`speed` is no section; choose from: bandwidth, latency, interference, overlap, programs, peers"),
        (["--page-kib", "four"], "`four` is no number"),
        (["--page-kib", "4,"], "is no number"),
        (["--page-kib", "0"], "is not in"),
        (["--sizes-mib", "nan"], "is not in"),
        (["--sizes-mib", "1e9"], "is not in"),
        (
            ["latency", "--figures", "somewhere"],
            "only the sections bandwidth, interference, overlap and programs have figures",
        ),
        (["figures", "none.json"], "none.json: no such file"),
        (["figures"], "RESULTS"),
    ],
)
def test_what_cannot_be_used_is_status_2(arguments: list[str], message: str) -> None:
    """The message names what was wrong."""
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.split())


def test_results_without_a_figure_are_refused(tmp_path: Path) -> None:
    """The message says what would have one."""
    path = tmp_path / "r.json"
    Report.here([Row.of("M10", [5.0], "x")]).write(path)
    result = invoke("figures", str(path), "--output", str(tmp_path / "f"))
    assert result.exit_code == 2
    assert (
        "nothing to draw; measure at least one of the sections bandwidth, interference, overlap and programs"
        in result.stderr
    )


def test_figures_of_something_else_are_refused(tmp_path: Path) -> None:
    """A file that is no report is named."""
    path = tmp_path / "r.json"
    path.write_text("{}")
    result = invoke("figures", str(path))
    assert result.exit_code == 2
    assert "not the results of a benchmark" in result.stderr


def test_figures_are_refused_before_anything_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Minutes of measuring would be in vain if matplotlib were missed only then."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    result = invoke("--figures", "somewhere")
    assert result.exit_code == 2
    assert "pip install 'kvmove[report]'" in result.stderr


def test_help_names_the_sections_and_the_drawing() -> None:
    """One page of help has everything."""
    text = " ".join(invoke("--help").stdout.split())
    for word in ("bandwidth", "latency", "interference", "peers", "--quick", "kvmove bench figures", "Exit status 0"):
        assert word in text
