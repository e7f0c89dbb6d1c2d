"""What an offload scheduler has done so far: counters that do not grow with the number of steps."""

from __future__ import annotations

from dataclasses import dataclass, fields

from kvmove.offload.records import LookupKind, Outcome, StoreSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadStatistics:
    """A snapshot. The first group says what is so now, the second counts since the scheduler was made.

    What was decided and what it weighs by lane is in `OffloadScheduler.steps.statistics()`, what the tier holds in
    `OffloadScheduler.tier.statistics()`.
    """

    requests: int  # known
    parked: int  # of them, waiting for an async load of their own
    joined: int  # of them, waiting for another's
    loads: int  # admitted or under way
    stores: int  # under way
    inflight_bytes: int  # of async loads

    misses: int  # lookups that found nothing beyond the GPU cache
    hits: int
    joins: int
    loads_released: int  # async loads that ended and succeeded
    loads_failed: int  # sync and async
    stores_made: int
    stores_failed: int
    bytes_stored: int  # of stores made, on one GPU


class OffloadCounters:
    """The live counters behind `OffloadStatistics`."""

    __slots__ = (
        "bytes_stored",
        "hits",
        "joins",
        "loads_failed",
        "loads_released",
        "misses",
        "stores_failed",
        "stores_made",
    )

    def __init__(self) -> None:
        self.misses = self.hits = self.joins = 0
        self.loads_released = self.loads_failed = 0
        self.stores_made = self.stores_failed = self.bytes_stored = 0

    def looked_up(self, kind: LookupKind) -> None:
        """A lookup ended so."""
        if kind is LookupKind.MISS:
            self.misses += 1
        elif kind is LookupKind.HIT:
            self.hits += 1
        else:
            self.joins += 1

    def stored(self, spec: StoreSpec) -> None:
        """A store is in a plan."""
        self.stores_made += 1
        self.bytes_stored += spec.bytes

    def ended(self, outcome: Outcome) -> Outcome:
        """Count what an outcome says, and pass it on."""
        own = [released for released in outcome.released if not released.joined]
        failed = sum(released.error is not None for released in own)
        self.loads_released += len(own) - failed
        self.loads_failed += failed + len(outcome.failed_loads)
        self.stores_failed += len(outcome.failed_stores)
        return outcome

    def snapshot(self, **now: int) -> OffloadStatistics:
        """The counters as a record, with what is so now."""
        counted = {f.name: getattr(self, f.name) for f in fields(OffloadStatistics) if f.name not in now}
        return OffloadStatistics(**now, **counted)
