"""`make demo`: what a newcomer runs first."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
from rich.console import Console

from kvmove.kvpol import Policy
from kvmove.replay.engine import replay
from kvmove.replay.report import as_json, table
from kvmove.replay.settings import Settings
from kvmove.replay.trace import Request

DEMO = Path(__file__).parents[2] / "examples" / "demo.py"


@pytest.fixture(scope="module")
def demo() -> ModuleType:
    spec = importlib.util.spec_from_file_location("kvmove_demo", DEMO)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_demo_succeeds_and_says_what_it_did(demo: ModuleType, capsys: pytest.CaptureFixture[str]):
    """It names the device, shows the policies side by side, and shows the guard rail at work."""
    demo.REQUESTS = 200
    assert demo.main() == 0
    out = capsys.readouterr().out
    for text in ("always async", "compute-aware", "moved by the", "demoted: over budget", "OK: all"):
        assert text in out


def test_the_demo_fails_where_a_page_differs_or_nothing_was_loaded(demo: ModuleType):
    """It is a check, not a show."""
    report = replay(Policy.parse("sync"), [Request("r0", 0, 10, 1, (0,))], Settings(num_slots=2), device="cpu")
    console = Console(quiet=True)
    good = replace(report, loaded_pages=4)
    assert demo._verdict(console, [good]) == 0
    assert demo._verdict(console, [good, replace(good, mismatches=1)]) == 1
    assert demo._verdict(console, [good, report]) == 1


def test_a_report_is_json_and_a_table():
    """Every field is a plain value, also where nothing was served."""
    settings = Settings(num_slots=1)
    report = replay(Policy.load("budgeted"), [Request("r0", 0, 1000, 1, (0, 1))], settings, device="cpu")
    (policy,) = json.loads(json.dumps(as_json([report], settings)))["policies"]
    assert (policy["policy"], policy["refused"], policy["ttft"]["mean_ns"]) == ("budgeted", 1, None)
    assert policy["decisions"] == {"sync": 0, "async": 0, "recompute": 0, "defer": 0}
    console = Console(width=100)
    with console.capture() as captured:
        console.print(table([report, report]))
    assert "time to first token" in captured.get()
