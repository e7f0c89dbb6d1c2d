"""The worker's side of the connectors, vLLM's and ours, over kvmove's worker: what happens when copies fail."""

from __future__ import annotations

import pickle
import random
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from canonical_caches import CachePlan, TensorPlan
from test_worker_against_vllm import canonical, config
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import OffloadingConnectorMetadata, TransferJob
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.worker import OffloadingConnectorWorker
from vllm.v1.kv_offload.base import GPULoadStoreSpec
from vllm.v1.kv_offload.cpu.common import CPULoadStoreSpec
from vllm.v1.kv_offload.factory import OffloadingSpecFactory

from kvmove.errors import MoveFailed, Refused, SyncLoadFailed
from kvmove.integrations.vllm.caches import describe
from kvmove.integrations.vllm.connector_worker import KVMoveConnectorWorker
from kvmove.integrations.vllm.failures import KVMoveWorkerMetadata
from kvmove.integrations.vllm.host_pool import make_pool
from kvmove.integrations.vllm.spec import KVMoveOffloadingSpec, KVMoveWorker
from kvmove.integrations.vllm.worker import Transfers
from kvmove.testing.protocol_queues import LateQueues

ONE_GROUP = CachePlan(16, 8, 1, (TensorPlan(64),), (((0, 64),),), 1)
TWO_GROUPS = CachePlan(16, 8, 1, (TensorPlan(64), TensorPlan(64)), (((0, 64),), ((1, 64),)), 1)


class Rig:
    """A connector's worker over kvmove's, whose copies run when the test says, and may fail."""

    def __init__(self, kind: type[OffloadingConnectorWorker], plan: CachePlan = ONE_GROUP, ahead: int = 1) -> None:
        spec = OffloadingSpecFactory.create_spec(config(plan))
        assert isinstance(spec, KVMoveOffloadingSpec)
        self.queues, self.groups = LateQueues(random.Random(1)), len(plan.refs)
        self.caches = canonical(plan)
        described = describe(self.caches, 1)
        pool = make_pool(described.layout, plan.num_chunks)
        spec._kvmove_worker = KVMoveWorker(Transfers(described, pool, path="reference", queues=self.queues))
        vllm_config: Any = SimpleNamespace(
            parallel_config=SimpleNamespace(pipeline_parallel_size=1),
            scheduler_config=SimpleNamespace(async_scheduling=ahead > 1),
        )
        kv_cache_config: Any = SimpleNamespace(kv_cache_groups=[None] * self.groups)
        self.worker = kind(spec, vllm_config, kv_cache_config)
        self.worker._init_worker(self.caches)

    def rows(self, block: int) -> torch.Tensor:
        return self.caches.tensors[0].tensor[block].clone()

    def step(
        self,
        loads: dict[int, TransferJob] | None = None,
        stores: dict[int, TransferJob] | None = None,
        flush: set[int] | None = None,
    ) -> set[str]:
        """A step of the engine's worker, with every copy done at its end. Returns requests whose loads ended."""
        metadata = OffloadingConnectorMetadata(loads or {}, stores or {}, flush)
        self.worker.handle_preemptions(metadata)
        self.worker.start_kv_transfers(metadata)
        self.worker.prepare_store_kv(metadata)
        self.queues.drain()
        return self.worker.get_finished(set())[1]

    def gpu(self, blocks: list[int]) -> GPULoadStoreSpec:
        sizes = [len(blocks)] + [0] * (self.groups - 1)
        return GPULoadStoreSpec(blocks, sizes, [0] * self.groups)

    def store(self, request: str, blocks: list[int], chunks: list[int]) -> TransferJob:
        return TransferJob(request, self.gpu(blocks), CPULoadStoreSpec(chunks))

    def load(self, request: str, blocks: list[int], chunks: list[int], sync: bool = False) -> TransferJob:
        return TransferJob(request, CPULoadStoreSpec(chunks), self.gpu(blocks), sync)

    def completed(self) -> set[int]:
        meta = self.worker.build_connector_worker_meta()
        return set() if meta is None else set(meta.completed_jobs)


@pytest.mark.parametrize("kind", [OffloadingConnectorWorker, KVMoveConnectorWorker])
def test_a_life_of_stores_and_loads(kind: type[OffloadingConnectorWorker]) -> None:
    """Stores wait for the next step, loads of both lanes arrive, a flush waits, jobs are reported once."""
    rig = Rig(kind)
    first, second = rig.rows(1), rig.rows(2)
    rig.step(stores={0: rig.store("a", [1, 2], [5, 6])})
    assert rig.completed() == set()
    assert rig.step(flush={0}) == set()
    assert rig.completed() == {0}
    assert rig.step(loads={1: rig.load("b", [7], [5]), 2: rig.load("c", [8], [6], sync=True)}) == {"b"}
    assert rig.completed() == {1, 2}
    assert torch.equal(rig.rows(7), first)
    assert torch.equal(rig.rows(8), second)
    rig.worker.shutdown()


def test_vllms_connector_ends_with_the_reason() -> None:
    """vLLM's own connector cannot hear of a failed load: the error says so, and which connector can."""
    rig = Rig(OffloadingConnectorWorker)
    rig.step(stores={0: rig.store("a", [1], [5])})
    rig.step()
    rig.queues.refuse(0)
    with pytest.raises(MoveFailed, match="load 1 failed: could not be launched"):
        rig.step(loads={1: rig.load("b", [7], [5])})
    rig.worker.shutdown()


def test_a_failed_async_load_lets_its_request_compute() -> None:
    """The request is released, and named as one whose load failed; later loads work."""
    rig = Rig(KVMoveConnectorWorker)
    kept = rig.rows(1)
    rig.step(stores={0: rig.store("a", [1], [5])})
    rig.step()
    rig.queues.refuse(0)
    assert rig.step(loads={1: rig.load("b", [7], [5])}) == {"b"}
    assert rig.worker.take_failed_requests() == {"b"}
    assert rig.worker.take_failed_requests() == set()
    assert rig.worker.take_invalid_blocks() == set()
    assert rig.step(loads={2: rig.load("c", [8], [5])}) == {"c"}
    assert rig.worker.take_failed_requests() == set()
    assert torch.equal(rig.rows(8), kept)
    assert rig.completed() == {0, 1, 2}
    rig.worker.shutdown()


def test_a_failed_sync_load_names_its_blocks_in_its_step() -> None:
    """The blocks of every sync load of the launch are reported, and the forward pass is not stopped."""
    rig = Rig(KVMoveConnectorWorker)
    rig.step(stores={0: rig.store("a", [1, 2], [5, 6])})
    rig.step()
    rig.queues.refuse(0)
    loads = {1: rig.load("b", [7], [5], sync=True), 2: rig.load("c", [8, 9], [6, 5], sync=True)}
    assert rig.step(loads=loads) == set()
    assert rig.worker.take_invalid_blocks() == {7, 8, 9}
    assert rig.worker.take_failed_requests() == set()
    assert rig.completed() == {0, 1, 2}
    rig.worker.shutdown()


def test_what_was_computed_on_missing_blocks_is_not_kept() -> None:
    """Stores of such a request leave nothing to be loaded; those of others, and its own of later steps, do."""
    rig = Rig(KVMoveConnectorWorker)
    rig.step(stores={0: rig.store("a", [1], [5])})
    rig.step()
    rig.queues.refuse(0)
    rig.step({1: rig.load("b", [7], [5], sync=True)}, {2: rig.store("b", [8], [6]), 3: rig.store("z", [2], [4])})
    rig.worker.take_invalid_blocks()
    rig.step(stores={4: rig.store("b", [9], [7])})
    rig.step()
    meta = rig.worker.build_connector_worker_meta()
    assert meta is not None
    assert (set(meta.completed_jobs), meta.failed_stores) == ({0, 1, 2, 3, 4}, {2})
    assert isinstance(rig.worker.worker, KVMoveWorker)
    assert rig.worker.worker.transfers.bad_chunks == {6}
    assert rig.step(loads={5: rig.load("d", [10], [6])}) == {"d"}
    assert rig.worker.take_failed_requests() == {"d"}
    assert rig.step(loads={6: rig.load("e", [10], [4])}) == {"e"}
    assert rig.worker.take_failed_requests() == set()
    rig.worker.shutdown()


@pytest.mark.parametrize(
    ("plan", "ahead", "why"),
    [(TWO_GROUPS, 1, "several groups of layers"), (ONE_GROUP, 2, "before the output of the one before is known")],
)
def test_where_vllm_cannot_compute_again_a_failed_sync_load_raises(plan: CachePlan, ahead: int, why: str) -> None:
    """It could not map blocks back to requests, or would publish what a step scheduled before it knew has computed."""
    rig = Rig(KVMoveConnectorWorker, plan, ahead)
    rig.step(stores={0: rig.store("a", [1], [5])})
    rig.step()
    rig.queues.refuse(0)
    with pytest.raises(SyncLoadFailed, match="requests b run already") as caught:
        rig.step(loads={1: rig.load("b", [7], [5], sync=True)})
    assert why in str(caught.value)
    rig.worker.shutdown()


@pytest.mark.parametrize("kind", [OffloadingConnectorWorker, KVMoveConnectorWorker])
def test_a_failed_store_ends_nothing(kind: type[OffloadingConnectorWorker]) -> None:
    """vLLM is told that it is done, having no other word, and our scheduler that it failed; its chunk is not loaded."""
    rig = Rig(kind)
    rig.step(stores={0: rig.store("a", [1], [5])})
    rig.queues.refuse(0)
    rig.step()
    meta = rig.worker.build_connector_worker_meta()
    assert meta is not None
    assert set(meta.completed_jobs) == {0}
    assert getattr(meta, "failed_stores", {0}) == {0}
    assert isinstance(rig.worker.worker, KVMoveWorker)
    assert rig.worker.worker.transfers.bad_chunks == {5}
    rig.worker.shutdown()


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("secondary_tiers", [{"type": "fs"}], "TieringOffloadingSpec"),
        ("canonical_layout", True, "canonical_layout"),
        ("kvmove_path", 3, "kvmove_path is 3"),
        ("kvmove_pth", "direct", "kvmove_path"),
    ],
)
def test_options_that_are_not_supported_are_refused(option: str, value: Any, message: str) -> None:
    """Before any memory is taken, with what to do instead."""
    with pytest.raises(Refused, match=message):
        OffloadingSpecFactory.create_spec(config(ONE_GROUP, **{option: value}))


def test_a_path_that_does_not_exist_is_refused() -> None:
    """The message has the paths there are; the host memory is given back."""
    spec = OffloadingSpecFactory.create_spec(config(ONE_GROUP, kvmove_path="warp"))
    with pytest.raises(Refused, match="choose from: direct"):
        spec.get_worker(canonical(ONE_GROUP))


def test_ranks_report_failed_stores_together() -> None:
    """A store that failed on one rank has failed."""
    one, other = KVMoveWorkerMetadata({1: 1, 2: 1}, failed_stores={2}), KVMoveWorkerMetadata({1: 1}, failed_stores={1})
    both = one.aggregate(other)
    assert (both.completed_jobs, both.failed_stores) == ({1: 2, 2: 1}, {1, 2})
    assert pickle.loads(pickle.dumps(both)) == both
