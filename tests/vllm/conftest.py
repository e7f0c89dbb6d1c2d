"""Tests of kvmove inside vLLM. Those that need vLLM are skipped where there is none; `make test-vllm` has one.

They build on `simulated_engine.py` here, which is no test: vLLM's own scheduler, with everything behind it simulated.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

NEED_VLLM = ("test_scheduler_", "test_connector_")


class _Skipped(pytest.Module):
    def collect(self) -> list[pytest.Item]:
        pytest.skip("vLLM is not installed here; run `make test-vllm`")


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    """Report a file that needs vLLM as skipped, without importing it."""
    if module_path.name.startswith(NEED_VLLM) and find_spec("vllm") is None:
        return _Skipped.from_parent(parent, path=module_path)
    return None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print how much was compared with vLLM's own connector."""
    tally = sys.modules.get("tally")
    for line in tally.lines() if tally is not None else ():
        terminalreporter.write_line(line)
