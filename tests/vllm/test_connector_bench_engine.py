"""`benchmarks.vllm_engine` over vLLM's real scheduler and kvmove's real worker, without a GPU.

A stand-in takes the place of `vllm.LLM`; the requests, hits, loads and bytes in the cache are those of `worker_engine`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from simulated_engine import OURS, Setup
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.worker import OffloadingConnectorWorker
from worker_engine import WorkerEngine

from benchmarks.vllm_engine import BLOCK_TOKENS, Engine, _Spy


class StandIn:
    """As much of `vllm.LLM` and its engine as the benchmark uses."""

    def __init__(self, engine: WorkerEngine) -> None:
        self._inner = engine
        self._names: dict[str, str] = {}  # as they were given, by the scheduler's
        self._told: dict[str, int] = {}  # how many tokens of each were told
        self.llm_engine = self
        self.engine_core = SimpleNamespace(engine_core=self)

    @property
    def scheduler(self) -> Any:
        own = {f"{given}-ab12": name for name, given in self._names.items() if name in self._inner.scheduler.requests}
        manager = self._inner.scheduler.kv_cache_manager
        blocks = SimpleNamespace(get_block_ids=lambda key: manager.get_block_ids(own[key]))
        return SimpleNamespace(requests=own, kv_cache_manager=blocks)

    def generate(self, prompts: list[dict[str, Any]], params: Any, use_tqdm: bool) -> list[Any]:
        names = [self._inner.add(p["prompt_token_ids"], params.max_tokens) for p in prompts]
        while self._inner.is_busy:
            self._inner.step()
        return [SimpleNamespace(outputs=[SimpleNamespace(token_ids=self._inner.published[n])]) for n in names]

    def add_request(self, name: str, prompt: dict[str, Any], params: Any) -> str:
        self._names[self._inner.add(prompt["prompt_token_ids"], params.max_tokens)] = name
        return f"{name}-ab12"

    def step(self) -> list[Any]:
        self._inner.step()
        made = []
        for name, given in self._names.items():
            tokens = self._inner.published.get(name, [])
            if len(tokens) > self._told.get(name, 0):
                self._told[name] = len(tokens)
                near = [{t: SimpleNamespace(logprob=-0.5), -1: SimpleNamespace(logprob=-0.75)} for t in tokens]
                output = SimpleNamespace(token_ids=tokens, logprobs=near)
                finished = name not in self._inner.scheduler.requests
                made.append(SimpleNamespace(request_id=given, outputs=[output], finished=finished))
        return made

    def has_unfinished_requests(self) -> bool:
        return self._inner.is_busy

    def reset_prefix_cache(self) -> bool:
        return self._inner.reset(running=False, connector=False)


@pytest.fixture(params=[1 << 30, 0], ids=["sync", "async"])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    # What the spy puts in its place is taken out again.
    monkeypatch.setattr(OffloadingConnectorWorker, "_init_worker", OffloadingConnectorWorker._init_worker)
    made: Any = Engine.__new__(Engine)
    made._spy = _Spy()
    setup = Setup("bench", gpu_blocks=160, host_chunks=200)
    inner = WorkerEngine(setup, OURS, {"policy": "budgeted", "sync_load_budget_bytes": request.param}, random.Random(1))
    made._llm = made._engine = StandIn(inner)
    made._sampling = SimpleNamespace
    made._requests, made.block_bytes, made.cold_tokens = 0, setup.block_bytes, 100
    made.is_sync = request.param > 0
    yield made
    inner.close()


@pytest.mark.parametrize("loaded", [False, True])
def test_time_to_first_token_is_of_a_tail_in_host_memory_alone(engine: Any, loaded: bool) -> None:
    """Exactly the tail was loaded, in its lane; the control loaded nothing, or this would have raised."""
    result = engine.ttft(seed=1, prefix=64, tail=96, loaded=loaded)
    assert result["load_bytes"] == (64 + 96 + 40 - 1) // BLOCK_TOKENS * engine.block_bytes - 4 * engine.block_bytes
    assert result["sync"] is engine.is_sync
    assert result["same_token"] is True
    assert result["host_s"] > 0
    assert result["gpu_steps"] <= result["host_steps"]
    assert (result["host_steps"] == result["gpu_steps"]) is engine.is_sync


def test_a_tail_that_is_no_host_hit_is_no_result(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an empty GPU cache nothing is loaded, and that is said."""
    monkeypatch.setattr(engine, "_empty_gpu_cache", lambda: None)
    with pytest.raises(RuntimeError, match="no host hit: 0 bytes"):
        engine.ttft(seed=1, prefix=64, tail=96, loaded=False)


def test_tokens_and_bytes_are_the_same_in_every_state(engine: Any) -> None:
    """Cold, from the GPU cache and from host memory; the bytes in the cache too, and all whole blocks were loaded."""
    result = engine.tokens(seed=2, length=150, new_tokens=4)
    assert result["cold"]["tokens"] == result["gpu"]["tokens"] == result["host"]["tokens"]
    assert len(result["cold"]["tokens"]) == 4
    assert result["cold"]["margins"] == [0.25] * 4
    assert len({result[state]["digest"] for state in ("cold", "gpu", "host")}) == 1
    assert len(result["cold"]["digest"]) == 64
    assert result["cold"]["load_bytes"] == result["gpu"]["load_bytes"] == 0
    assert result["host"]["load_bytes"] >= result["expected_bytes"] == 9 * engine.block_bytes
    assert (result["host"]["sync"], result["host"]["async"]) == (engine.is_sync, not engine.is_sync)


def test_rates_are_of_what_was_stored_and_loaded(engine: Any) -> None:
    """All whole blocks of the prompt, each once."""
    result = engine.rates(seed=3, length=320)
    least = 19 * engine.block_bytes
    assert sum(n for n, _ in result["stores"]) >= least
    assert sum(n for n, _ in result["loads"]) >= least


def test_a_trace_of_conversations_loads_what_the_gpu_has_lost(engine: Any) -> None:
    """The same number of outputs every round, and loads once the cache is too small for all."""
    result = engine.trace(seed=4, conversations=6, turns=4, turn_tokens=160, new_tokens=3)
    assert [len(tokens) for tokens in result["tokens"]] == [6] * 4
    assert all(len(t) == 3 for tokens in result["tokens"] for t in tokens)
    assert len(result["rounds_s"]) == 4
    assert result["new_tokens"] == 72
    assert result["load_bytes"] > 0
