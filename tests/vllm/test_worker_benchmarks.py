"""The benchmarks that compare with vLLM do their arithmetic right, and write what they say. Runs without vLLM."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from benchmarks import versus, vllm_e2e
from benchmarks.vllm_engine import EngineSettings


def test_every_part_runs_over_engines_that_are_made_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All parts write into one file; its rows have what a row needs, and the ratios are those of the engines."""
    path = tmp_path / "rows.json"
    arguments = ["--self-check", "--pairs", "6", "--prompts", "3", "--repeat", "5", "--output", str(path)]
    assert vllm_e2e.main(arguments) == 0
    capsys.readouterr()
    document = json.loads(path.read_text())
    rows = {row["id"]: row for row in document["rows"]}
    assert {"id", "value", "theirs", "ratio", "target", "ok"} <= rows[next(iter(rows))].keys()
    assert set(vllm_e2e.PARTS) <= document["settings"].keys()
    for load in ("idle", "loaded"):
        for tail, target in ((512, None), (2048, 0.8), (15872, 0.8)):
            row = rows[f"extra TTFT, sync, worker and policy, {load}, tail {tail}"]
            assert row["ratio"] == pytest.approx(0.7)
            assert (row["target"], row["ok"]) == (target, None if target is None else True)
    assert rows["rate of loads, sync, worker only"]["ratio"] == pytest.approx(1 / 0.7)
    assert rows["tokens, ours-policy and theirs-sync: host hit"]["ok"] is True
    assert rows["tokens, ours-policy: cold and GPU hit"]["note"] == "largest margin where they part: 0.1 nats"
    assert rows["extra TTFT, sync, worker and policy, idle, often, tail 512"]["runs"] == 6


def test_a_part_that_fails_keeps_what_it_had(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rounds before count, every engine as many; the failure is named and ends the part."""
    calls = 0

    def fails(engine: vllm_e2e.MadeUpEngine, method: str, **arguments: object) -> vllm_e2e.Values:
        nonlocal calls
        calls += 1
        if calls == 30:
            raise RuntimeError("theirs-sync: no answer within 120 s")
        return answer(engine, method, **arguments)

    answer = vllm_e2e.MadeUpEngine.call
    monkeypatch.setattr(vllm_e2e.MadeUpEngine, "call", fails)
    rows, failures = vllm_e2e.measure(vllm_e2e.parse(["--part", "tokens"]), vllm_e2e.MadeUpEngine)
    assert failures == ["theirs-sync: no answer within 120 s"]
    assert {row.runs for row in rows} == {7}


def test_rounds_end_with_the_time() -> None:
    """A clock without time left does the first round alone, which tells how long one is."""
    done: list[int] = []

    def one(i: int) -> None:
        done.append(i)
        time.sleep(0.02)

    clock = vllm_e2e.Clock(0.05)
    clock.rounds(1000, one)
    assert done == list(range(len(done)))
    assert 1 <= len(done) <= 3
    late = vllm_e2e.Clock(-1.0)
    late.rounds(3, done.append)
    assert len(done) <= 3


def test_a_row_knows_its_ratio_and_whether_it_reached_its_target() -> None:
    """Medians, pairs, the direction of the target; without theirs there is nothing to reach."""
    row = versus.compare("a", [1.0, 2.0, 3.0, 2.0, 2.0], [4.0, 4.0, 4.0, 4.0, 5.0], "ms", at_most=0.8)
    assert (row.value, row.theirs, row.ratio, row.ok, row.runs) == (2.0, 4.0, 0.5, True, 5)
    assert row.interval is not None
    assert row.interval[0] <= 0.5 <= row.interval[1]
    assert versus.compare("a", [2.0], [1.0], "GB/s", at_least=1.0).ok is True
    assert versus.compare("a", [0.9], [1.0], "GB/s", at_least=1.0).ok is False
    assert versus.compare("a", [0.9], [], "GB/s", at_least=1.0).ok is False
    assert versus.compare("a", [0.9], [0.0], "ms").ratio is None
    assert versus.count("a", 199, 200).ok is False
    assert versus.count("a", 0, 0).ok is False
    assert versus.p99([float(i) for i in range(200)]) == 198.0
    assert versus.p99([1.0, 3.0, 2.0]) == 3.0


def test_a_file_keeps_the_rows_of_other_calls(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rows that were taken again are replaced; two of one name are refused; another machine's rows go."""
    path = tmp_path / "rows.json"
    versus.write(path, [versus.count("a", 1, 2), versus.count("b", 1, 1)], {"x": 1})
    versus.write(path, [versus.count("a", 2, 2)], {"y": 2})
    capsys.readouterr()
    document = json.loads(path.read_text())
    assert {row["id"]: row["value"] for row in document["rows"]} == {"a": 2, "b": 1}
    assert document["settings"] == {"x": 1, "y": 2}
    with pytest.raises(ValueError, match="'a'"):
        versus.write(path, [versus.count("a", 1, 2), versus.count("a", 1, 1)])
    document["machine"]["gpu"] = "another"
    path.write_text(json.dumps(document))
    versus.write(path, [versus.count("c", 1, 1)])
    capsys.readouterr()
    assert [row["id"] for row in json.loads(path.read_text())["rows"]] == ["c"]


def test_the_command_line_is_checked(capsys: pytest.CaptureFixture[str]) -> None:
    """An engine that there is not, and nothing to do, are errors that name the choices."""
    for arguments, message in ((["--part", "rates", "--engines", "mine"], "theirs-async"), ([], "--part")):
        with pytest.raises(SystemExit):
            vllm_e2e.parse(arguments)
        assert message in capsys.readouterr().err


def test_engines_differ_in_their_connector_alone() -> None:
    """What is compared has the same settings otherwise; CUDA graphs are on where they are asked for."""
    for part in vllm_e2e.PARTS:
        made = vllm_e2e.settings_of(vllm_e2e.parse(["--part", part]))
        arguments = [{k: v for k, v in s.arguments("m").items() if k != "kv_transfer_config"} for s in made]
        assert all(a == arguments[0] for a in arguments)
        assert arguments[0]["enforce_eager"] is (part != "graphs")
        hosts = {s.kv_transfer_config()["kv_connector_extra_config"]["cpu_bytes_to_use"] for s in made}
        assert len(hosts) == 1
    ours = EngineSettings("ours-policy").kv_transfer_config()
    assert ours["kv_connector_extra_config"]["sync_load_budget_bytes"] == 4 << 30
