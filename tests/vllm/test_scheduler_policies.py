"""vLLM's scheduler under any policy: what is read is right, budgets hold, nothing is left behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from histories import TEXTS, Event, delays, do, histories
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prometheus_client import Counter, Gauge, Histogram, generate_latest
from simulated_engine import OURS, STATE, THEIRS, Setup, SimulatedEngine, Step

from kvmove.integrations.vllm import metrics
from kvmove.records import Demotion, Lane
from kvmove.testing import policies

SETUPS = [
    Setup("full attention", gpu_blocks=30),
    Setup("chunks of 3 blocks, async scheduling", blocks_per_chunk=3, is_async=True),
    Setup("priorities, few chunks", gpu_blocks=26, host_chunks=30, by_priority=True),
    Setup("two sliding windows, async scheduling", windows=(None, 40, 72), gpu_blocks=96, is_async=True),
    Setup("only a sliding window", windows=(40,)),
    Setup("a recurrent state", windows=(None, STATE), gpu_blocks=96),
    Setup("two sliding windows, chunks of 2", windows=(None, 40, 40), gpu_blocks=96, blocks_per_chunk=2),
]
WILD = [
    "sync",
    "recompute",
    "defer if deferrals < 2\nsync",
    "sync at most budget_remaining\nrecompute",
    "async at most 48tok\ndefer",
    "sync at most 2KiB\nasync at most 3000B\nrecompute",
    "recompute if sync_loads > 0\nasync if inflight_loads > 1 and waiting > 2\nsync at most 64tok",
    "defer if free_slots < 20 or running > 3\nsync",
]
BLOCK_BYTES = SETUPS[0].block_bytes


def _policy_file(tmp: Path, text: str) -> str:
    path = tmp / "tried.kvpol"
    path.write_text(text)
    return str(path)


def _engine(tmp: Path, text: str, setup: Setup = SETUPS[0], **extra: Any) -> SimulatedEngine:
    delays = extra.pop("delays", (0, 1, 2))
    return SimulatedEngine(setup, OURS, {"policy": _policy_file(tmp, text), **extra}, delays)


def _store_then_forget(engine: SimulatedEngine, *prompts: list[int]) -> None:
    """Have prompts in the host's memory and not in the GPU's."""
    for prompt in prompts:
        engine.add(prompt, 1)
    engine.drain()
    assert engine.reset(running=False, connector=False)


def _run(engine: SimulatedEngine, prompt: list[int], **kwargs: Any) -> tuple[str, list[Step]]:
    name = engine.add(prompt, **kwargs)
    return name, engine.drain()


def _answers(steps: list[Step], name: str) -> list[tuple[int | None, bool]]:
    return [answer for step in steps for request, _, answer in step.answers if request == name]


@pytest.mark.parametrize("setup", SETUPS, ids=lambda setup: setup.name)
def test_no_policy_can_break_an_engine(setup: Setup, tmp_path: Path) -> None:
    """Steps read what they should, sync loads keep to the budget, every request ends with its own tokens."""

    @settings(max_examples=40, suppress_health_check=list(HealthCheck))
    @given(
        history=histories(),
        delays=delays,
        budget_blocks=st.sampled_from([0, 1, 4, 12, 1000]),
        text=st.one_of(st.sampled_from(WILD), policies()),
    )
    def run(history: list[Event], delays: tuple[int, ...], budget_blocks: int, text: str) -> None:
        budget_bytes = budget_blocks * setup.block_bytes
        engine = _engine(tmp_path, text, setup, sync_load_budget_bytes=budget_bytes, delays=delays)
        steps = [step for number, event in enumerate(history) for step in do(engine, event, number)]
        steps += engine.drain(2000)
        loaded = {True: 0, False: 0}
        for step in steps:
            sync_bytes = 0
            for request, sync, blocks, *_ in step.loads.values():
                num_bytes = len(blocks) * setup.block_bytes
                loaded[sync] += num_bytes
                sync_bytes += num_bytes if sync else 0
                assert not sync or step.scheduled[request] > 0
            assert sync_bytes <= budget_bytes
        for name, request in engine.requests.items():
            tokens = list(request.all_token_ids)
            assert tokens == engine.tokens(name, len(tokens))
            if request.status.name == "FINISHED_LENGTH_CAPPED":
                assert request.num_output_tokens == request.max_tokens
            else:
                assert request.status.name == "FINISHED_ABORTED"
        assert engine.is_at_rest
        # What policies saw is what was moved, group by group and to the byte.
        admitted = engine.scheduler.connector.connector_scheduler.decisions.statistics().admitted_bytes
        assert loaded == {True: admitted[Lane.EXPEDITED], False: admitted[Lane.BULK]}

    run()


def test_a_deferred_request_is_asked_about_again_until_its_deferrals_are_spent(tmp_path: Path) -> None:
    """`defer` is vLLM's "ask again", step after step, and at last the hit loads asynchronously."""
    engine = _engine(tmp_path, "defer", policy_max_deferrals=3)
    _store_then_forget(engine, TEXTS[0][:65])
    name, steps = _run(engine, TEXTS[0][:65])
    assert _answers(steps, name) == [(None, False)] * 3 + [(64, True)]
    statistics = engine.scheduler.connector.connector_scheduler.decisions.statistics()
    assert statistics.demotions[Demotion.DEFERRED_TOO_OFTEN] == 1


def test_a_hit_that_is_computed_again_loads_nothing(tmp_path: Path) -> None:
    """`recompute` tells vLLM that there is no hit, and what was computed is not stored a second time."""
    engine = _engine(tmp_path, "recompute")
    _store_then_forget(engine, TEXTS[0][:65])
    name, steps = _run(engine, TEXTS[0][:65])
    assert _answers(steps, name) == [(0, False)]
    assert not any(step.loads or step.stores for step in steps)
    assert steps[0].scheduled == {name: 65}


def test_a_hit_that_leaves_nothing_to_compute_is_not_sync(tmp_path: Path) -> None:
    """vLLM cannot schedule a request without a token, so such a hit is parked."""
    engine = _engine(tmp_path, "sync")
    _store_then_forget(engine, TEXTS[0][:64])
    name, steps = _run(engine, TEXTS[0][:64])
    assert _answers(steps, name) == [(64, True)]
    statistics = engine.scheduler.connector.connector_scheduler.decisions.statistics()
    assert statistics.demotions[Demotion.NOTHING_TO_COMPUTE] == 1


@pytest.mark.parametrize(("blocks_per_chunk", "loaded"), [(1, 80), (2, 64), (3, 48)])
def test_a_cut_ends_at_a_chunk_and_the_rest_is_computed_in_the_same_step(
    blocks_per_chunk: int, loaded: int, tmp_path: Path
) -> None:
    """`sync at most` loads the leading chunks that fit."""
    setup = Setup("cuts", blocks_per_chunk=blocks_per_chunk)
    engine = _engine(tmp_path, "sync at most budget_remaining", setup, sync_load_budget_bytes=5 * setup.block_bytes)
    _store_then_forget(engine, TEXTS[0][:101])
    name, steps = _run(engine, TEXTS[0][:101])
    assert _answers(steps, name) == [(loaded, False)]
    ((_, sync, blocks, *_),) = steps[0].loads.values()
    assert sync
    assert len(blocks) == loaded // 16
    assert steps[0].scheduled == {name: 101 - loaded}


def test_an_async_cut_is_parked_and_then_computes_the_rest(tmp_path: Path) -> None:
    """`async at most` loads the leading chunks in the background."""
    engine = _engine(tmp_path, "async at most 48tok", delays=(2,))
    _store_then_forget(engine, TEXTS[0][:101])
    name, steps = _run(engine, TEXTS[0][:101])
    assert _answers(steps, name) == [(48, True)]
    assert [step.scheduled.get(name) for step in steps][:4] == [None, None, None, 53]


def test_with_a_window_a_hit_is_loaded_whole_or_not_at_all(tmp_path: Path) -> None:
    """What an earlier end needs of a sliding window may not be in host memory."""
    engine = _engine(tmp_path, "sync at most 48tok\nrecompute", Setup("window", windows=(None, 40)))
    _store_then_forget(engine, TEXTS[0][:101])
    name, steps = _run(engine, TEXTS[0][:101])
    assert _answers(steps, name) == [(0, False)]


def test_a_hit_that_finds_no_slots_gives_its_budget_back(tmp_path: Path) -> None:
    """What vLLM does not admit is no load, and not in the step's sync set."""
    engine = _engine(tmp_path, "sync", Setup("tiny", gpu_blocks=14), sync_load_budget_bytes=1 << 20)
    _store_then_forget(engine, TEXTS[0][:97])
    engine.add(TEXTS[1][:120], 6)
    engine.step()
    engine.add(TEXTS[0][:97], 1)
    step = engine.step()
    side = engine.scheduler.connector.connector_scheduler
    assert step.answers[-1][2] == (96, False)
    assert not step.loads
    assert not side._current_batch_sync_loads
    statistics = side.decisions.statistics()
    assert statistics.refunds == 1
    assert statistics.budget_used_bytes == 0
    assert engine.stats.reduce()[metrics.NOT_ADMITTED] == 1
    engine.drain()
    assert engine.is_at_rest


def test_a_step_that_failed_reserves_nothing_for_the_next(tmp_path: Path) -> None:
    """Where schedule() raises, the next step begins with its whole budget."""
    engine = _engine(tmp_path, "sync", sync_load_budget_bytes=4 * BLOCK_BYTES)
    _store_then_forget(engine, TEXTS[0][:65])
    name = engine.add(TEXTS[0][:65], 1)
    manager = engine.scheduler.kv_cache_manager
    allocate = manager.allocate_slots

    def broken(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("planted")

    manager.allocate_slots = broken
    with pytest.raises(RuntimeError, match="planted"):
        engine.step()
    manager.allocate_slots = allocate
    steps = engine.drain()
    assert _answers(steps, name) == [(64, False)]
    assert engine.scheduler.connector.connector_scheduler.decisions.statistics().aborted_steps == 1
    assert engine.is_at_rest


def test_a_new_policy_is_used_from_the_next_step_on(tmp_path: Path) -> None:
    """A file that changes while a step is asked about changes nothing in that step; a broken one changes nothing."""
    engine = _engine(tmp_path, "sync", policy_watch=True)
    _store_then_forget(engine, TEXTS[0][:65], TEXTS[1][:65], TEXTS[2][:65])
    side = engine.scheduler.connector.connector_scheduler
    followed = side.decisions._file
    ask = side.decisions.ask

    def reloads_after_the_first(*args: Any, **kwargs: Any) -> Any:
        answer = ask(*args, **kwargs)
        _policy_file(tmp_path, "recompute")
        followed.reload()
        return answer

    side.decisions.ask = reloads_after_the_first
    names = [engine.add(TEXTS[i][:65], 1) for i in (0, 1)]
    first = engine.step()
    assert [answer for *_, answer in first.answers] == [(64, False), (64, False)]
    side.decisions.ask = ask
    _, steps = _run(engine, TEXTS[2][:65], max_tokens=1)
    assert _answers(steps, "r5") == [(0, False)]
    assert engine.reset(running=False, connector=False)
    _policy_file(tmp_path, "recompute if")
    followed.reload()
    name, steps = _run(engine, TEXTS[2][:65], max_tokens=1)
    assert _answers(steps, name) == [(0, False)]
    assert engine.stats.reduce()[metrics.POLICY_FILE_BROKEN] == 1
    assert engine.stats.reduce()[metrics.POLICY_RELOADS] == 1
    assert names == ["r3", "r4"]
    side.shutdown()


def test_metrics_say_what_was_decided_beside_vllms_own(tmp_path: Path) -> None:
    """Decisions by action and rule, bytes by action, and the policy, in the payload that vLLM publishes."""
    engine = _engine(tmp_path, "@small sync if tokens <= 64tok\n@large async")
    _store_then_forget(engine, TEXTS[0][:65], TEXTS[1][:129])
    for prompt in (TEXTS[0][:65], TEXTS[1][:129]):
        engine.add(prompt, 1)
    step = engine.step()
    assert len(step.loads) == 2
    engine.drain()
    connector = engine.scheduler.connector
    values = engine.stats.data["data"]
    assert values[metrics.DECISIONS] == {("sync", "small"): 1, ("async", "large"): 1}
    assert values[metrics.LOAD_BYTES] == {("sync",): 4 * BLOCK_BYTES, ("async",): 8 * BLOCK_BYTES}
    assert values[metrics.STEP_SYNC_BYTES] == {(): [4 * BLOCK_BYTES]}
    policy = connector.connector_scheduler.decisions.policy
    assert values[metrics.POLICY_INFO] == {(policy.name, policy.hash): 1}
    # The frontend's side takes it in: every name, type and label is declared.
    kinds = {Counter: Counter, Gauge: Gauge, Histogram: Histogram}
    published = connector.build_prom_metrics(engine.scheduler.vllm_config, kinds, ["engine"], {0: ["0"]})
    published.observe(engine.stats.data)
    lines = generate_latest().decode().splitlines()
    assert 'vllm:kvmove_decisions_total{action="sync",engine="0",rule="small"} 1.0' in lines
    assert 'vllm:kvmove_load_bytes_total{action="async",engine="0"} 32768.0' in lines


def test_a_request_may_bring_its_deadline(tmp_path: Path) -> None:
    """`deadline_left` is the request's arrival plus its `kvmove_deadline_ms`, less now; without one it is unknown."""
    engine = _engine(tmp_path, "sync if deadline_left < 0s\nrecompute if known(deadline_left)\nasync")
    _store_then_forget(engine, TEXTS[0][:65])
    for params, answer in (
        ({"kvmove_deadline_ms": 1}, (64, False)),  # requests here arrive at the epoch: it has passed
        ({"kvmove_deadline_ms": 1e14}, (0, False)),
        ({"kvmove_deadline_ms": "soon"}, (64, True)),
        (None, (64, True)),
    ):
        name, steps = _run(engine, TEXTS[0][:65], params=params, max_tokens=1)
        assert _answers(steps, name)[0] == answer
        assert engine.reset(running=False, connector=False)


def _serve_a_chunk_whose_head_was_not_needed(engine: SimulatedEngine) -> None:
    """Store a chunk of a window when its first block is gone; then load it for a hit that needs that block."""
    text = TEXTS[0]
    engine.add(text[:97], 1)
    engine.drain()
    engine.scheduler.reset_connector_cache()
    engine.add(TEXTS[1][:33], 1)  # so that no chunk lies where it lay, with the right bytes by chance
    engine.drain()
    engine.add(text[:112], 1)  # hits 96 tokens in the GPU's cache: of the window, blocks 3, 4 and 5
    engine.drain()
    engine.add(text[:40], 1)
    engine.drain()
    assert engine.reset(running=False, connector=False)
    engine.add(text[:80], 1)  # a hit of 64 tokens reads blocks 1, 2 and 3
    engine.drain()


def test_no_chunk_is_stored_in_part() -> None:
    """vLLM 0.33 serves a block here that was never stored: the connector stores such chunks whole or not at all."""
    setup = Setup("a window, chunks of 2", windows=(None, 40), blocks_per_chunk=2)
    with pytest.raises(AssertionError, match="reads group 1 in block"):
        _serve_a_chunk_whose_head_was_not_needed(SimulatedEngine(setup, THEIRS, {}))
    _serve_a_chunk_whose_head_was_not_needed(SimulatedEngine(setup, OURS, {}))
