"""kvmove's worker and vLLM's, given the same transfers, leave the same bytes in the KV cache. Needs vLLM, no GPU.

vLLM's side is its own `SingleDirectionOffloadingHandler`, from how it lays out host chunks to the addresses and sizes
of every copy; only the copies themselves, which need a GPU, are made by `memmove`.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from canonical_caches import CachePlan, Transfer, cache_plans, histories, memory
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("vllm", reason="vLLM is not installed here; run `make test-vllm`")

from vllm.v1.kv_offload import base
from vllm.v1.kv_offload.config import (
    OffloadingCacheConfig,
    OffloadingConfig,
    OffloadingGroupConfig,
    OffloadingModelConfig,
    OffloadingParallelConfig,
)
from vllm.v1.kv_offload.cpu import gpu_worker
from vllm.v1.kv_offload.cpu.common import CPULoadStoreSpec
from vllm.v1.kv_offload.factory import OffloadingSpecFactory

from kvmove.integrations.vllm import KVMoveOffloadingSpec
from kvmove.integrations.vllm.spec import KVMoveWorker


class _Nothing:
    """A stream or an event where copies run at once."""

    def wait_stream(self, other: object) -> None: ...

    def wait_event(self, event: object) -> None: ...

    def record(self, stream: object) -> None: ...

    def query(self) -> bool:
        return True

    def elapsed_time(self, other: object) -> float:
        return 1.0


@pytest.fixture(scope="module", autouse=True)
def platform_without_streams() -> Iterator[None]:
    """Let vLLM's handler run on the CPU: streams that do nothing."""
    patch = pytest.MonkeyPatch()
    platform = SimpleNamespace(
        current_stream=_Nothing, stream=lambda s: contextlib.nullcontext(), is_xpu=lambda: False, Stream=_Nothing
    )
    patch.setattr(gpu_worker, "current_platform", platform)
    patch.setattr(gpu_worker, "PIN_MEMORY", False)
    yield
    patch.undo()


def _memmove(
    source: torch.Tensor, destination: torch.Tensor, sizes: torch.Tensor, *, is_src_access_order_any: bool
) -> None:
    for origin, to, size in zip(source.tolist(), destination.tolist(), sizes.tolist(), strict=True):
        ctypes.memmove(to, origin, size)


class Theirs:
    """vLLM's worker on CPU tensors."""

    def __init__(self, plan: CachePlan) -> None:
        self.caches = canonical(plan)
        rows = [t.tensor.view(torch.int8).view(-1, t.page_size_bytes) for t in self.caches.tensors]
        host = [
            torch.full((plan.num_chunks, t.page_size_bytes * plan.blocks_per_chunk), 0x5A, dtype=torch.int8)
            for t in self.caches.tensors
        ]
        self._handlers = [self._handler(rows, host, plan.blocks_per_chunk, store) for store in (False, True)]

    def _handler(self, rows: list[torch.Tensor], host: list[torch.Tensor], per_chunk: int, store: bool) -> Any:
        # Its constructor insists on a GPU; these are the attributes that it sets.
        h = gpu_worker.SingleDirectionOffloadingHandler.__new__(gpu_worker.SingleDirectionOffloadingHandler)
        h.src_tensors, h.dst_tensors = (rows, host) if store else (host, rows)
        h.gpu_to_cpu = store
        h.layer_refs_per_group = self.caches.group_data_refs
        h._swap_blocks_batch = _memmove
        h.src_blocks_per_chunk, h.dst_blocks_per_chunk = (1, per_chunk) if store else (per_chunk, 1)
        h._canonical_copy_plans = None
        h._fill_group_ops = h._fill_direct_ops
        h._transfer_events, h._transfers, h._buffer_pool = {}, gpu_worker.deque(), []
        h._stream_pool, h._event_pool = [_Nothing()], [_Nothing(), _Nothing()]
        return h

    def run(self, job: int, t: Transfer) -> list[Any]:
        gpu = base.GPULoadStoreSpec(list(t.block_ids), t.group_sizes, t.block_indices)
        host = CPULoadStoreSpec(list(t.chunk_ids))
        handler = self._handlers[t.is_store]
        assert handler.transfer_async(job, *((gpu, host) if t.is_store else (host, gpu)))
        return handler.get_finished()


def canonical(plan: CachePlan) -> Any:
    """The plan's cache in vLLM's own records."""
    built = plan.build()
    return base.CanonicalKVCaches(
        [base.CanonicalKVCacheTensor(t.tensor, t.page_size_bytes) for t in built.tensors],
        [[base.CanonicalKVCacheRef(r.tensor_idx, r.page_size_bytes) for r in refs] for refs in built.group_data_refs],
    )


def config(plan: CachePlan, **extra: Any) -> OffloadingConfig:
    """What vLLM gives a spec for this cache, with room for the plan's chunks."""
    block_bytes = sum(t.page_bytes for t in plan.tensors)
    row = -(-block_bytes * plan.blocks_per_chunk // 4096) * 4096
    options = {"cpu_bytes_to_use": plan.num_chunks * row, "spec_name": "KVMoveOffloadingSpec"}
    options |= {"spec_module_path": "kvmove.integrations.vllm", "kvmove_path": "reference", **extra}
    return OffloadingConfig(
        groups=tuple(OffloadingGroupConfig(16, (f"layer{g}",), g) for g in range(len(plan.refs))),
        worker_kv_bytes_per_block=block_bytes,
        enable_kv_cache_events=False,
        extra_config=options,
        engine_id="test",
        model=OffloadingModelConfig("tiny", "bfloat16"),
        cache=OffloadingCacheConfig(16, plan.blocks_per_chunk),
        parallel=OffloadingParallelConfig(0, 1, 1, 1, 1, 1, 0, 1, None, False),
    )


class Ours:
    """kvmove's worker, made by vLLM's own factory from the configuration."""

    def __init__(self, plan: CachePlan, **extra: Any) -> None:
        self.caches = canonical(plan)
        spec = OffloadingSpecFactory.create_spec(config(plan, **extra))
        assert isinstance(spec, KVMoveOffloadingSpec)
        self.worker = spec.get_worker(self.caches)
        assert isinstance(self.worker, KVMoveWorker)
        assert spec.get_worker(self.caches) is self.worker

    def run(self, job: int, t: Transfer) -> list[Any]:
        gpu = base.GPULoadStoreSpec(list(t.block_ids), t.group_sizes, t.block_indices)
        host = CPULoadStoreSpec(list(t.chunk_ids))
        if t.is_store:
            assert self.worker.submit_store(job, gpu, host)
        else:
            assert self.worker.submit_load(job, host, gpu, expedited=t.expedited)
        self.worker.wait({job})
        return self.worker.get_finished()


compared = {"caches": 0, "transfers": 0, "bytes": 0}


@given(st.data())
@settings(max_examples=300)
def test_both_workers_leave_the_same_bytes(data: st.DataObject) -> None:
    """All memory of the cache, gaps and padding too, is the same after every transfer; so are the results."""
    plan = data.draw(cache_plans())
    theirs, ours = Theirs(plan), Ours(plan)
    compared["caches"] += 1
    for job, t in enumerate(data.draw(histories(plan))):
        expected, got = theirs.run(job, t), ours.run(job, t)
        assert [(r.job_id, r.success) for r in got] == [(r.job_id, r.success) for r in expected]
        if not _shares_rows(plan):
            assert [r.transfer_size for r in got] == [r.transfer_size for r in expected]
        for a, b in zip(memory(ours.caches), memory(theirs.caches), strict=True):
            assert np.array_equal(a, b), t
            compared["bytes"] += a.size
        compared["transfers"] += 1
    ours.worker.shutdown()


def _shares_rows(plan: CachePlan) -> bool:
    """Whether layers of one group lie in the same memory: vLLM copies it once for each, kvmove once."""
    return any(len({i for i, _ in refs}) < len(refs) for refs in plan.refs)


def test_enough_was_compared(capsys: pytest.CaptureFixture[str]) -> None:
    """The comparison above has not become empty."""
    with capsys.disabled():
        print("\ncompared with vLLM's worker: {caches} caches, {transfers} transfers, {bytes} bytes".format(**compared))
    assert compared["transfers"] > 500
