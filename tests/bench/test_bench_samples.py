"""The statistics, the rows made of them, and what a report keeps."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from kvmove.bench import samples
from kvmove.bench.machine import commit, machine, machine_name
from kvmove.bench.plan import FULL, KIB, QUICK, Shape
from kvmove.bench.results import Report, read
from kvmove.bench.rows import Row, size
from kvmove.bench.table import tables
from kvmove.errors import RecordError


def test_measures_are_taken_in_turn_and_the_first_rounds_dropped() -> None:
    """Neighbours in time are neighbours in the lists, so that their ratios mean something."""
    order: list[str] = []

    def measure(name: str) -> float:
        order.append(name)
        return float(len(order))

    taken = samples.in_turn(2, {"a": lambda: measure("a"), "b": lambda: measure("b")}, warm_up=1)
    assert order == ["a", "b"] * 3
    assert taken == {"a": [3.0, 5.0], "b": [4.0, 6.0]}
    assert samples.ratios(taken["b"], taken["a"]) == [4 / 3, 6 / 5]


def test_the_spread_is_half_of_what_lies_between_the_quartiles() -> None:
    """An outlier does not move it, and one value has none."""
    assert samples.spread([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 700.0]) == 2.0
    assert samples.spread([3.0]) == 0.0
    assert samples.half_range([1.0, 4.0, 2.0]) == 1.5


def test_a_row_of_one_run_spreads_over_repetitions_and_of_several_over_runs() -> None:
    """What varies between runs counts where there are runs."""
    one = Row.of_runs("r", [[1.0, 2.0, 3.0]], "x")
    assert (one.value, one.spread, one.runs, one.ok) == (2.0, 1.0, (), None)
    three = Row.of_runs("r", [[1.0, 1.0], [5.0, 5.0], [2.0, 2.0]], "x")
    assert (three.value, three.spread, three.runs) == (2.0, 2.0, (1.0, 5.0, 2.0))


@pytest.mark.parametrize(
    ("promise", "held", "ok"),
    [
        ({"at_least": 2.0}, True, True),
        ({"at_least": 2.1}, True, False),
        ({"at_most": 2.0}, True, True),
        ({"at_most": 1.9}, True, False),
        ({"at_most": 2.0}, False, False),
        ({}, True, None),
    ],
)
def test_a_promise_is_met_at_its_limit_and_only_under_its_conditions(
    promise: dict[str, float], held: bool, ok: bool | None
) -> None:
    """The limit itself meets the promise; a figure taken under other conditions misses it."""
    row = Row.of_runs("M1 r", [[2.0]], "x", held=held, **promise)
    assert row.ok is ok
    assert row.target == next(iter(promise.values()), None)


def test_sizes_are_written_for_people() -> None:
    """Whole units where they come out even; large sizes that do not are rounded."""
    assert [size(n) for n in (576, 1024, 1152, 18432, 96 << 20)] == ["576 B", "1 KiB", "1152 B", "18 KiB", "96 MiB"]
    assert size(1023 << 10) == "1023 KiB"
    assert size((5 << 20) + 100) == "5 MiB"


def test_blocks_are_those_of_models() -> None:
    """The plan's shapes give blocks as the promises name them."""
    assert Shape.for_page(32 * KIB) == Shape(32 * KIB, 96)
    assert Shape.for_page(72 * KIB).num_pages == Shape.for_page(18432).num_pages == 61
    assert Shape.for_page(1152).num_pages == 64
    assert {s.page_bytes for s in FULL.shapes} >= {s.page_bytes for s in QUICK.shapes}
    for plan in (FULL, QUICK):
        assert any(s.page_bytes == KIB and s.block_bytes == 384 * KIB for s in plan.shapes)
        assert all(blocks * shape.block_bytes in (6 << 20, 2 << 20) for _, shape, blocks, _ in plan.small_loads)
        assert plan.bulk_blocks * plan.bulk_shape.block_bytes == 1 << 30


def test_a_report_comes_back_as_it_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Machine, commit, rows, runs, labels and failures survive the file."""
    monkeypatch.setenv("KVMOVE_COMMIT", "0123abc")
    rows = [
        Row.of_runs("M1 a", [[1.0], [2.0]], "x DMA", at_least=1.0, labels={"section": "s", "bytes": 3}),
        Row.of("b", [1.0, 2.0], "us"),
    ]
    report = Report.here(rows, ["c: not measured"])
    assert report.commit == "0123abc"
    path = tmp_path / "new" / "r.json"
    report.write(path)
    assert read(path) == report
    plain = json.loads(path.read_text())
    assert list(plain["rows"][1]) == ["id", "value", "spread", "target", "unit", "ok"]
    assert plain["failures"] == ["c: not measured"]
    assert "failures" not in json.loads((write_clean(tmp_path)).read_text())


def write_clean(folder: Path) -> Path:
    path = folder / "clean.json"
    Report.here([Row.of("b", [1.0], "us")]).write(path)
    return path


def test_two_rows_with_one_id_are_refused() -> None:
    """A reader could not tell them apart."""
    with pytest.raises(RecordError, match="'same'"):
        Report.here([Row.of("same", [1.0], "us"), Row.of("same", [2.0], "us")])


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"machine": {}, "commit": null, "rows": [{"id": 1}]}', '{"rows": 3}']
)
def test_a_file_that_is_no_report_is_said_to_be_none(text: str, tmp_path: Path) -> None:
    """Neither malformed JSON nor other JSON is a traceback."""
    path = tmp_path / "r.json"
    path.write_text(text)
    with pytest.raises(RecordError, match=r"r\.json: not the results of a benchmark"):
        read(path)


def test_committed_results_can_be_read() -> None:
    """Reports of earlier versions stay readable."""
    results = sorted((Path(__file__).resolve().parents[2] / "benchmarks" / "results").glob("*.json"))
    assert results
    for path in results:
        assert read(path).rows


def test_the_machine_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The facts hold what figures depend on, and a file name can be made of them."""
    assert {"cpu", "cores", "system", "python"} <= machine().keys()
    assert machine_name().replace("-", "").isalnum()
    monkeypatch.delenv("KVMOVE_COMMIT", raising=False)
    named = commit()
    assert named is None or len(named.removesuffix("-dirty")) == 12


def test_the_table_says_which_targets_are_missed() -> None:
    """A verdict stands beside each promise, and nothing beside the rest."""
    rows = [
        Row.of_runs("M1 [a]", [[0.5]], "x DMA", at_least=0.9, labels={"section": "one"}),
        Row.of_runs("M2 b", [[0.95]], "x DMA", at_least=0.9, labels={"section": "two"}),
        Row.of("c", [3.0], "us", labels={"section": "two"}),
    ]
    from rich.console import Console

    console = Console(width=120, record=True, file=io.StringIO())
    console.print(*tables(Report({"gpu": "G", "cores": 4}, None, tuple(rows))), sep="\n")
    text = console.export_text()
    assert [("M1 [a]" in line) for line in text.splitlines() if "MISSED" in line] == [True]
    assert [("M2 b" in line) for line in text.splitlines() if " met " in line] == [True]
    assert text.startswith("G, 4 cores, commit unknown")
    assert text.index(" c ") < text.index("What is promised") < text.index("M1 [a]")
