"""The worker's side of `KVMoveConnector`: what could not be loaded is computed again instead of ending the engine."""

from __future__ import annotations

from collections.abc import Iterable

from vllm.config import VllmConfig
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import OffloadingConnectorMetadata, TransferJob
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.worker import OffloadingConnectorWorker
from vllm.logger import init_logger
from vllm.v1.kv_cache_interface import KVCacheConfig
from vllm.v1.kv_offload.base import BlockIDsLoadStoreSpec, CanonicalKVCaches, OffloadingSpec

from kvmove.errors import SyncLoadFailed
from kvmove.integrations.vllm.failures import KVMoveWorkerMetadata
from kvmove.integrations.vllm.spec import KVMoveWorker
from kvmove.records import JobKind

logger = init_logger("vllm.kvmove")


class KVMoveConnectorWorker(OffloadingConnectorWorker):
    """vLLM's own, which tells the core scheduler of failed loads where the spec is `KVMoveOffloadingSpec`.

    - An async load: its request is named in `failed_recving` and computes its prompt.
    - A sync load: the request is in the forward pass already. Its blocks are reported in that step, so that no token of
      it is published; with `kv_load_failure_policy: recompute` vLLM computes them again, else it ends the request with
      an error. What the request computed in that step is not stored.
      Where vLLM cannot do this right, the load raises instead, and the engine stops: with several groups of layers,
      because block numbers say too little there; and where a step is scheduled before the output of the one before is
      known (async scheduling, pipelines), because vLLM 0.33 publishes what that step computed on the missing blocks.
    - A store: the scheduler forgets its keys.

    vLLM's own worker never reports a failure, so nothing changes with it.
    """

    def __init__(self, spec: OffloadingSpec, vllm_config: VllmConfig, kv_cache_config: KVCacheConfig) -> None:
        super().__init__(spec, vllm_config, kv_cache_config)
        runs_ahead = (
            vllm_config.scheduler_config.async_scheduling or vllm_config.parallel_config.pipeline_parallel_size > 1
        )
        self._cannot_recompute = None
        if len(kv_cache_config.kv_cache_groups) > 1:
            self._cannot_recompute = "has several groups of layers"
        elif runs_ahead:
            self._cannot_recompute = "schedules a step before the output of the one before is known"
        self._spoilt: set[str] = set()  # requests whose present step is worth nothing
        self._failed_requests: set[str] = set()
        self._invalid_blocks: set[int] = set()
        self._failed_stores: set[int] = set()  # jobs

    def take_failed_requests(self) -> set[str]:
        """Requests whose async loads ended since the last call, and failed."""
        failed, self._failed_requests = self._failed_requests, set()
        return failed

    def take_invalid_blocks(self) -> set[int]:
        """GPU blocks that sync loads should have written since the last call, and did not."""
        blocks, self._invalid_blocks = self._invalid_blocks, set()
        return blocks

    def start_kv_transfers(self, metadata: OffloadingConnectorMetadata) -> None:
        try:
            super().start_kv_transfers(metadata)
        except SyncLoadFailed as error:
            self._sync_loads_failed([metadata.load_jobs[job] for job in error.jobs], error)

    def prepare_store_kv(self, metadata: OffloadingConnectorMetadata) -> None:
        self._leave_out_spoilt_stores(metadata)
        super().prepare_store_kv(metadata)

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str], set[str]]:
        requests = dict(self._load_jobs)
        finished = super().get_finished(finished_req_ids)
        if isinstance(self.worker, KVMoveWorker):
            for ended in self.worker.take_failures():
                request = requests.get(ended.job)
                if ended.kind is JobKind.STORE:
                    self._failed_stores.add(ended.job)
                    logger.warning("store %d failed: %s; its blocks will not be found", ended.job, ended.error)
                elif request is not None:
                    self._failed_requests.add(request)
                    logger.warning(
                        "async load of request %s failed: %s; its prompt is computed instead", request, ended.error
                    )
        return finished

    def build_connector_worker_meta(self) -> KVMoveWorkerMetadata | None:
        meta = super().build_connector_worker_meta()
        if meta is None:  # a failed store is a completed job too
            return None
        failed, self._failed_stores = self._failed_stores, set()
        return KVMoveWorkerMetadata(meta.completed_jobs, meta.transfer_stats, failed)

    def shutdown(self) -> None:
        self._spoilt.clear()
        super().shutdown()

    def _init_worker(self, kv_caches: CanonicalKVCaches) -> None:
        super()._init_worker(kv_caches)
        if isinstance(self.worker, KVMoveWorker):
            self.worker.keep_failures = True

    def _sync_loads_failed(self, jobs: Iterable[TransferJob], error: SyncLoadFailed) -> None:
        jobs = list(jobs)
        requests = [job.req_id for job in jobs]
        if self._cannot_recompute is not None:
            raise SyncLoadFailed(
                f"{error}; requests {', '.join(requests)} run already, and vLLM cannot compute blocks again "
                f"in an engine that {self._cannot_recompute}",
                jobs=error.jobs,
                requests=requests,
            ) from error
        logger.warning("%s; the blocks of requests %s are reported as not loaded", error, ", ".join(requests))
        for job in jobs:
            assert isinstance(job.dst_spec, BlockIDsLoadStoreSpec)
            self._invalid_blocks.update(job.dst_spec.block_ids.tolist())
            self._spoilt.add(job.req_id)

    def _leave_out_spoilt_stores(self, metadata: OffloadingConnectorMetadata) -> None:
        if not self._spoilt:
            return
        assert isinstance(self.worker, KVMoveWorker)
        spoilt, self._spoilt = self._spoilt, set()
        for job, entry in list(metadata.store_jobs.items()):
            if entry.req_id in spoilt:
                del metadata.store_jobs[job]
                assert isinstance(entry.dst_spec, BlockIDsLoadStoreSpec)
                self.worker.transfers.spoil(entry.dst_spec.block_ids)
                self._failed_stores.add(job)
                self._connector_worker_meta.mark_completed(job)
