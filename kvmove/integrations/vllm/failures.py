"""What vLLM's scheduler has no words for: a store that failed, and a load that failed and is not to be tried again."""

from __future__ import annotations

from dataclasses import dataclass, field

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorWorkerMetadata
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import OffloadingWorkerMetadata
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.scheduler import OffloadingConnectorScheduler
from vllm.v1.outputs import KVConnectorOutput
from vllm.v1.request import Request


@dataclass
class KVMoveWorkerMetadata(OffloadingWorkerMetadata):
    """What vLLM's workers report, and the stores among the completed jobs that failed on any of them."""

    failed_stores: set[int] = field(default_factory=set)

    def aggregate(self, other: KVConnectorWorkerMetadata) -> KVMoveWorkerMetadata:
        both = super().aggregate(other)
        failed = self.failed_stores | getattr(other, "failed_stores", set())
        return KVMoveWorkerMetadata(both.completed_jobs, both.transfer_stats, failed)


class FailureAwareScheduler(OffloadingConnectorScheduler):
    """vLLM's scheduler, which forgets the keys of failed stores, and does not offer a failed load's request another.

    vLLM asks the connector again for a request whose load failed. While the same load would fail, that would go on for
    ever; so such a request computes its prompt.
    """

    _failed_stores: set[int] | None = None  # that not all ranks have reported
    _failed_loads: set[str] | None = None  # requests

    def get_num_new_matched_tokens(
        self, request: Request, num_computed_tokens: int, max_num_new_tokens: int | None = None
    ) -> tuple[int | None, bool]:
        answer = super().get_num_new_matched_tokens(request, num_computed_tokens, max_num_new_tokens)
        if not self._failed_loads or not answer[0] or request.request_id not in self._failed_loads:
            return answer
        status = self._req_status[request.request_id]
        status.update_num_hit_chunks(num_computed_tokens)
        status.partial_tail_boundary = None
        self._current_batch_sync_loads.discard(request.request_id)
        return 0, False

    def request_finished(self, request: Request) -> tuple[bool, dict[str, object] | None]:
        if self._failed_loads:
            self._failed_loads.discard(request.request_id)
        return super().request_finished(request)

    def _update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        if connector_output.failed_recving:
            self._failed_loads = (self._failed_loads or set()) | connector_output.failed_recving
        meta = connector_output.kv_connector_worker_meta
        if isinstance(meta, KVMoveWorkerMetadata) and (meta.failed_stores or self._failed_stores):
            self._forget_failed_stores(meta)
        super()._update_connector_output(connector_output)

    def _forget_failed_stores(self, meta: KVMoveWorkerMetadata) -> None:
        failed = meta.failed_stores | (self._failed_stores or set())
        for job in failed & meta.completed_jobs.keys():
            status = self._jobs.get(job)
            if status is not None and status.pending_count > meta.completed_jobs[job]:
                continue  # other ranks still write
            failed.discard(job)
            if status is not None:  # else it is from before a reset, and its keys are forgotten already
                # vLLM takes the job to have succeeded right after this; by then its keys are gone, and passed over.
                self.manager.complete_store(status.keys, self._req_status[status.req_id].req_context, success=False)
        self._failed_stores = failed

    def _reset_cache(self) -> None:
        super()._reset_cache()
        self._failed_stores = None
