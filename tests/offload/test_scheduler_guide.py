"""The engine guide's example runs as it stands, and its engine gets every byte back."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import kvmove.offload
from kvmove.testing.offload_calls import Driver

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "engine.md"


def code_blocks() -> list[str]:
    """The engine, and what to do when a sync load failed."""
    return re.findall(r"^```python\n(.*?)^```$", GUIDE.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def example() -> tuple[str, str]:
    """The guide's engine, and what it does with it."""
    whole = code_blocks()[0]
    engine, _, use = whole.partition("\nengine = Engine()\n")
    return engine, "engine = Engine()\n" + use


def test_the_example_runs() -> None:
    """It loads the second request's prefix inside the step, and asserts so itself."""
    names: dict[str, Any] = {}
    exec(compile("\n".join(example()), str(GUIDE), "exec"), names)
    assert names["engine"].log[-1] == ("second", "sync", 8)
    assert len(names["engine"].free) == names["NUM_SLOTS"]
    names["scheduler"].check_integrity()


@pytest.mark.parametrize("budget_blocks", [0, 2, 100])
def test_its_engine_serves_many_requests_with_few_slots(budget_blocks: int) -> None:
    """Every prompt is computed once over whatever was loaded for it; the forward pass compares every byte."""
    names: dict[str, Any] = {}
    exec(compile(example()[0], str(GUIDE), "exec"), names)
    engine, scheduler = names["Engine"](), names["scheduler"]
    scheduler.steps.set_budget(budget_blocks * names["layout"].block_bytes)
    prompts = [[*range(10, 10 + 4 * (i % 3 + 1)), *range(100 + i, 101 + i + i % 2)] for i in range(40)]
    for i, prompt in enumerate(prompts):
        engine.add(f"r{i}", prompt)
        if i % 4 == 3:
            engine.step()
    for _ in range(100):
        engine.step()
        scheduler.check_integrity()
    assert not engine.waiting
    assert not engine.parked
    assert sorted(engine.free) == list(range(names["NUM_SLOTS"]))
    actions = {action for _, action, loaded in engine.log if loaded}
    assert actions == {0: {"async"}, 2: {"sync", "async"}, 100: {"sync"}}[budget_blocks]
    assert scheduler.num_jobs == 0
    names["worker"].shutdown()
    names["pool"].close()


def test_the_advice_after_a_failure_drops_what_depends_on_the_load() -> None:
    """Of the request that loads, and of the one that shares its slots."""
    driver = Driver("sync")
    driver.store("ab")
    driver.arrive("r", "ab")
    driver.arrive("shares", "abc")
    driver.begin()
    driver.load("r", range(10, 13))
    driver.scheduler.lookup("shares", 8)
    driver.alloc("shares", [10, 11, 20, 21])
    plan = driver.build()
    dropped: list[str] = []
    names = {"kvmove": kvmove, "outcome": driver.report(plan.jobs, failed=plan.jobs), "drop_output": dropped.append}
    exec(compile(code_blocks()[1], str(GUIDE), "exec"), names)
    assert dropped == ["r", "shares"]
