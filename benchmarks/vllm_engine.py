"""One vLLM engine with one connector in a process of its own, for `benchmarks.vllm_e2e`.

vLLM keeps a connector per process, so engines that are to be measured in turn need a process each. The engine runs in
that process itself (no engine core of its own), so that what its worker did can be read: bytes and times of transfers,
and the bytes in the KV cache.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

# Shapes of well-known dense models; weights are random.
MODELS: Mapping[str, Mapping[str, Any]] = {
    "4b": {
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 2560, "intermediate_size": 9728,
        "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
        "vocab_size": 151936, "max_position_embeddings": 40960, "rms_norm_eps": 1e-6, "rope_theta": 1000000,
        "torch_dtype": "bfloat16", "tie_word_embeddings": True, "bos_token_id": 1, "eos_token_id": 2,
        "hidden_act": "silu",
    },
    "8b": {
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 4096, "intermediate_size": 12288,
        "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
        "vocab_size": 151936, "max_position_embeddings": 40960, "rms_norm_eps": 1e-6, "rope_theta": 1000000,
        "torch_dtype": "bfloat16", "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2,
        "hidden_act": "silu",
    },
}  # fmt: skip
BLOCK_TOKENS = 16
SYNC_BUDGET_BYTES = 4 << 30
OUR_MODULE = "kvmove.integrations.vllm"
# What `kv_transfer_config` has for each engine, without the size of host memory.
CONNECTORS: Mapping[str, Mapping[str, Any]] = {
    "theirs-async": {"kv_connector": "OffloadingConnector"},
    "theirs-sync": {
        "kv_connector": "OffloadingConnector",
        "kv_connector_extra_config": {"sync_load_budget_bytes": SYNC_BUDGET_BYTES},
    },
    "ours-async": {
        "kv_connector": "OffloadingConnector",
        "kv_connector_extra_config": {"spec_name": "KVMoveOffloadingSpec", "spec_module_path": OUR_MODULE},
    },
    "ours-worker": {
        "kv_connector": "OffloadingConnector",
        "kv_connector_extra_config": {
            "spec_name": "KVMoveOffloadingSpec",
            "spec_module_path": OUR_MODULE,
            "sync_load_budget_bytes": SYNC_BUDGET_BYTES,
        },
    },
    "ours-policy": {
        "kv_connector": "KVMoveConnector",
        "kv_connector_module_path": OUR_MODULE,
        "kv_connector_extra_config": {
            "spec_name": "KVMoveOffloadingSpec",
            "spec_module_path": OUR_MODULE,
            "policy": "budgeted",
            "sync_load_budget_bytes": SYNC_BUDGET_BYTES,
        },
    },
}


@dataclass(frozen=True)
class EngineSettings:
    """What an engine is built from. Sizes are GiB."""

    connector: str
    model: str = "4b"
    kv_gib: float = 12.0
    host_gib: float = 12.0
    cuda_graphs: bool = False
    attention: str = "FLASH_ATTN"
    max_batched_tokens: int = 8192

    def kv_transfer_config(self) -> dict[str, Any]:
        """For `--kv-transfer-config`."""
        chosen = CONNECTORS[self.connector]
        extra = {"cpu_bytes_to_use": int(self.host_gib * 2**30), **chosen.get("kv_connector_extra_config", {})}
        return {**chosen, "kv_role": "kv_both", "kv_connector_extra_config": extra}

    def arguments(self, model_path: str) -> dict[str, Any]:
        """For `vllm.LLM` or `EngineArgs`."""
        made: dict[str, Any] = {
            "model": model_path,
            "skip_tokenizer_init": True,
            "load_format": "dummy",
            "dtype": "bfloat16",
            "max_model_len": 36864,
            "max_num_batched_tokens": self.max_batched_tokens,
            "block_size": BLOCK_TOKENS,
            "gpu_memory_utilization": 0.15,  # several engines share the GPU; the KV cache's size is given apart
            "kv_cache_memory_bytes": int(self.kv_gib * 2**30),
            "attention_backend": self.attention,
            "kv_transfer_config": self.kv_transfer_config(),
            "disable_log_stats": True,
            "enforce_eager": not self.cuda_graphs,
        }
        if self.cuda_graphs:  # of decode steps; without torch.compile, which would take minutes
            made["compilation_config"] = {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"}
        return made


def write_model(name: str) -> str:
    """A folder with the model's configuration, for `load_format="dummy"`."""
    folder = Path(tempfile.gettempdir()) / f"kvmove-model-{name}"
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(dict(MODELS[name])), encoding="utf-8")
    return str(folder)


@dataclass
class Moved:
    """Transfers that ended: bytes and device seconds of each."""

    sync_loads: list[tuple[int, float]] = field(default_factory=list)
    async_loads: list[tuple[int, float]] = field(default_factory=list)
    stores: list[tuple[int, float]] = field(default_factory=list)

    @property
    def load_bytes(self) -> int:
        return sum(n for n, _ in self.sync_loads + self.async_loads)


class _Spy:
    """Sees what goes through the connector's worker of this process, and the tensors that it was given."""

    def __init__(self) -> None:
        from vllm.distributed.kv_transfer.kv_connector.v1.offloading.worker import OffloadingConnectorWorker

        self.caches: Any = None
        self.moved = Moved()
        self._sync: dict[int, bool] = {}
        make = OffloadingConnectorWorker._init_worker

        def init_worker(connector_worker: Any, kv_caches: Any) -> None:
            make(connector_worker, kv_caches)
            self.caches = kv_caches
            self._watch(connector_worker.worker)

        OffloadingConnectorWorker._init_worker = init_worker

    def _watch(self, worker: Any) -> None:
        submit_load, get_finished = worker.submit_load, worker.get_finished

        def load(job_id: int, src_spec: Any, dst_spec: Any, expedited: bool = False) -> bool:
            self._sync[job_id] = expedited
            return bool(submit_load(job_id, src_spec, dst_spec, expedited=expedited))

        def finished() -> Any:
            results = get_finished()
            for r in results:
                sync = self._sync.pop(r.job_id, None)
                own = self.moved
                kind = own.stores if sync is None else own.sync_loads if sync else own.async_loads
                kind.append((r.transfer_size or 0, r.transfer_time or 0.0))
            return results

        worker.submit_load, worker.get_finished = load, finished

    def take(self) -> Moved:
        """What ended since the last call."""
        moved, self.moved = self.moved, Moved()
        return moved

    def digest(self, blocks: Sequence[int]) -> str:
        """A hash of the bytes of these blocks in every layer."""
        import torch

        sums = []
        for t in self.caches.tensors:
            rows = t.tensor.view(torch.int8).view(-1, t.page_size_bytes)
            at = torch.tensor(list(blocks), device=rows.device)
            words = rows[at].view(torch.int32).to(torch.int64)
            weights = torch.arange(1, words.shape[1] + 1, device=rows.device) * 0x9E3779B1
            sums.append((words * weights).sum(dim=1))
        return hashlib.sha256(torch.stack(sums).cpu().numpy().tobytes()).hexdigest()


class Engine:
    """vLLM with a connector, and what is measured on it. Every method returns plain values."""

    cold_tokens = 6000  # of each prefill that makes an engine loaded

    def __init__(self, settings: EngineSettings) -> None:
        os.environ.update(
            VLLM_ENABLE_V1_MULTIPROCESSING="0",
            HF_HUB_OFFLINE="1",
            VLLM_USE_FLASHINFER_SAMPLER="0",
            VLLM_NO_USAGE_STATS="1",
        )
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
        from vllm import LLM, SamplingParams

        self._spy = _Spy()
        self._llm: Any = LLM(**settings.arguments(write_model(settings.model)))
        self._engine: Any = self._llm.llm_engine
        self._sampling = SamplingParams
        self._requests = 0
        self.block_bytes = sum(ref.page_size_bytes for refs in self._spy.caches.group_data_refs for ref in refs)
        self._settle()

    def facts(self) -> dict[str, Any]:
        """What there is to know before measuring."""
        blocks = self._spy.caches.tensors[0].tensor.shape[0]
        return {"block_bytes": self.block_bytes, "gpu_blocks": blocks, "layers": len(self._spy.caches.tensors)}

    def ttft(self, seed: int, prefix: int, tail: int, loaded: bool) -> dict[str, Any]:
        """Time to first token of a prompt whose tail is in host memory alone, and of the same with all in the GPU.

        Args:
            prefix, tail: tokens, in the GPU cache and in host memory; 40 more follow, of which less than a block is
                computed.
            loaded: let a cold prefill of 6,000 tokens arrive in every step.

        Raises:
            RuntimeError: the first was no host hit of the tail, or the second no hit of everything in the GPU.
        """
        rng = random.Random(seed)
        head, rest = _tokens(rng, prefix), _tokens(rng, tail)
        prompt = head + rest + _tokens(rng, 40)
        self._run([prompt], 1)
        self._settle()
        self._empty_gpu_cache()
        self._run([head + _tokens(rng, 16)], 1)
        self._settle()
        self._spy.take()
        host_s, host_steps, host_token = self._probe(prompt, loaded, rng)
        self._settle()
        moved = self._spy.take()
        gpu_s, gpu_steps, gpu_token = self._probe(prompt, loaded, rng)
        self._settle()
        least = (tail // BLOCK_TOKENS - 1) * self.block_bytes
        if moved.load_bytes < least:
            raise RuntimeError(f"the tail of {tail} tokens was no host hit: {moved.load_bytes} bytes were loaded")
        if again := self._spy.take().load_bytes:
            raise RuntimeError(f"the control was no hit in the GPU cache: {again} bytes were loaded")
        return {
            "host_s": host_s, "gpu_s": gpu_s, "extra_ms": (host_s - gpu_s) * 1e3, "host_steps": host_steps,
            "gpu_steps": gpu_steps, "same_token": host_token == gpu_token, "load_bytes": moved.load_bytes,
            "sync": bool(moved.sync_loads), "copy_ms": sum(s for _, s in moved.sync_loads + moved.async_loads) * 1e3,
        }  # fmt: skip

    def tokens(self, seed: int, length: int, new_tokens: int) -> dict[str, Any]:
        """Greedy tokens of one prompt alone: computed cold, from the GPU cache, from host memory; and the KV bytes."""
        rng = random.Random(seed)
        prompt = _tokens(rng, length)
        made: dict[str, Any] = {}
        for state in ("cold", "gpu", "host"):
            if state == "host":
                self._empty_gpu_cache()
            self._spy.take()
            tokens, margins, digest = self._generate(prompt, new_tokens)
            self._settle()
            moved = self._spy.take()
            made[state] = {
                "tokens": tokens, "margins": margins, "digest": digest, "load_bytes": moved.load_bytes,
                "sync": bool(moved.sync_loads), "async": bool(moved.async_loads),
            }  # fmt: skip
        made["expected_bytes"] = (length - 1) // BLOCK_TOKENS * self.block_bytes
        return made

    def rates(self, seed: int, length: int) -> dict[str, Any]:
        """Bytes and device seconds of the stores of a cold prompt, and of its load after the GPU cache was emptied."""
        prompt = _tokens(random.Random(seed), length)
        self._spy.take()
        self._run([prompt], 1)
        self._settle()
        stored = self._spy.take()
        self._empty_gpu_cache()
        self._run([prompt], 1)
        self._settle()
        loaded = self._spy.take()
        return {"stores": stored.stores, "loads": loaded.sync_loads + loaded.async_loads}

    def trace(self, seed: int, conversations: int, turns: int, turn_tokens: int, new_tokens: int) -> dict[str, Any]:
        """Conversations in rounds, each turn with all that came before in its prompt; seconds of each round."""
        rng = random.Random(seed)
        history: list[list[int]] = [[] for _ in range(conversations)]
        self._spy.take()
        rounds, output = [], []
        for _ in range(turns):
            for own in history:
                own.extend(_tokens(rng, turn_tokens))
            order = rng.sample(range(conversations), conversations)
            began = time.perf_counter()
            output.append(self._run([history[i] for i in order], new_tokens))
            rounds.append(time.perf_counter() - began)
        self._settle()
        moved = self._spy.take()
        return {
            "rounds_s": rounds, "tokens": output, "load_bytes": moved.load_bytes,
            "sync_bytes": sum(n for n, _ in moved.sync_loads), "store_bytes": sum(n for n, _ in moved.stores),
            "new_tokens": conversations * turns * new_tokens,
        }  # fmt: skip

    def _params(self, max_tokens: int, logprobs: int | None = None) -> Any:
        return self._sampling(
            max_tokens=max_tokens, temperature=0, ignore_eos=True, detokenize=False, logprobs=logprobs
        )

    def _run(self, prompts: Sequence[list[int]], max_tokens: int) -> list[list[int]]:
        given = [{"prompt_token_ids": p} for p in prompts]
        done = self._llm.generate(given, self._params(max_tokens), use_tqdm=False)
        return [list(r.outputs[0].token_ids) for r in done]

    def _empty_gpu_cache(self) -> None:
        if not self._engine.reset_prefix_cache():
            raise RuntimeError("the GPU cache could not be emptied: blocks are in use")

    def _settle(self) -> None:
        """Let what is in flight end, and its results reach the scheduler."""
        for _ in range(3):
            self._run([[7] * 33], 1)
            time.sleep(0.01)

    def _add(self, prompt: list[int], params: Any) -> str:
        """Add a request. Returns the name by which its outputs go; the engine's own begins with it."""
        self._requests += 1
        name = f"bench{self._requests}"
        self._engine.add_request(name, {"prompt_token_ids": prompt}, params)
        return name

    def _probe(self, prompt: list[int], loaded: bool, rng: random.Random) -> tuple[float, int, int]:
        """Seconds and steps until the prompt's first token, and the token."""
        params = self._params(1)
        for _ in range(2 if loaded else 0):
            self._add(_tokens(rng, self.cold_tokens), params)
            self._engine.step()
        cold = [_tokens(rng, self.cold_tokens) for _ in range(40 if loaded else 0)]  # drawn before the clock runs
        began = time.perf_counter()
        me, steps, token = self._add(prompt, params), 0, None
        taken = 0.0
        while token is None:
            if cold:
                self._add(cold.pop(), params)
            for out in self._engine.step():
                if out.request_id == me and out.outputs[0].token_ids:
                    taken, token = time.perf_counter() - began, out.outputs[0].token_ids[0]
            steps += 1
            if time.perf_counter() - began > 20:
                raise RuntimeError("no first token within 20 s")
        while self._engine.has_unfinished_requests():
            self._engine.step()
        return taken, steps, token

    def _generate(self, prompt: list[int], new_tokens: int) -> tuple[list[int], list[float], str]:
        """Greedy tokens with the distance to the second most likely, and the digest of the prompt's whole blocks."""
        me = self._add(prompt, self._params(new_tokens, logprobs=2))
        digest, tokens, margins = "", [], []
        while self._engine.has_unfinished_requests():
            for out in self._engine.step():
                if out.request_id != me:
                    continue
                tokens = list(out.outputs[0].token_ids)
                margins = [_margin(each) for each in out.outputs[0].logprobs or []]
                if tokens and not digest and not out.finished:
                    digest = self._spy.digest(self._blocks_of(me)[: (len(prompt) - 1) // BLOCK_TOKENS])
        return tokens, margins, digest

    def _blocks_of(self, name: str) -> list[int]:
        scheduler = self._engine.engine_core.engine_core.scheduler
        own = [r for r in scheduler.requests if r == name or r.startswith(f"{name}-")]
        (blocks,) = scheduler.kv_cache_manager.get_block_ids(own[0])
        return list(blocks)


def _tokens(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(10, 150000) for _ in range(count)]


def _margin(logprobs: Mapping[int, Any]) -> float:
    """How far the most likely token is from the next."""
    first, second = sorted((each.logprob for each in logprobs.values()), reverse=True)[:2]
    return float(first - second)


def serve(pipe: Connection, settings: EngineSettings) -> None:
    """Build the engine and do what comes: `(method, arguments)` in, `("ok", value)` or `("error", text)` out."""
    try:
        engine = Engine(settings)
        pipe.send(("ok", engine.facts()))
    except BaseException:
        pipe.send(("error", traceback.format_exc()))
        raise
    while True:
        message = pipe.recv()
        if message is None:
            break
        method, arguments = message
        try:
            pipe.send(("ok", getattr(engine, method)(**arguments)))
        except Exception:
            pipe.send(("error", traceback.format_exc()))
    os._exit(0)  # vLLM's own end can take many seconds
