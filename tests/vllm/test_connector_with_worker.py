"""vLLM's scheduler, kvmove's connector and kvmove's worker together: every published token is right, whatever fails."""

from __future__ import annotations

import random

import pytest
from histories import TEXTS, Abort, Add, Event, Reset, Steps, histories
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated_engine import OURS, THEIRS, Setup
from worker_engine import NONSENSE, WorkerEngine

from kvmove.errors import SyncLoadFailed

SETUPS = (
    Setup("dense"),
    Setup("dense, async", is_async=True),
    Setup("chunks of 4", blocks_per_chunk=4),
    Setup("window", windows=(None, 48), gpu_blocks=64),
    Setup("window, chunks, async", windows=(None, 48), gpu_blocks=64, blocks_per_chunk=2, is_async=True),
    Setup("little room", gpu_blocks=26, host_chunks=24),
)
# Room for all requests together: a request whose load failed keeps its blocks until it is at the head of the queue.
FAILING = (
    (Setup("dense", gpu_blocks=130, host_chunks=90), 40 << 10),
    (Setup("chunks of 4", gpu_blocks=130, host_chunks=30, blocks_per_chunk=4), 40 << 10),
    (Setup("dense, async", gpu_blocks=130, host_chunks=90, is_async=True), 0),
    (Setup("window", windows=(None, 48), gpu_blocks=150), 0),
)
RECOMPUTE = {**OURS, "kv_load_failure_policy": "recompute"}
EXTRA = {"policy": "budgeted", "sync_load_budget_bytes": 40 << 10}


def play(engine: WorkerEngine, history: list[Event], failures: dict[int, int]) -> None:
    """Play a history to its end; before the n-th step, refuse the launch that `failures` says."""
    rng, names, steps = random.Random(5), [], 0

    def step() -> None:
        nonlocal steps
        if steps in failures:
            engine.fail_next_launch(failures[steps])
        engine.step()
        steps += 1

    for event in history:
        if isinstance(event, Add):
            tokens = TEXTS[event.text][: event.shared_tokens]
            tokens = tokens + [rng.randrange(500) for _ in range(event.own_tokens)]
            names.append(engine.add(tokens, event.max_tokens, event.priority))
        elif isinstance(event, Steps):
            for _ in range(event.count):
                step()
        elif isinstance(event, Abort) and names:
            engine.abort(names[event.request % len(names)])
        elif isinstance(event, Reset):
            engine.reset(running=event.running, connector=event.connector)
    engine.queues.refuse_none()
    while engine.is_busy:
        step()
        assert steps < 2000
    engine.close()
    for name in names:
        prompt = engine.requests[name].num_prompt_tokens
        got = engine.published.get(name, [])
        assert NONSENSE not in got, f"{name} published nonsense"
        assert got == engine.tokens(name, prompt + len(got))[prompt:], f"{name} published other tokens"


@given(history=histories(), seed=st.integers(0, 999), setup=st.sampled_from(SETUPS), ours=st.booleans())
@settings(max_examples=10)
def test_every_token_is_right(history: list[Event], seed: int, setup: Setup, ours: bool) -> None:
    """With copies as late as streams allow, and either connector, no step reads a byte that it should not."""
    connector, extra = (OURS, EXTRA) if ours else (THEIRS, {"sync_load_budget_bytes": 40 << 10})
    play(WorkerEngine(setup, connector, extra, random.Random(seed)), history, {})


@given(
    history=histories(),
    seed=st.integers(0, 999),
    failures=st.dictionaries(st.integers(0, 60), st.integers(0, 2), min_size=1, max_size=12),
    case=st.sampled_from(FAILING),
)
@settings(max_examples=20)
def test_every_published_token_is_right_although_copies_fail(
    history: list[Event], seed: int, failures: dict[int, int], case: tuple[Setup, int]
) -> None:
    """Launches of loads and stores are refused: requests compute again, and nothing wrong is published or kept."""
    setup, budget_bytes = case
    often: list[Event] = []  # what is in the GPU cache alone is not loaded
    for event in history:
        often += [event, Reset(running=False, connector=False)] if isinstance(event, Steps) else [event]
    extra = {**EXTRA, "sync_load_budget_bytes": budget_bytes}
    play(WorkerEngine(setup, RECOMPUTE, extra, random.Random(seed)), often, failures)


def warm(setup: Setup, budget_bytes: int = 1 << 20) -> tuple[WorkerEngine, str]:
    """An engine with the first 64 tokens of a text in host memory alone, and the request that computed them."""
    extra = {**EXTRA, "sync_load_budget_bytes": budget_bytes}
    engine = WorkerEngine(setup, RECOMPUTE, extra, random.Random(3))
    first = engine.add(TEXTS[0][:64])
    while engine.is_busy:
        engine.step()
    assert engine.reset(running=False, connector=False)
    return engine, first


def finish(engine: WorkerEngine, *names: str) -> None:
    """Run to the end: every request has published what it should."""
    while engine.is_busy:
        engine.step()
    engine.close()
    for name in names:
        prompt = engine.requests[name].num_prompt_tokens
        assert engine.published[name] == engine.tokens(name, prompt + 4)[prompt:]


def test_a_failed_sync_load_is_computed_again() -> None:
    """A hit whose load fails inside its step: the request's tokens are right, and none came from the missing blocks."""
    engine, first = warm(Setup("dense"))
    second = engine.add(TEXTS[0][:64] + [7] * 5)
    engine.fail_next_launch(0)
    step = engine.step()
    assert [load[1] for load in step.loads.values()] == [True]
    finish(engine, first, second)


def test_a_failed_sync_load_ends_an_engine_that_schedules_ahead() -> None:
    """vLLM would publish the next step's token, computed on the missing blocks; so the error is raised."""
    engine, _ = warm(Setup("dense", is_async=True))
    engine.add(TEXTS[0][:64] + [7] * 5)
    engine.fail_next_launch(0)
    with pytest.raises(SyncLoadFailed, match="run already"):
        engine.step()
    engine.close()


def test_a_failed_async_load_is_not_tried_for_ever() -> None:
    """vLLM asks about the request again; it is told that there is nothing, and its prompt is computed."""
    engine, first = warm(Setup("dense"), budget_bytes=0)
    second = engine.add(TEXTS[0][:64] + [7] * 5)
    engine.fail_next_launch(0)
    step = engine.step()
    assert [load[1] for load in step.loads.values()] == [False]
    steps = []
    while second in engine.scheduler.requests:
        steps.append(engine.step())
    assert not any(step.loads for step in steps)
    third = engine.add(TEXTS[0][:64] + [8] * 5)
    finish(engine, first, second, third)


def test_the_keys_of_a_failed_store_are_forgotten() -> None:
    """A prompt whose store failed is no hit: nothing is loaded, and it is stored when it is computed again."""
    engine = WorkerEngine(Setup("dense"), RECOMPUTE, {**EXTRA, "sync_load_budget_bytes": 1 << 20}, random.Random(3))
    names = []
    for failing in (True, False):
        names.append(engine.add(TEXTS[0][:64]))
        if failing:
            engine.fail_next_launch(0)
        steps = []
        while engine.is_busy:
            steps.append(engine.step())
        assert not any(step.loads for step in steps)
        assert any(step.stores for step in steps)
        assert engine.reset(running=False, connector=False)
    assert engine.scheduler.connector.connector_scheduler.manager._num_write_pending_chunks == 0
    names.append(engine.add(TEXTS[0][:64]))
    step = engine.step()
    assert len(step.loads) == 1
    finish(engine, *names)
