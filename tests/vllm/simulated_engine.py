"""vLLM's real scheduler with everything behind it simulated: workers, copies that take steps, and what memory holds.

The model of memory: the content of a token's place in a block is the hash of the tokens up to it. Computing writes it,
stores and loads carry it along, as late as the protocol allows. Every place that a step reads must hold what it
should: so a load that came too late, went to the wrong place or was of the wrong chunk is found.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import torch
from vllm.config import (
    CacheConfig,
    DeviceConfig,
    KVTransferConfig,
    ModelConfig,
    ParallelConfig,
    SchedulerConfig,
    VllmConfig,
)
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import (
    OffloadingConnectorMetadata,
    OffloadingWorkerMetadata,
)
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import OffloadingConnectorStats
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    KVCacheTensor,
    MambaSpec,
    SlidingWindowSpec,
)
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

BLOCK_TOKENS = 16
VOCABULARY = 500
MODEL = str(Path(__file__).parent / "tiny_model")
OURS = {"kv_connector": "KVMoveConnector", "kv_connector_module_path": "kvmove.integrations.vllm"}
THEIRS = {"kv_connector": "OffloadingConnector"}


STATE = 1


@dataclass(frozen=True)
class Setup:
    """An engine to simulate."""

    name: str
    windows: tuple[int | None, ...] = (None,)  # of each group, in tokens; None: full attention; STATE: recurrent
    layers: int = 2  # of each group
    blocks_per_chunk: int = 1
    gpu_blocks: int = 40
    host_chunks: int = 64
    step_tokens: int = 128
    running: int = 8
    is_async: bool = False
    by_priority: bool = False
    ranks: int = 1

    @property
    def page_bytes(self) -> int:
        """Bytes of a block of one layer."""
        return 2 * BLOCK_TOKENS * 2 * 16 * 2

    @property
    def block_bytes(self) -> int:
        """Bytes of a block of one group."""
        return self.layers * self.page_bytes

    def spec(self, group: int) -> KVCacheSpec:
        """What vLLM is told about a group."""
        window = self.windows[group]
        shape: dict[str, Any] = {
            "block_size": BLOCK_TOKENS,
            "num_kv_heads": 2,
            "head_size": 16,
            "dtype": torch.bfloat16,
        }
        if window == STATE:
            words = self.page_bytes // 4
            return MambaSpec(
                block_size=BLOCK_TOKENS, shapes=((words,),), dtypes=(torch.float32,), mamba_cache_mode="align"
            )
        return FullAttentionSpec(**shape) if window is None else SlidingWindowSpec(**shape, sliding_window=window)


@cache
def _model_config() -> ModelConfig:
    return ModelConfig(model=MODEL, skip_tokenizer_init=True, dtype="bfloat16", max_model_len=1024)


def make_scheduler(setup: Setup, connector: Mapping[str, str], extra: Mapping[str, Any]) -> Scheduler:
    """vLLM's scheduler for this engine, with this connector."""
    cache_config = CacheConfig(
        block_size=BLOCK_TOKENS,
        enable_prefix_caching=True,
        mamba_cache_mode="align" if STATE in setup.windows else "none",
    )
    cache_config.num_gpu_blocks = setup.gpu_blocks
    groups = len(setup.windows)
    aligned_chunk_bytes = -(-groups * setup.block_bytes * setup.blocks_per_chunk // 4096) * 4096
    config = VllmConfig(
        model_config=_model_config(),
        cache_config=cache_config,
        scheduler_config=SchedulerConfig(
            max_num_seqs=setup.running,
            max_num_batched_tokens=setup.step_tokens,
            max_model_len=1024,
            is_encoder_decoder=False,
            async_scheduling=setup.is_async,
            policy="priority" if setup.by_priority else "fcfs",
        ),
        kv_transfer_config=KVTransferConfig(
            **connector,
            kv_role="kv_both",
            kv_connector_extra_config={
                "cpu_bytes_to_use": setup.host_chunks * aligned_chunk_bytes,
                "blocks_per_chunk": setup.blocks_per_chunk,
                **extra,
            },
        ),
        device_config=DeviceConfig("cpu"),
        parallel_config=ParallelConfig(tensor_parallel_size=setup.ranks),
    )
    names = [[f"layer{g}.{i}" for i in range(setup.layers)] for g in range(groups)]
    page, blocks = setup.page_bytes, setup.gpu_blocks
    size = setup.layers * blocks * page
    cache_groups = [KVCacheGroupSpec(names[g], setup.spec(g)) for g in range(groups)]
    tensors = [KVCacheTensor(size=size, layers=n, layer_stride=blocks * page, block_stride=page) for n in names]
    kv_cache_config = KVCacheConfig(num_blocks=blocks, kv_cache_tensors=tensors, kv_cache_groups=cache_groups)
    init_none_hash(sha256)
    make = AsyncScheduler if setup.is_async else Scheduler
    return make(
        vllm_config=config,
        kv_cache_config=kv_cache_config,
        log_stats=True,
        structured_output_manager=StructuredOutputManager(config),
        block_size=BLOCK_TOKENS,
    )


@dataclass
class _Job:
    is_load: bool
    is_sync: bool
    request: str
    gpu: list[tuple[int, int, int]]  # group, block id, index of the block in its request
    chunks: list[int]  # the host chunk of each of these blocks
    due: int  # the step at whose end it is done


@dataclass
class Step:
    """What one step of the scheduler did, as plain values that compare."""

    scheduled: dict[str, int]
    new: list[tuple[Any, ...]]
    cached: list[tuple[Any, ...]]
    preempted: set[str]
    finished: set[str]
    loads: dict[int, tuple[Any, ...]]
    stores: dict[int, tuple[Any, ...]]
    flushed: set[int]
    answers: list[tuple[str, int, tuple[int | None, bool]]]  # request, cached tokens, what the connector said
    statuses: dict[str, tuple[str, int]] = field(default_factory=dict)


class SimulatedEngine:
    """One engine: requests in, steps out.

    Args:
        setup: the engine.
        connector: which connector, as vLLM's configuration names it.
        extra: for `kv_connector_extra_config`.
        delays: for how many steps a job is under way, by its number, repeated.
        checks_memory: check what steps read.
    """

    def __init__(
        self,
        setup: Setup,
        connector: Mapping[str, str],
        extra: Mapping[str, Any],
        delays: tuple[int, ...] = (0, 1, 2),
        checks_memory: bool = True,
    ) -> None:
        self.setup, self.delays, self.checks_memory = setup, delays, checks_memory
        self.scheduler = make_scheduler(setup, connector, extra)
        self.requests: dict[str, Request] = {}
        self.answers: list[tuple[str, int, tuple[int | None, bool]]] = []
        self.stats = OffloadingConnectorStats()  # all that was reported to vLLM's metrics
        self.gpu: dict[int, list[Any]] = {}  # block -> its group, then the content of each place
        self.host: dict[tuple[int, int], list[Any]] = {}  # chunk, block in it -> the same
        self._numbers = count()
        self._tokens: dict[str, list[int]] = {}
        self._prefixes: dict[str, list[int]] = {}  # hashes of the tokens up to each place
        self._jobs: dict[int, _Job] = {}
        self._queued_stores: dict[int, _Job] = {}
        self._in_flight: deque[tuple[SchedulerOutput, ModelRunnerOutput]] = deque()
        self._done: dict[int, _Job] = {}  # since the last report
        self._now = 0
        self._watch_connector()

    def add(
        self, tokens: list[int], max_tokens: int = 4, priority: int = 0, params: dict[str, Any] | None = None
    ) -> str:
        """Add a request; its name."""
        name = f"r{next(self._numbers)}"
        request = Request(
            request_id=name,
            prompt_token_ids=tokens,
            sampling_params=SamplingParams(max_tokens=max_tokens, ignore_eos=True),
            pooling_params=None,
            priority=priority,
            arrival_time=0.0,
            block_hasher=get_request_block_hasher(BLOCK_TOKENS, sha256),
        )
        request.kv_transfer_params = params
        self.requests[name] = request
        self._prefixes[name], self._tokens[name] = [], list(tokens)
        self.scheduler.add_request(request)
        return name

    def abort(self, name: str) -> None:
        """Abort a request, as a client would."""
        self.scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)

    def reset(self, *, running: bool, connector: bool) -> bool:
        """Reset the prefix cache between two steps; whether it was."""
        manager, left = self.scheduler.kv_cache_manager, self.scheduler.requests.values()
        holds = [r for r in left if r.status != RequestStatus.RUNNING and any(manager.get_block_ids(r.request_id))]
        if running and holds:
            return False  # vLLM raises: with requests that load, or have loaded and wait, it does not support that
        while running and self._in_flight:
            self._update(*self._in_flight.popleft())
        return self.scheduler.reset_prefix_cache(running, connector)

    @property
    def is_busy(self) -> bool:
        """Whether there is a request left, or a copy to wait for."""
        return bool(self.scheduler.has_requests() or self._in_flight or self._jobs or self._queued_stores)

    def step(self) -> Step:
        """Schedule, run and (with async scheduling, one step later) take the results in."""
        self.answers.clear()
        output = self.scheduler.schedule()
        meta = output.kv_connector_metadata
        assert isinstance(meta, OffloadingConnectorMetadata)
        step = self._describe(output, meta)
        self._in_flight.append((output, self._run(output, meta)))
        overlaps = self.setup.is_async and output.total_num_scheduled_tokens > 0
        while len(self._in_flight) > overlaps:
            self._update(*self._in_flight.popleft())
        step.statuses = {n: (r.status.name, r.num_computed_tokens) for n, r in self.scheduler.requests.items()}
        return step

    @property
    def is_at_rest(self) -> bool:
        """Whether the connector remembers no request and no job any more."""
        connector = self.scheduler.connector
        assert connector is not None
        side = connector.connector_scheduler
        left = [
            side._jobs, side._req_status, side._chunks_being_loaded, side._current_batch_sync_loads,
            side._block_id_to_pending_jobs, side._current_batch_sync_load_bytes,
        ]  # fmt: skip
        if hasattr(side, "decisions"):
            left += [side._async_loads, side._async_bytes, side._live, side._ran, side.decisions._waits]
        return not any(left)

    def drain(self, most: int = 500) -> list[Step]:
        """Step until nothing is left to do."""
        steps = []
        while self.is_busy:
            assert len(steps) < most, f"still busy after {most} steps: {steps[-1]}"
            steps.append(self.step())
        return steps

    def tokens(self, name: str, count: int) -> list[int]:
        """A request's first tokens: its prompt, and what the model makes of it."""
        tokens, prefixes = self._tokens[name], self._prefixes[name]
        while len(prefixes) < count:
            if len(tokens) == len(prefixes):
                tokens.append(prefixes[-1] % VOCABULARY)
            prefixes.append(hash((prefixes[-1] if prefixes else 0, tokens[len(prefixes)])))
        while len(tokens) < count:
            tokens.append(prefixes[len(tokens) - 1] % VOCABULARY)
        return tokens[:count]

    def content(self, name: str, start: int, end: int) -> list[int]:
        """What belongs into the places of a request's tokens [`start`, `end`)."""
        self.tokens(name, end)
        return self._prefixes[name][start:end]

    def _watch_connector(self) -> None:
        connector = self.scheduler.connector
        assert connector is not None
        ask, report = connector.get_num_new_matched_tokens, connector.get_kv_connector_stats

        def watched(request: Request, num_computed_tokens: int) -> tuple[int | None, bool]:
            answer = ask(request, num_computed_tokens)
            self.answers.append((request.request_id, num_computed_tokens, answer))
            return answer

        def reported() -> Any:
            stats = report()
            if stats is not None:
                self.stats.aggregate(stats)
            return stats

        connector.get_num_new_matched_tokens, connector.get_kv_connector_stats = watched, reported

    def _update(self, output: SchedulerOutput, result: ModelRunnerOutput) -> None:
        self.scheduler.update_from_output(output, result)

    def _describe(self, output: SchedulerOutput, meta: OffloadingConnectorMetadata) -> Step:
        cached = output.scheduled_cached_reqs

        def job(entry: Any) -> tuple[Any, ...]:
            gpu, host = (entry.dst_spec, entry.src_spec) if hasattr(entry.dst_spec, "group_sizes") else (
                entry.src_spec, entry.dst_spec)  # fmt: skip
            return (
                entry.req_id, entry.sync, gpu.block_ids.tolist(), list(gpu.group_sizes), list(gpu.block_indices),
                host.block_ids.tolist(),
            )  # fmt: skip

        return Step(
            scheduled=dict(output.num_scheduled_tokens),
            new=[(r.req_id, r.num_computed_tokens, r.block_ids) for r in output.scheduled_new_reqs],
            cached=list(zip(cached.req_ids, cached.num_computed_tokens, cached.new_block_ids, strict=True)),
            preempted=set(output.preempted_req_ids or ()),
            finished=set(output.finished_req_ids or ()),
            loads={job_id: job(entry) for job_id, entry in meta.load_jobs.items()},
            stores={job_id: job(entry) for job_id, entry in meta.store_jobs.items()},
            flushed=set(meta.jobs_to_flush or ()),
            answers=list(self.answers),
        )

    # The worker's side of a step, in the order of vLLM's.

    def _run(self, output: SchedulerOutput, meta: OffloadingConnectorMetadata) -> ModelRunnerOutput:
        self._now += 1
        stores = {job_id: self._store(job_id, entry) for job_id, entry in meta.store_jobs.items()}
        flushed = meta.jobs_to_flush or set()
        self._jobs |= self._queued_stores
        self._queued_stores = {}
        for job_id in flushed & stores.keys():
            self._jobs[job_id] = stores.pop(job_id)
        for job_id in flushed & self._jobs.keys():
            self._finish(job_id)
        for job_id, entry in meta.load_jobs.items():
            self._jobs[job_id] = self._load(job_id, entry)
            if entry.sync:
                self._finish(job_id)
        self._compute(output)
        self._queued_stores = stores
        for job_id, job in list(self._jobs.items()):
            if job.due <= self._now:
                self._finish(job_id)
        received = {job.request for job in self._done.values() if job.is_load and not job.is_sync}
        completed = dict.fromkeys(self._done, self.setup.ranks)
        self._done = {}
        names = list(output.num_scheduled_tokens)
        return ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={n: i for i, n in enumerate(names)},
            sampled_token_ids=[self._sample(n) for n in names],
            kv_connector_output=KVConnectorOutput(
                finished_recving=received,
                kv_connector_worker_meta=OffloadingWorkerMetadata(completed_jobs=completed) if completed else None,
            ),
        )

    def _sample(self, name: str) -> list[int]:
        request = self.scheduler.requests[name]
        return [] if request.is_prefill_chunk else [self.tokens(name, request.num_computed_tokens + 1)[-1]]

    def _places(self, spec: Any) -> list[tuple[int, int, int]]:
        places, at = [], 0
        for group, (size, index) in enumerate(zip(spec.group_sizes, spec.block_indices, strict=True)):
            places += [(group, int(spec.block_ids[at + i]), index + i) for i in range(size)]
            at += size
        return places

    def _job(self, job_id: int, entry: Any, gpu: Any, host: Any, *, is_load: bool) -> _Job:
        chunk_blocks = self.setup.blocks_per_chunk
        places = self._places(gpu)
        chunks: list[int] = []
        ids = iter(host.block_ids.tolist())
        last: tuple[int, int] | None = None
        for group, _, index in places:
            key = (group, index // chunk_blocks)
            chunks.append(next(ids) if key != last else chunks[-1])
            last = key
        assert next(ids, None) is None, "more chunks than blocks fill"
        delay = self.delays[job_id % len(self.delays)]
        return _Job(is_load, entry.sync, entry.req_id, places, chunks, self._now + delay)

    def _load(self, job_id: int, entry: Any) -> _Job:
        return self._job(job_id, entry, entry.dst_spec, entry.src_spec, is_load=True)

    def _store(self, job_id: int, entry: Any) -> _Job:
        return self._job(job_id, entry, entry.src_spec, entry.dst_spec, is_load=False)

    def _finish(self, job_id: int) -> None:
        job = self._jobs.pop(job_id)
        for (_, block, index), chunk in zip(job.gpu, job.chunks, strict=True):
            place = (chunk, index % self.setup.blocks_per_chunk)
            if job.is_load:
                self.gpu[block] = list(self.host.get(place, _POISON))
            else:
                self.host[place] = list(self.gpu.get(block, _POISON))
        self._done[job_id] = job

    def _compute(self, output: SchedulerOutput) -> None:
        starts = {r.req_id: r.num_computed_tokens for r in output.scheduled_new_reqs}
        cached = output.scheduled_cached_reqs
        starts |= dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        tables = {n: self.scheduler.kv_cache_manager.get_block_ids(n) for n in output.num_scheduled_tokens}
        # All writes before all reads, as in each layer: a request may read a prefix that another computes beside it.
        # A state alone is read, changed and written.
        self._check_all(starts, tables, of_states=True)
        for name, start in starts.items():
            for group, table in enumerate(tables[name]):
                self._write(name, group, table, start, start + output.num_scheduled_tokens[name])
        self._check_all(starts, tables, of_states=False)

    def _check_all(self, starts: dict[str, int], tables: dict[str, Any], *, of_states: bool) -> None:
        for name, start in starts.items() if self.checks_memory else ():
            for group, table in enumerate(tables[name]):
                window = self.setup.windows[group]
                # A window ends with the token to compute, a state is that of the token before.
                read = 1 if window == STATE else start if window is None else window - 1
                if of_states == (window == STATE):
                    self._check(name, group, table, max(0, start - read), start)

    def _write(self, name: str, group: int, table: list[int], start: int, end: int) -> None:
        if self.setup.windows[group] == STATE:
            start = end - 1
            self.gpu.pop(table[start // BLOCK_TOKENS], None)
        for first, last in _places(start, end):
            block = table[first // BLOCK_TOKENS]
            assert block != 0, f"{name} computes token {first} into no block of group {group}"
            held = self.gpu.setdefault(block, list(_POISON))
            held[0] = group
            at = first % BLOCK_TOKENS
            held[1 + at : 1 + at + last - first] = self.content(name, first, last)

    def _check(self, name: str, group: int, table: list[int], start: int, end: int) -> None:
        for first, last in _places(start, end):
            block = table[first // BLOCK_TOKENS]
            held, at = self.gpu.get(block, _POISON), first % BLOCK_TOKENS
            assert held[0] == group, f"{name} reads group {group} in block {block}, which has group {held[0]}"
            assert held[1 + at : 1 + at + last - first] == self.content(name, first, last), (
                f"{name} reads tokens {first} to {last} of group {group} in block {block}, which has others"
            )


_POISON: list[Any] = [None] * (1 + BLOCK_TOKENS)


def _places(start: int, end: int) -> list[tuple[int, int]]:
    """Tokens [`start`, `end`), block by block."""
    firsts = [start, *range((start // BLOCK_TOKENS + 1) * BLOCK_TOKENS, end, BLOCK_TOKENS)] if start < end else []
    return list(zip(firsts, [*firsts[1:], end], strict=True)) if firsts else []
