"""The host tier's index: which host block holds which key, what may be loaded, and what goes when room is short.

`HostTier` keeps the index and moves no bytes; an `EvictionPolicy` says which block goes first.
"""

from kvmove.tier.events import EventKind, TierEvent
from kvmove.tier.eviction import EVICTION_POLICIES, EvictionPolicy, LeastRecentlyUsed
from kvmove.tier.host_tier import HostTier
from kvmove.tier.records import StoreGrant, TierStatistics
from kvmove.tier.s3fifo import S3Fifo

__all__ = [
    "EVICTION_POLICIES",
    "EventKind",
    "EvictionPolicy",
    "HostTier",
    "LeastRecentlyUsed",
    "S3Fifo",
    "StoreGrant",
    "TierEvent",
    "TierStatistics",
]
