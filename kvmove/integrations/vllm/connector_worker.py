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
from kvmove.integrations.vllm.spec import KVMoveWorker

logger = init_logger("vllm.kvmove")


class KVMoveConnectorWorker(OffloadingConnectorWorker):
    """vLLM's own, which tells the core scheduler of failed loads where the spec is `KVMoveOffloadingSpec`.

    - An async load: its request is named in `failed_recving` and computes its prompt.
    - A sync load: the request is in the forward pass already. Its blocks are reported in that step, so that no token of
      it is published; with `kv_load_failure_policy: recompute` vLLM computes them again, else it ends the request with
      an error. Block numbers say too little where there are several groups of layers: there, the load raises.
    - What a request computed on top of a failed sync load is not stored; nor is what the steps computed that were
      scheduled before the scheduler heard of it.

    vLLM's own worker never reports a failure, so nothing changes with it.
    """

    def __init__(self, spec: OffloadingSpec, vllm_config: VllmConfig, kv_cache_config: KVCacheConfig) -> None:
        super().__init__(spec, vllm_config, kv_cache_config)
        # How many steps are scheduled before the output of the first is known.
        self._steps_ahead: int = max(
            vllm_config.parallel_config.pipeline_parallel_size,
            2 if vllm_config.scheduler_config.async_scheduling else 1,
        )
        self._spoilt: dict[str, int] = {}  # requests, and in how many more steps what they compute is worth nothing
        self._failed_requests: set[str] = set()
        self._invalid_blocks: set[int] = set()

    def take_failed_requests(self) -> set[str]:
        """Requests whose async loads ended since the last call, and failed."""
        failed, self._failed_requests = self._failed_requests, set()
        return failed

    def take_invalid_blocks(self) -> set[int]:
        """GPU blocks that sync loads should have written since the last call, and did not."""
        blocks, self._invalid_blocks = self._invalid_blocks, set()
        return blocks

    def handle_preemptions(self, kv_connector_metadata: OffloadingConnectorMetadata) -> None:
        self._leave_out_spoilt_stores(kv_connector_metadata)
        super().handle_preemptions(kv_connector_metadata)

    def start_kv_transfers(self, metadata: OffloadingConnectorMetadata) -> None:
        try:
            super().start_kv_transfers(metadata)
        except SyncLoadFailed as error:
            self._sync_loads_failed([metadata.load_jobs[job] for job in error.jobs], error)

    def prepare_store_kv(self, metadata: OffloadingConnectorMetadata) -> None:
        self._leave_out_spoilt_stores(metadata)
        super().prepare_store_kv(metadata)
        self._spoilt = {request: steps - 1 for request, steps in self._spoilt.items() if steps > 1}

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str], set[str]]:
        requests = dict(self._load_jobs)
        finished = super().get_finished(finished_req_ids)
        if isinstance(self.worker, KVMoveWorker):
            for ended in self.worker.take_failures():
                request = requests.get(ended.job)
                if request is not None:
                    self._failed_requests.add(request)
                    logger.warning(
                        "async load of request %s failed: %s; its prompt is computed instead", request, ended.error
                    )
        return finished

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
        if len(self.kv_cache_config.kv_cache_groups) > 1:
            raise SyncLoadFailed(
                f"{error}; requests {', '.join(requests)} run already, and vLLM cannot compute single blocks again in "
                "a model with several groups of layers",
                jobs=error.jobs,
                requests=requests,
            ) from error
        logger.warning("%s; the blocks of requests %s are reported as not loaded", error, ", ".join(requests))
        for job in jobs:
            assert isinstance(job.dst_spec, BlockIDsLoadStoreSpec)
            self._invalid_blocks.update(job.dst_spec.block_ids.tolist())
            self._spoilt[job.req_id] = self._steps_ahead

    def _leave_out_spoilt_stores(self, metadata: OffloadingConnectorMetadata) -> None:
        if not self._spoilt:
            return
        assert isinstance(self.worker, KVMoveWorker)
        for job, entry in list(metadata.store_jobs.items()):
            if entry.req_id in self._spoilt:
                del metadata.store_jobs[job]
                assert isinstance(entry.dst_spec, BlockIDsLoadStoreSpec)
                self.worker.transfers.spoil(entry.dst_spec.block_ids)
                self._connector_worker_meta.mark_completed(job)
