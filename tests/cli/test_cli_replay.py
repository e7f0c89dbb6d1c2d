"""`kvmove replay`: what it prints, its exit statuses and its messages."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from kvmove.cli import app
from kvmove.replay import engine
from kvmove.replay.settings import Settings
from kvmove.replay.synth import Workload, synthesize, write_trace
from kvmove.replay.tally import Mismatch

# Small enough to take a second, and tight enough that prefixes leave the GPU cache and come back from the host.
WORKLOAD = Workload(requests_per_s=5, think_s=1, answer_tokens=30, max_prompt_tokens=8_192)
SMALL = ["--slots", "40", "--host-blocks", "200", "--device", "cpu"]


@pytest.fixture(scope="module")
def trace_text() -> str:
    file = io.StringIO()
    write_trace(synthesize(25, seed=1, workload=WORKLOAD), file)
    return file.getvalue()


@pytest.fixture
def trace(tmp_path: Path, trace_text: str) -> Path:
    path = tmp_path / "t.jsonl"
    path.write_text(trace_text)
    return path


def run(*arguments: object, input: str | None = None) -> Result:
    return CliRunner().invoke(app, ["replay", *(str(a) for a in arguments)], input=input)


def refused(result: Result) -> str:
    """The message of a run that was refused before anything was printed."""
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    return result.stderr


def test_several_policies_stand_side_by_side(trace: Path) -> None:
    """The table has a column for each policy and says that pages were compared."""
    result = run(trace, *SMALL, "--policy", "budgeted", "--policy", "always_async")
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    header, *rows = result.stdout.splitlines()
    assert "budgeted" in header
    assert "always async" in header
    cells = {name.strip(): values for name, *values in (row.split("│") for row in rows)}
    assert [v.strip() for v in cells["requests"]] == ["25", "25"]
    assert [v.strip() for v in cells["mismatches"]] == ["0", "0"]
    assert all(int(v.replace(",", "")) > 0 for v in cells["pages loaded and compared"])


def test_a_trace_that_asks_no_policy_says_why(trace: Path) -> None:
    """Where everything stays in the GPU cache, the table of zeros comes with what to change."""
    result = run(trace, "--device", "cpu", "--requests", "2")
    assert result.exit_code == 0
    assert "no policy was asked. With fewer --slots than 4096" in result.stderr


def test_json_is_all_there_is_on_stdout(trace: Path, trace_text: str) -> None:
    """`--json` prints one object, the same for a file, for standard input and in every run."""
    options = [*SMALL, "--json", "--policy", "budgeted", "--policy", "always_async", "--requests", "20"]
    result = run(trace, *options)
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert [p["policy"] for p in report["policies"]] == ["budgeted", "always async"]
    assert {p["requests"] for p in report["policies"]} == {20}
    assert report["policies"][1]["decisions"]["sync"] == 0
    assert run("-", *options, input=trace_text).stdout == result.stdout


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What the command asks the engine for; the engine itself does not run."""
    calls: list[dict[str, Any]] = []
    real = engine.replay

    def record(policy: Any, requests: Any, settings: Any, **rest: Any) -> Any:
        calls.append({"policy": policy, "requests": requests, "settings": settings} | rest)
        return real(policy, requests[:1], settings, device="cpu")

    monkeypatch.setattr(engine, "replay", record)
    return calls


def test_options_reach_the_engine(trace: Path, asked: list[dict[str, Any]]) -> None:
    """Sizes are read as in a policy, and every option arrives where it belongs."""
    options = [
        "--budget",
        "1.5MiB",
        "--kv-bytes-per-token",
        "8KiB",
        "--block-tokens",
        "512",
        "--quiet",
        "--rate",
        "2.5",
    ]
    assert run(trace, *SMALL, *options, "--policy", "compute_aware").exit_code == 0
    (call,) = asked
    settings = call["settings"]
    assert settings.budget_bytes == 3 << 19
    assert settings.model.kv_bytes_per_token == 8 << 10
    assert (settings.num_slots, settings.num_host_blocks, settings.block_tokens) == (40, 200, 512)
    assert settings.rate == 2.5
    assert call["policy"].name == "compute-aware"
    assert (call["device"], call["progress"]) == ("cpu", None)


def test_defaults_are_the_engines(trace: Path, asked: list[dict[str, Any]]) -> None:
    """Without options a replay is what `Settings()` describes, under the policy that comes first."""
    assert run(trace).exit_code == 0
    (call,) = asked
    assert call["settings"] == Settings()
    assert call["policy"].name == "budgeted"
    assert len(call["requests"]) == 25
    assert call["device"] == "auto"


def test_zero_budget_needs_no_unit(trace: Path, asked: list[dict[str, Any]]) -> None:
    """0 is the same in every unit."""
    assert run(trace, "--budget", "0").exit_code == 0
    assert asked[0]["settings"].budget_bytes == 0


def test_a_shadow_and_reasons_are_printed_on_request(trace: Path) -> None:
    """Lines for the shadow in the table, and a table of rules for each policy; in the JSON without it too."""
    options = [*SMALL, "--policy", "split", "--policy", "always_async"]
    plain = run(trace, *options)
    assert "shadow" not in plain.stdout
    assert "rules" not in plain.stdout
    result = run(trace, *options, "--shadow", "budgeted", "--why-not")
    assert result.exit_code == 0, result.output
    for text in ("shadow budgeted: decisions", "split: rules", "always async: rules", "rule 1 @fits", "because not"):
        assert text in result.stdout
    first, second = json.loads(run(trace, *options, "--shadow", "budgeted", "--json").stdout)["policies"]
    assert first["shadow"]["policy"] == second["shadow"]["policy"] == "budgeted"
    assert first["shadow"]["decisions"] == sum(rule["decided"] for rule in first["rules"]) > 0
    assert {tuple(rule["why_not"]) for rule in first["rules"]} == {()}


def test_a_shadow_may_be_one_of_the_policies(trace: Path, asked: list[dict[str, Any]]) -> None:
    """It is loaded once, and is no column of its own."""
    options = ["--policy", "split", "--policy", "budgeted", "--shadow", "budgeted"]
    assert run(trace, *options).exit_code == 0
    assert [call["policy"].name for call in asked] == ["split", "budgeted"]
    assert {call["shadow"] for call in asked} == {asked[1]["policy"]}
    assert {call["explain"] for call in asked} == {False}


def test_a_param_may_be_the_shadows(tmp_path: Path, trace: Path, asked: list[dict[str, Any]]) -> None:
    """It need not be one of the policies'."""
    path = tmp_path / "mine.kvpol"
    path.write_text("param least: bytes = 1MiB\nsync if bytes <= least\nasync\n")
    assert run(trace, "--shadow", path, "--param", "least=3MiB", "--why-not").exit_code == 0
    (call,) = asked
    assert (call["policy"].name, call["shadow"].params["least"], call["explain"]) == ("budgeted", 3 << 20, True)


def test_params_go_to_the_policies_that_have_them(tmp_path: Path, trace: Path, asked: list[dict[str, Any]]) -> None:
    """A param of one of two policies is for that one; `budget` is for both."""
    path = tmp_path / "mine.kvpol"
    path.write_text("param least: bytes = 1MiB\nsync if bytes <= least\nasync\n")
    params = ["--param", "least=3MiB", "--param", "budget=64MiB"]
    assert run(trace, "--policy", path, "--policy", "always_async", *params).exit_code == 0
    mine, other = (call["policy"] for call in asked)
    assert mine.params["least"] == 3 << 20
    assert mine.budget_bytes == other.budget_bytes == 64 << 20


def test_policies_of_one_name_are_told_apart(tmp_path: Path, trace: Path) -> None:
    """Two files of one name stand under their paths."""
    paths = [tmp_path / name / "same.kvpol" for name in ("a", "b")]
    for path in paths:
        path.parent.mkdir()
        path.write_text("async\n")
    result = run(trace, *SMALL, "--json", "--requests", "1", "--policy", paths[0], "--policy", paths[1])
    assert [p["policy"] for p in json.loads(result.stdout)["policies"]] == [str(path) for path in paths]


def test_mismatches_are_named_and_fail(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wrong bytes give status 1, with the first of them on stderr, and the report is printed all the same."""
    real = engine.replay

    def corrupt(*arguments: Any, **options: Any) -> Any:
        first = (Mismatch("r7", "sync load", 42, 3), Mismatch("r8", "async load", 43, 0))
        return replace(real(*arguments, **options), mismatches=1_234, first_mismatches=first)

    monkeypatch.setattr(engine, "replay", corrupt)
    result = run(trace, *SMALL, "--requests", "1", "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["policies"][0]["mismatches"] == 1_234
    assert result.stderr.splitlines() == [
        "mismatch: budgeted: request r7, block 42, page 3 (from sync load)",
        "mismatch: budgeted: request r8, block 43, page 0 (from async load)",
        "mismatch: budgeted: 1,232 more pages",
    ]


def test_a_malformed_line_is_named(trace: Path, trace_text: str) -> None:
    """The trace, the line's number, what is wrong and what is expected."""
    trace.write_text(trace_text + '{"timestamp": 1}\n')
    message = f"error: {trace}, line 26: `input_length`, `output_length`, `hash_ids` missing: a request has"
    assert refused(run(trace)).startswith(message)
    assert refused(run("-", input=trace.read_text())).startswith("error: <stdin>, line 26: ")
    trace.write_text("")
    assert refused(run(trace)) == f"error: {trace}, line 1: the trace is empty: it needs at least one request\n"


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    """A missing trace and a folder give one line each."""
    assert refused(run(tmp_path / "none")) == f"error: {tmp_path / 'none'}: no such file or directory\n"
    assert refused(run(tmp_path)) == f"error: {tmp_path}: is a directory\n"


def test_a_policys_mistakes_are_shown(tmp_path: Path, trace: Path) -> None:
    """A policy with mistakes is refused with all of them, as `kvmove check` shows them."""
    path = tmp_path / "bad.kvpol"
    path.write_text("sync if byts < 3MiB\nasync if tokens < 3ms\n")
    message = refused(run(trace, "--policy", path))
    assert message.startswith("error[KV101]: unknown name")
    assert "did you mean `bytes`?" in message
    assert "2 | async if tokens < 3ms" in message


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--policy", "bugeted"], "did you mean `budgeted`?"),
        (["--policy", "none.kvpol"], "error: none.kvpol: cannot be read: no such file or directory"),
        (["--policy", "budgeted", "--policy", "budgeted"], "`budgeted` is named twice; one replay of it is enough"),
        (["--shadow", "bugeted"], "did you mean `budgeted`?"),
        (["--param", "nothing=3"], "there is no param `nothing`"),
        (["--param", "budget=3ms"], "param `budget` is in bytes, but `3ms` is in time"),
        (["--param", "budget"], "`budget` is not written like `NAME=VALUE`"),
        (["--param", "=3"], "`=3` is not written like `NAME=VALUE`"),
        (["--param", "budget=1B", "--param", "budget=2B"], "`budget` is given twice"),
        (["--budget", "64"], "--budget: `64` is not in bytes; write `64B` or `64MiB`"),
        (["--budget", "64MB5"], "unknown unit `MB5`"),
        (["--budget", "64mib"], "write `64MiB`"),
        (["--budget", "3ms"], "`3ms` is not in bytes"),
        (["--budget", "0%"], "`0%` is not in bytes"),
        (["--budget", "-1B"], "a number is needed"),
        (["--budget", "0.3B"], "is not a whole number of `B`"),
        (["--budget", "17000GiB"], "is more than 16TiB"),
        (["--budget", "9" * 100], "is too long for a size"),
        (["--budget", ""], "a number is needed"),
        (["--kv-bytes-per-token", "0B"], "kv_bytes_per_token is 0"),
        (["--kv-bytes-per-token", "1GiB"], "kv_bytes_per_token"),
        (["--slots", "0"], "--slots"),
        (["--slots", "1000000000", "--kv-bytes-per-token", "1B"], "lower --slots or --host-blocks"),
        (["--host-blocks", "-3"], "--host-blocks"),
        (["--block-tokens", "0"], "--block-tokens"),
        (["--block-tokens", "99999999", "--kv-bytes-per-token", "1B"], "block_tokens lies between 1 and 16777216"),
        (["--block-tokens", "64"], "line 1: `hash_ids` has"),
        (["--requests", "0"], "--requests"),
        (["--rate", "0"], "rate is 0.0"),
        (["--device", "tpu"], "--device"),
        (["--nothing"], "--nothing"),
    ],
)
def test_unusable_options_are_status_2(trace: Path, options: list[str], message: str) -> None:
    """Each is refused with what is wrong, before anything is replayed or printed."""
    assert message in refused(run(trace, *options))
