"""`KVMoveOffloadingSpec`: vLLM's manager of host chunks, and kvmove's copies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vllm.logger import init_logger
from vllm.v1.kv_offload.base import (
    BlockIDsLoadStoreSpec,
    CanonicalKVCaches,
    GPULoadStoreSpec,
    LoadStoreSpec,
    OffloadingWorker,
    TransferResult,
)
from vllm.v1.kv_offload.config import OffloadingConfig
from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec, _all_workers_barrier

from kvmove.errors import MoveFailed, Refused
from kvmove.integrations.vllm.caches import describe
from kvmove.integrations.vllm.host_pool import SharedBy, make_pool
from kvmove.integrations.vllm.supported import installed_version, require_supported_version
from kvmove.integrations.vllm.worker import Ended, Transfers
from kvmove.kvpol.suggest import did_you_mean
from kvmove.records import JobKind

logger = init_logger("vllm.kvmove")  # under vLLM's own, so that its settings hold

PATH_OPTION = "kvmove_path"


class KVMoveWorker(OffloadingWorker):
    """vLLM's interface of a worker over `Transfers`.

    Failures: vLLM's own connector has no way to hear of one. So a failed load raises from `get_finished`, and sync
    loads already from `wait`, before the forward pass; a failed store is reported as done, and its chunks are never
    loaded. With `keep_failures`, for a connector that knows what to do, `get_finished` raises for neither, and keeps
    them for `take_failures`.
    """

    def __init__(self, transfers: Transfers) -> None:
        self.transfers = transfers
        self.keep_failures = False
        self._failed: list[Ended] = []

    def submit_store(self, job_id: int, src_spec: GPULoadStoreSpec, dst_spec: LoadStoreSpec) -> bool:
        assert isinstance(dst_spec, BlockIDsLoadStoreSpec)
        self.transfers.store(job_id, src_spec, dst_spec.block_ids)
        return True

    def submit_load(
        self, job_id: int, src_spec: LoadStoreSpec, dst_spec: GPULoadStoreSpec, expedited: bool = False
    ) -> bool:
        assert isinstance(src_spec, BlockIDsLoadStoreSpec)
        self.transfers.load(job_id, dst_spec, src_spec.block_ids, expedited=expedited)
        return True

    def wait(self, job_ids: set[int]) -> None:
        """Let the current stream wait for the jobs; the host goes on.

        Raises:
            SyncLoadFailed: sync loads among them are known to have failed.
        """
        self.transfers.wait(job_ids)

    def get_finished(self) -> list[TransferResult]:
        """What has ended.

        Raises:
            MoveFailed: a load failed, and nobody takes failures.
        """
        results = []
        for ended in self.transfers.finished():
            if ended.error is not None and self.keep_failures:
                self._failed.append(ended)
            elif ended.error is not None and ended.kind is JobKind.STORE:
                logger.warning("store %d failed: %s; its chunks will not be loaded", ended.job, ended.error)
            elif ended.error is not None:
                raise MoveFailed(
                    f"load {ended.job} failed: {ended.error}. vLLM's OffloadingConnector cannot compute its blocks "
                    "again; KVMoveConnector can",
                    job=ended.job,
                )
            ok = ended.error is None
            results.append(
                TransferResult(
                    job_id=ended.job,
                    success=True,
                    transfer_size=ended.num_bytes if ok else None,
                    transfer_time=ended.seconds if ok else None,
                )
            )
        return results

    def take_failures(self) -> list[Ended]:
        """The jobs that `get_finished` reported since the last call, and that failed."""
        failed, self._failed = self._failed, []
        return failed

    def shutdown(self) -> None:
        self.transfers.shutdown()


class KVMoveOffloadingSpec(CPUOffloadingSpec):
    """vLLM's CPU offloading with kvmove's worker, named in `kv_connector_extra_config`.

    `{"spec_name": "KVMoveOffloadingSpec", "spec_module_path": "kvmove.integrations.vllm", "cpu_bytes_to_use": ...}`.
    Which chunk holds which key, eviction and thresholds are vLLM's. Each worker keeps its chunks in pinned memory of
    its own; where all ranks hold the same bytes (MLA with tensor parallelism), they share one copy, as vLLM's do.

    Options beside vLLM's: `kvmove_path` names a path (`direct`, `tma`, `staged`, `engine`, `reference`) for every job;
    without it the mover chooses.

    Raises:
        Refused: vLLM is of a version that is not supported, or an option is.
    """

    def __init__(self, config: OffloadingConfig) -> None:
        require_supported_version(installed_version())
        refuse_unsupported(config.extra_config)
        super().__init__(config)
        self._kvmove_worker: KVMoveWorker | None = None

    def get_worker(self, kv_caches: CanonicalKVCaches) -> KVMoveWorker:
        """The worker of this rank, made at the first call.

        Raises:
            LayoutError: the cache is of a kind that kvmove cannot describe.
            Refused, PinningError: as `make_pool` and `Mover`.
        """
        if self._kvmove_worker is None:
            self._kvmove_worker = self._make_worker(kv_caches)
        return self._kvmove_worker

    def _make_worker(self, kv_caches: CanonicalKVCaches) -> KVMoveWorker:
        caches = describe(kv_caches, self.blocks_per_chunk)
        rank = self.config.parallel.rank
        shared_by = SharedBy(self.config.engine_id, rank, _all_workers_barrier) if self.replicated_layout else None
        pool = make_pool(caches.layout, self.num_chunks, shared_by)
        try:
            transfers = Transfers(caches, pool, path=self.extra_config.get(PATH_OPTION))
        except BaseException:
            pool.close()
            raise
        groups = ", ".join(f"{len(g.pages)} pages of {g.block_bytes} bytes a block" for g in caches.layout.groups)
        logger.info(
            "kvmove moves KV blocks: rank %d, %d chunks of %d bytes (%.2f GB, %s), %s",
            rank, pool.num_blocks, pool.block_bytes, pool.num_bytes / 1e9, pool.facts().pinning, groups,
        )  # fmt: skip
        return KVMoveWorker(transfers)


def refuse_unsupported(extra_config: Mapping[str, Any]) -> None:
    """Refuse options of vLLM that need its own format of host chunks, and options that are none of kvmove's.

    Raises:
        Refused: one is set.
    """
    for name in extra_config:
        if name.startswith("kvmove_") and name != PATH_OPTION:
            hint = did_you_mean(name, [PATH_OPTION])
            raise Refused(f"kv_connector_extra_config has no {name}; {hint or f'there is {PATH_OPTION}'}")
    for name in ("secondary_tiers", "canonical_layout"):
        if extra_config.get(name):
            raise Refused(
                f"KVMoveOffloadingSpec does not support {name}, which needs vLLM's own format of host memory; leave it "
                "out, or take TieringOffloadingSpec (KVMoveConnector works with it too)"
            )
    path = extra_config.get(PATH_OPTION)
    if path is not None and not isinstance(path, str):
        raise Refused(f"{PATH_OPTION} is {path!r}; the name of a path, such as direct, is needed")
