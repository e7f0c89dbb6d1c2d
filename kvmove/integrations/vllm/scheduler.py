"""vLLM's offloading scheduler, with a policy where it compares with one number.

Everything else of it stays: which blocks hit, what is stored, what is fenced. Two hooks of vLLM 0.33 carry the
decision. `get_num_new_matched_tokens` answers the core scheduler: how many tokens, None for "ask again", and whether
they come between steps. `_current_batch_sync_loads` says the same to the rest of the connector (how destinations are
found, which lane, how completion is reported), and must agree with the answer.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from math import lcm
from typing import Any

from vllm.config import VllmConfig
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import OffloadingWorkerMetadata
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.config import _group_kv_bytes_per_block
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import OffloadingConnectorStats
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.scheduler import (
    GroupOffloadConfig,
    RequestOffloadState,
    SchedulerOffloadConfig,
)
from vllm.v1.core.kv_cache_manager import KVCacheBlocks
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.kv_cache_interface import ChunkedLocalAttentionSpec, KVCacheConfig, MambaSpec, SlidingWindowSpec
from vllm.v1.kv_offload.base import OffloadingSpec
from vllm.v1.outputs import KVConnectorOutput
from vllm.v1.request import Request

from kvmove.errors import Refused
from kvmove.integrations.vllm import metrics
from kvmove.integrations.vllm.failures import FailureAwareScheduler
from kvmove.integrations.vllm.hit_sizes import Group, HitSizes
from kvmove.integrations.vllm.options import Options
from kvmove.integrations.vllm.step_decisions import Engine, StepDecisions
from kvmove.kvpol import Policy
from kvmove.schema import MAX_TIME

DEADLINE_KEY = "kvmove_deadline_ms"  # in a request's kv_transfer_params: milliseconds after its arrival


@dataclass(frozen=True, slots=True)
class _AsyncLoad:
    num_bytes: int
    since_ns: int


class KVMoveScheduler(FailureAwareScheduler):
    """The scheduler's side of `KVMoveConnector`.

    Args:
        spec: where chunks are kept; its manager is used as it is.
        options: the policy, its params, the budget.
        free_slots: how many blocks of the GPU cache are free.

    Raises:
        PolicyError: the policy cannot be used.
        Refused: an option cannot be used, or the engine is of a kind that is not supported.
    """

    def __init__(
        self,
        spec: OffloadingSpec,
        vllm_config: VllmConfig,
        kv_cache_config: KVCacheConfig,
        options: Options,
        free_slots: Callable[[], int],
    ) -> None:
        if kv_cache_config.hisparse_host_num_blocks is not None:
            raise Refused("KVMoveConnector does not support HiSparse, which loads after its step; use vLLM's connector")
        super().__init__(spec, vllm_config, kv_cache_config)
        self._free_slots = free_slots
        self._decisions = StepDecisions(options, hit_sizes(self.config, kv_cache_config))
        self._async_loads: dict[int, _AsyncLoad] = {}  # by job
        self._async_bytes = 0
        self._answered_bytes = 0  # of the latest answer
        self._live: set[str] = set()  # requests that have not finished
        self._ran: set[str] = set()  # requests that ran in the latest step and have not finished since
        self._last_step: tuple[int, int] | None = None  # its tokens, and when it was built; None: the engine idled
        self._reported_policy: Policy | None = None

    @property
    def decisions(self) -> StepDecisions:
        """The policy's side, for its statistics and status."""
        return self._decisions

    def on_new_request(self, request: Request) -> None:
        self._live.add(request.request_id)
        super().on_new_request(request)

    def get_num_new_matched_tokens(
        self, request: Request, num_computed_tokens: int, max_num_new_tokens: int | None = None
    ) -> tuple[int | None, bool]:
        request_id = request.request_id
        if self._decisions.was_asked(request_id) or (self._step_region is None and self._decisions.was_asked()):
            # No step asks twice about a request, or outlives vLLM's region: schedule() raised in the one before.
            self._current_batch_sync_loads.clear()
            self._current_batch_sync_load_bytes = 0
            self._decisions.abort_step()
        self._give_up_last()
        hit_tokens, _ = super().get_num_new_matched_tokens(request, num_computed_tokens, max_num_new_tokens)
        if not hit_tokens:
            return hit_tokens, False
        answer = self._decisions.ask(
            request_id,
            cached_tokens=num_computed_tokens,
            hit_tokens=hit_tokens,
            prompt_tokens=request.num_tokens,  # with what it generated before it was preempted
            priority=request.priority,
            deadline_left_ns=_deadline_left_ns(request),
            engine=self._engine,
        )
        if answer.tokens != hit_tokens:
            status = self._req_status[request_id]
            status.update_num_hit_chunks(num_computed_tokens + (answer.tokens or 0))
            status.partial_tail_boundary = None
        self._answered_bytes = answer.num_bytes
        if answer.is_sync:
            self._current_batch_sync_loads.add(request_id)
            self._current_batch_sync_load_bytes += answer.num_bytes
        return answer.tokens, bool(answer.tokens) and not answer.is_sync

    def _reserve_sync_load(
        self, req_status: RequestOffloadState, num_computed_tokens: int, num_hit_tokens: int | None
    ) -> bool:
        # The caller reserves: only its answer can carry fewer tokens, or none.
        self._current_batch_sync_loads.discard(req_status.req.request_id)
        return False

    def _reachable_store_block_mask(self, group_config: GroupOffloadConfig, *args: Any, **kwargs: Any) -> Any:
        # vLLM 0.33 stores a chunk with a window's blocks missing if no hit that ends where this request ends can read
        # them, and then serves it to a hit that ends elsewhere and does. A chunk is stored whole or not at all.
        mask = super()._reachable_store_block_mask(group_config, *args, **kwargs)
        if mask is None:
            return None
        size = self.config.blocks_per_chunk
        return [any(mask[i - i % size : i - i % size + size]) for i in range(len(mask))]

    def update_state_after_alloc(self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int) -> None:
        is_sync = request.request_id in self._current_batch_sync_loads
        super().update_state_after_alloc(request, blocks, num_external_tokens)
        self._decisions.admitted(request.request_id, loads=num_external_tokens > 0)
        if num_external_tokens == 0:
            self._forget_sync(request.request_id)
        elif not is_sync:
            job = self._job_counter - 1
            self._async_loads[job] = _AsyncLoad(self._answered_bytes, time.monotonic_ns())
            self._async_bytes += self._answered_bytes

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> KVConnectorMetadata:
        self._give_up_last()
        plan = self._decisions.end_step()
        if plan is not None:
            metrics.record_plan(self._connector_stats, plan, self._decisions.policy)
        meta = super().build_connector_meta(scheduler_output)
        self._observe_step(scheduler_output)
        return meta

    def request_finished(self, request: Request) -> tuple[bool, dict[str, Any] | None]:
        self._decisions.forget(request.request_id)
        self._live.discard(request.request_id)
        self._ran.discard(request.request_id)
        if not self._live:
            self._last_step = None  # whatever time passes now, the engine does not compute
        return super().request_finished(request)

    def get_stats(self) -> OffloadingConnectorStats | None:
        policy, before = self._decisions.policy, self._reported_policy
        if policy is not before:
            metrics.record_policy(self._connector_stats, policy, before)
            self._reported_policy = policy
        broken = self._decisions.file_is_broken
        if broken is not None:
            self._connector_stats.set_gauge(metrics.POLICY_FILE_BROKEN, int(broken))
        return super().get_stats()

    def shutdown(self) -> None:
        self._decisions.close()
        super().shutdown()

    def _update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        super()._update_connector_output(connector_output)
        meta = connector_output.kv_connector_worker_meta
        if not isinstance(meta, OffloadingWorkerMetadata):
            return
        copied = meta.transfer_stats.load
        if not copied.is_empty():
            self._decisions.estimates.copied(int(copied.bytes), int(copied.time * 1e9))
        for job in meta.completed_jobs:
            if job in self._async_loads and job not in self._jobs:
                load = self._async_loads.pop(job)
                self._async_bytes -= load.num_bytes
                self._decisions.estimates.parked(load.num_bytes, time.monotonic_ns() - load.since_ns)

    def _reset_cache(self) -> None:
        super()._reset_cache()
        self._async_loads.clear()
        self._async_bytes = 0

    def _give_up_last(self) -> None:
        request_id = self._decisions.give_up()
        if request_id is not None:
            self._connector_stats.increase_counter(metrics.NOT_ADMITTED)
            self._forget_sync(request_id)

    def _forget_sync(self, request_id: str) -> None:
        if request_id in self._current_batch_sync_loads:
            self._current_batch_sync_loads.discard(request_id)
            self._current_batch_sync_load_bytes -= self._answered_bytes

    def _engine(self) -> Engine:
        return Engine(
            inflight_bytes=self._async_bytes,
            inflight_loads=len(self._async_loads),
            running=len(self._ran),
            waiting=len(self._live) - len(self._ran),
            free_slots=self._free_slots(),
        )

    def _observe_step(self, scheduler_output: SchedulerOutput) -> None:
        now_ns = time.monotonic_ns()
        if self._last_step is not None:
            tokens, since_ns = self._last_step
            self._decisions.estimates.stepped(tokens, now_ns - since_ns)
        self._last_step = (scheduler_output.total_num_scheduled_tokens, now_ns)
        self._ran = self._live & scheduler_output.num_scheduled_tokens.keys()


def hit_sizes(config: SchedulerOffloadConfig, kv_cache_config: KVCacheConfig) -> HitSizes:
    """What hits weigh in an engine with these groups."""
    groups = []
    for group in config.kv_group_configs:
        spec = group.kv_cache_spec
        window_tokens = attention_chunk_tokens = None
        if isinstance(spec, SlidingWindowSpec):
            window_tokens = spec.sliding_window - 1 + spec.extra_retained_tokens
        elif isinstance(spec, ChunkedLocalAttentionSpec):
            attention_chunk_tokens = spec.attention_chunk_size
        elif isinstance(spec, MambaSpec):
            window_tokens = 1
        block_bytes = _group_kv_bytes_per_block(kv_cache_config.kv_cache_groups[group.group_idx])
        groups.append(Group(group.tokens_per_block, block_bytes, window_tokens, attention_chunk_tokens))
    return HitSizes(
        groups=tuple(groups),
        chunk_tokens=lcm(*(group.tokens_per_chunk for group in config.kv_group_configs)),
        cuttable=all(group.sliding_window_size_in_chunks is None for group in config.kv_group_configs),
    )


def _deadline_left_ns(request: Request) -> int | None:
    """Nanoseconds until the deadline that the request brought along; None where it has none."""
    deadline_ms = (request.kv_transfer_params or {}).get(DEADLINE_KEY)
    if not isinstance(deadline_ms, int | float):
        return None
    left_ns = int((request.arrival_time + deadline_ms / 1000 - time.time()) * 1e9)
    return max(-MAX_TIME, min(MAX_TIME, left_ns))
