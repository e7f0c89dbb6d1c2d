"""KV offload for an engine: a scheduler-side object, the host tier behind it, and a worker on each rank.

`OffloadScheduler` and `HostTier` live in the engine's scheduler process and never import torch; `OffloadWorker` lives
on each rank, over a `kvmove.Mover`. What they exchange is in `kvmove.offload.records`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from kvmove.errors import SyncLoadFailed
from kvmove.offload.interface import OffloadCalls
from kvmove.offload.ranks import RankBoard
from kvmove.offload.records import (
    FailedLoad,
    FailedStore,
    Group,
    GroupBlocks,
    GroupKind,
    JobResult,
    LoadSpec,
    Lookup,
    LookupKind,
    OffloadPlan,
    Outcome,
    Released,
    StoreSpec,
)
from kvmove.offload.requests import RequestState
from kvmove.offload.scheduler import OffloadScheduler
from kvmove.offload.statistics import OffloadStatistics
from kvmove.tier import HostTier

if TYPE_CHECKING:
    from kvmove.offload.worker import OffloadWorker
    from kvmove.offload.worker_steps import job_results, start_loads, start_step, start_stores

# These import torch, which a scheduler's process need not have.
_HOME = {
    "OffloadWorker": "kvmove.offload.worker",
    "job_results": "kvmove.offload.worker_steps",
    "start_loads": "kvmove.offload.worker_steps",
    "start_step": "kvmove.offload.worker_steps",
    "start_stores": "kvmove.offload.worker_steps",
}

__all__ = [
    "FailedLoad",
    "FailedStore",
    "Group",
    "GroupBlocks",
    "GroupKind",
    "HostTier",
    "JobResult",
    "LoadSpec",
    "Lookup",
    "LookupKind",
    "OffloadCalls",
    "OffloadPlan",
    "OffloadScheduler",
    "OffloadStatistics",
    "OffloadWorker",
    "Outcome",
    "RankBoard",
    "Released",
    "RequestState",
    "StoreSpec",
    "SyncLoadFailed",
    "job_results",
    "start_loads",
    "start_step",
    "start_stores",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'kvmove.offload' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOME[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
