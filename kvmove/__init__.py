"""kvmove: move paged KV-cache blocks between pinned host memory and GPU slots, and decide per hit whether to.

The deciding half (`Policy`, `StepScheduler`, `HostTier`, the records) never imports torch; the moving half
(`CacheLayout`, `HostPool`, `Mover`, `load_batch`, `store_batch`) does. Both are imported when first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from kvmove.errors import (
    InternalError,
    KVMoveError,
    LayoutError,
    MoveFailed,
    MoverBusy,
    MoverClosed,
    PinningError,
    PolicyError,
    RecordError,
    Refused,
    TraceError,
)
from kvmove.records import (
    Action,
    BlockSizes,
    Decision,
    Demotion,
    GroupBytes,
    Hit,
    JobKind,
    Lane,
    Load,
    Part,
    Result,
    StepPlan,
    StepState,
    Store,
)

if TYPE_CHECKING:
    from kvmove.costs import Profile
    from kvmove.kvpol import Policy
    from kvmove.kvpol.reload import PolicyFile
    from kvmove.move import CacheLayout, HostPool, Mover, Ticket, load_batch, store_batch
    from kvmove.schedule import StepScheduler
    from kvmove.tier import HostTier

__version__ = "0.1.0"

_HOME = {
    "Policy": "kvmove.kvpol",
    "Profile": "kvmove.costs",
    "PolicyFile": "kvmove.kvpol.reload",
    "StepScheduler": "kvmove.schedule",
    "HostTier": "kvmove.tier",
    "CacheLayout": "kvmove.move",
    "HostPool": "kvmove.move",
    "Mover": "kvmove.move",
    "Ticket": "kvmove.move",
    "load_batch": "kvmove.move",
    "store_batch": "kvmove.move",
}

__all__ = [
    "Action",
    "BlockSizes",
    "CacheLayout",
    "Decision",
    "Demotion",
    "GroupBytes",
    "Hit",
    "HostPool",
    "HostTier",
    "InternalError",
    "JobKind",
    "KVMoveError",
    "Lane",
    "LayoutError",
    "Load",
    "MoveFailed",
    "Mover",
    "MoverBusy",
    "MoverClosed",
    "Part",
    "PinningError",
    "Policy",
    "PolicyError",
    "PolicyFile",
    "Profile",
    "RecordError",
    "Refused",
    "Result",
    "StepPlan",
    "StepScheduler",
    "StepState",
    "Store",
    "Ticket",
    "TraceError",
    "load_batch",
    "store_batch",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'kvmove' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOME[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
