"""`KVMoveConnector`: vLLM's offloading connector, whose scheduler asks a policy."""

from __future__ import annotations

from typing import Any

from vllm.config import VllmConfig
from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorBase_V1, KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorTransferResults
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.config import build_offloading_config
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.worker import OffloadingConnectorWorker
from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import OffloadingConnector
from vllm.v1.kv_cache_interface import KVCacheConfig
from vllm.v1.kv_offload.factory import OffloadingSpecFactory

from kvmove.integrations.vllm.connector_worker import KVMoveConnectorWorker
from kvmove.integrations.vllm.metrics import KVMovePromMetrics
from kvmove.integrations.vllm.options import Options
from kvmove.integrations.vllm.scheduler import KVMoveScheduler
from kvmove.integrations.vllm.supported import installed_version, require_supported_version


class KVMoveConnector(OffloadingConnector):
    """Decides by policy what each host hit does in its step: load inside it, in the background, wait, or compute.

    Name it in `--kv-transfer-config`:
    `{"kv_connector": "KVMoveConnector", "kv_connector_module_path": "kvmove.integrations.vllm", ...}`.
    `kv_connector_extra_config` has vLLM's own options and those of `Options`. The worker's side is that of the spec
    named there, vLLM's or `KVMoveOffloadingSpec`.

    Raises:
        PolicyError: the policy cannot be used.
        Refused: vLLM is of a version that is not supported, or an option cannot be used.
    """

    connector_worker: OffloadingConnectorWorker | None

    def __init__(self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig) -> None:
        require_supported_version(installed_version())
        if role is not KVConnectorRole.SCHEDULER:
            super().__init__(vllm_config, role, kv_cache_config)
            assert self.connector_worker is not None
            self.connector_worker = KVMoveConnectorWorker(self.connector_worker.spec, vllm_config, kv_cache_config)
            return
        # The parent would make vLLM's own scheduler, with a manager that may have threads: ours takes its place.
        KVConnectorBase_V1.__init__(self, vllm_config, role, kv_cache_config)
        config = build_offloading_config(vllm_config, kv_cache_config)
        options = Options.read(config.extra_config)
        self._canonical_layout = config.canonical_layout
        self.connector_worker = None
        self.connector_scheduler = KVMoveScheduler(
            OffloadingSpecFactory.create_spec(config), vllm_config, kv_cache_config, options, self._free_slots
        )

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        results = super().get_transfer_results(finished_req_ids)
        if isinstance(self.connector_worker, KVMoveConnectorWorker):
            results.failed_recving.update(self.connector_worker.take_failed_requests())
        return results

    def get_block_ids_with_load_errors(self) -> set[int]:
        if isinstance(self.connector_worker, KVMoveConnectorWorker):
            return self.connector_worker.take_invalid_blocks()
        return set()

    def _free_slots(self) -> int:
        manager = self._kv_cache_manager
        return 0 if manager is None else manager.block_pool.get_num_free_blocks()

    @classmethod
    def build_prom_metrics(
        cls,
        vllm_config: VllmConfig,
        metric_types: dict[type[Any], type[Any]],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> KVConnectorPromMetrics:
        return KVMovePromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)
