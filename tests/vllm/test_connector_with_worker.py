"""vLLM's scheduler, kvmove's connector and kvmove's worker together: every published token is right, whatever fails."""

from __future__ import annotations

import random

import pytest
from histories import Abort, Add, Event, Reset, Steps, histories
from histories import _TEXTS as TEXTS  # noqa: PLC2701
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated_engine import OURS, THEIRS, Setup
from worker_engine import NONSENSE, WorkerEngine

SETUPS = (
    Setup("dense"),
    Setup("dense, async", is_async=True),
    Setup("chunks of 4", blocks_per_chunk=4),
    Setup("window", windows=(None, 48), gpu_blocks=64),
    Setup("window, chunks, async", windows=(None, 48), gpu_blocks=64, blocks_per_chunk=2, is_async=True),
    Setup("little room", gpu_blocks=26, host_chunks=24),
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
@settings(max_examples=60)
def test_every_token_is_right(history: list[Event], seed: int, setup: Setup, ours: bool) -> None:
    """With copies as late as streams allow, and either connector, no step reads a byte that it should not."""
    connector, extra = (OURS, EXTRA) if ours else (THEIRS, {"sync_load_budget_bytes": 40 << 10})
    play(WorkerEngine(setup, connector, extra, random.Random(seed)), history, {})


@given(
    history=histories(),
    seed=st.integers(0, 999),
    failures=st.dictionaries(st.integers(0, 60), st.integers(0, 2), max_size=12),
    setup=st.sampled_from(SETUPS[:1] + SETUPS[2:3] + SETUPS[5:]),
)
@settings(max_examples=60)
def test_every_published_token_is_right_although_copies_fail(
    history: list[Event], seed: int, failures: dict[int, int], setup: Setup
) -> None:
    """Launches of loads and stores are refused: requests compute again, and nothing wrong is published or kept."""
    play(WorkerEngine(setup, RECOMPUTE, EXTRA, random.Random(seed)), history, failures)


@pytest.mark.parametrize("is_async", [False, True])
def test_a_failed_sync_load_is_computed_again(is_async: bool) -> None:
    """A hit whose load fails inside its step: the request's tokens are right, and none came from the missing blocks."""
    engine = WorkerEngine(Setup("dense", is_async=is_async), RECOMPUTE, EXTRA, random.Random(3))
    first = engine.add(TEXTS[0][:64])
    for _ in range(12):
        engine.step()
    assert engine.reset(running=False, connector=False)
    second = engine.add(TEXTS[0][:64] + [7] * 5)
    engine.fail_next_launch(0)
    while engine.is_busy:
        engine.step()
    engine.close()
    for name in (first, second):
        prompt = engine.requests[name].num_prompt_tokens
        assert engine.published[name] == engine.tokens(name, prompt + 4)[prompt:]
