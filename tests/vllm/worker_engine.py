"""vLLM's real scheduler and the real worker's side of its connector, over kvmove's copies. No test; no GPU.

As `simulated_engine`, but what a place of a token holds are bytes in tensors, and stores and loads are those of
`KVMoveOffloadingSpec`, which run late, in any order that streams allow, and may fail. A request that reads other bytes
than it should computes nonsense: its next token is wrong, and so is what it writes.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from simulated_engine import BLOCK_TOKENS, VOCABULARY, Setup, SimulatedEngine
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import OffloadingConnectorMetadata
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.kv_offload.base import CanonicalKVCacheRef, CanonicalKVCaches, CanonicalKVCacheTensor
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput

from kvmove.integrations.vllm.caches import describe
from kvmove.integrations.vllm.connector_worker import KVMoveConnectorWorker
from kvmove.integrations.vllm.host_pool import make_pool
from kvmove.integrations.vllm.spec import KVMoveWorker
from kvmove.integrations.vllm.worker import Transfers
from kvmove.testing.protocol_queues import LateMark, LateQueues

NONSENSE = VOCABULARY + 1  # a token that no text has


@dataclass
class _Forward:
    """What a forward pass does, once its turn has come."""

    writes: list[tuple[str, int, list[int], int, int]] = field(default_factory=list)
    reads: list[tuple[str, int, list[int], int, int]] = field(default_factory=list)
    wrong: set[str] = field(default_factory=set)  # requests that read what they should not have


class WorkerEngine(SimulatedEngine):
    """One engine of one rank.

    Args:
        rng: chooses which copies run when.
    """

    def __init__(
        self, setup: Setup, connector: Mapping[str, str], extra: Mapping[str, Any], rng: random.Random
    ) -> None:
        ours = {"spec_name": "KVMoveOffloadingSpec", "spec_module_path": "kvmove.integrations.vllm"}
        super().__init__(setup, connector, {**ours, **extra})
        self.rng, self.queues = rng, LateQueues(rng)
        generator = np.random.default_rng(1)
        self._rows: list[list[np.ndarray]] = []  # for each group and layer, int64 (blocks, tokens, words)
        tensors, refs = [], []
        for _ in setup.windows:
            own = []
            for _ in range(setup.layers):
                words = generator.integers(1 << 60, size=(setup.gpu_blocks, setup.page_bytes // 8))
                own.append(words.reshape(setup.gpu_blocks, BLOCK_TOKENS, -1))
                tensor = torch.from_numpy(words.view(np.int8))
                tensors.append(CanonicalKVCacheTensor(tensor, setup.page_bytes))
            self._rows.append(own)
            first = len(tensors) - setup.layers
            refs.append([CanonicalKVCacheRef(first + i, setup.page_bytes) for i in range(setup.layers)])
        caches = CanonicalKVCaches(tensors, refs)
        side = self.scheduler.connector.connector_scheduler
        described = describe(caches, setup.blocks_per_chunk)
        pool = make_pool(described.layout, side.manager._num_chunks)
        pool.blocks.fill_(0x5A)
        self.transfers = Transfers(described, pool, path="reference", queues=self.queues)
        spec = SimpleNamespace(
            replicated_layout=False,
            config=SimpleNamespace(canonical_layout=False, parallel=SimpleNamespace(rank=0)),
            get_worker=lambda kv_caches: KVMoveWorker(self.transfers),
        )
        worker: Any = KVMoveConnectorWorker(
            spec,
            self.scheduler.vllm_config,
            self.scheduler.kv_cache_config,  # type: ignore[arg-type]
        )
        worker._init_worker(caches)
        self.worker: KVMoveConnectorWorker = worker
        self.published: dict[str, list[int]] = {}
        self.failures = 0
        self._marks: dict[int, tuple[LateMark, _Forward]] = {}  # of steps, by the identity of their result

    @property
    def is_busy(self) -> bool:
        return bool(self.scheduler.has_requests() or self._in_flight)

    def fail_next_launch(self, after: int) -> None:
        """Refuse a launch of the mover's: the next, or one `after` it."""
        self.queues.refuse(after)
        self.failures += 1

    def close(self) -> None:
        """End the worker, its copies done."""
        self.queues.refuse_none()
        self.queues.drain()
        self.worker.shutdown()

    def _run(self, output: SchedulerOutput, meta: OffloadingConnectorMetadata) -> ModelRunnerOutput:
        worker = self.worker
        worker.handle_preemptions(meta)
        self.queues.run(self.rng.randrange(3))
        if output.has_sync_kv_loads:
            worker.start_kv_transfers(meta)
        forward = self._forward(output)
        mark = self.queues.engine(lambda: self._do(forward))
        self.queues.run(self.rng.randrange(4))
        if not output.has_sync_kv_loads:
            worker.start_kv_transfers(meta)
        worker.prepare_store_kv(meta)
        self.queues.run(self.rng.randrange(6))
        _, received = worker.get_finished(output.finished_req_ids)
        names = list(output.num_scheduled_tokens)
        result = ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={n: i for i, n in enumerate(names)},
            sampled_token_ids=[self._sample(n) for n in names],
            kv_connector_output=KVConnectorOutput(
                finished_recving=received,
                failed_recving=worker.take_failed_requests(),
                invalid_block_ids=worker.take_invalid_blocks(),
                kv_connector_worker_meta=worker.build_connector_worker_meta(),
            ),
        )
        self._marks[id(result)] = mark, forward
        return result

    def _update(self, output: SchedulerOutput, result: ModelRunnerOutput) -> None:
        mark, forward = self._marks.pop(id(result))
        mark.synchronize()  # the step's output sync
        for i, name in enumerate(result.req_ids):
            if name in forward.wrong:
                result.sampled_token_ids[i] = [NONSENSE for _ in result.sampled_token_ids[i]]
        published = self.scheduler.update_from_output(output, result)
        for outputs in published.values():
            for out in outputs.outputs:
                self.published.setdefault(out.request_id, []).extend(out.new_token_ids)

    def _forward(self, output: SchedulerOutput) -> _Forward:
        starts = {r.req_id: r.num_computed_tokens for r in output.scheduled_new_reqs}
        cached = output.scheduled_cached_reqs
        starts |= dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        forward = _Forward()
        for name, start in starts.items():
            for group, table in enumerate(self.scheduler.kv_cache_manager.get_block_ids(name)):
                own = list(table)
                forward.writes.append((name, group, own, start, start + output.num_scheduled_tokens[name]))
                window = self.setup.windows[group]
                forward.reads.append((name, group, own, 0 if window is None else max(0, start - window + 1), start))
        return forward

    def _do(self, forward: _Forward) -> None:
        for write in forward.writes:
            self._put(*write, nonsense=False)
        # What one request got wrong, another that reads it beside it gets wrong too.
        while True:
            wrong = {read[0] for read in forward.reads if not self._holds(*read)} - forward.wrong
            if not wrong:
                return
            forward.wrong |= wrong
            for write in forward.writes:
                if write[0] in wrong:
                    self._put(*write, nonsense=True)

    def _words(self, name: str, group: int, layer: int, start: int, end: int) -> np.ndarray:
        """What each layer holds of tokens [`start`, `end`), int64 (tokens, 1)."""
        made = np.array(self.content(name, start, end), dtype=np.int64) ^ (group * 1000 + layer)
        return made[:, None]

    def _put(self, name: str, group: int, table: list[int], start: int, end: int, *, nonsense: bool) -> None:
        at = np.arange(start, end)
        blocks, places = np.array(table)[at // BLOCK_TOKENS], at % BLOCK_TOKENS
        for layer, rows in enumerate(self._rows[group]):
            rows[blocks, places] = -1 if nonsense else self._words(name, group, layer, start, end)

    def _holds(self, name: str, group: int, table: list[int], start: int, end: int) -> bool:
        at = np.arange(start, end)
        blocks, places = np.array(table, dtype=np.int64)[at // BLOCK_TOKENS], at % BLOCK_TOKENS
        return all(
            bool((rows[blocks, places] == self._words(name, group, layer, start, end)).all())
            for layer, rows in enumerate(self._rows[group])
        )
