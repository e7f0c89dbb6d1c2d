"""Stores: deferred to the start of the step after the one that computed the blocks, and each key stored once."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from kvmove.errors import InternalError
from kvmove.offload.records import Group, GroupBlocks, StoreSpec
from kvmove.offload.requests import Request
from kvmove.offload.reuse import ReuseFilter
from kvmove.offload.tables import slot_spaces
from kvmove.tier import HostTier

if TYPE_CHECKING:
    from kvmove.transfers import IndexArray


class DeferredStore:
    """Chunks [first, end) of a request, computed, with the slots as they were then.

    The arrays are never changed, so the slots stay known though the request may lose them: whoever gets them writes
    them in the step of this store at the earliest, and that step flushes it.
    """

    __slots__ = ("base_blocks", "end", "first", "request", "tables", "tainted_by")

    def __init__(self, request: Request, end: int) -> None:
        self.request = request
        self.tables = request.tables
        self.first, self.end = request.stored_chunks, end
        self.base_blocks = request.base_blocks
        self.tainted_by = frozenset(request.tainted_by)


class StoreBook:
    """What is to be stored, and what is being stored, for one scheduler."""

    def __init__(self, tier: HostTier, groups: Sequence[Group], blocks_per_chunk: int, reuse: ReuseFilter) -> None:
        self._tier = tier
        self._groups = groups
        self._k = blocks_per_chunk
        self._reuse = reuse
        self._space_of = slot_spaces(groups)
        self._deferred: list[DeferredStore] = []
        self._jobs: dict[int, StoreSpec] = {}
        self._storing: set[Hashable] = set()  # keys of jobs that become ready when these end

    def __len__(self) -> int:
        return len(self._jobs)

    def get(self, job: int) -> StoreSpec | None:
        return self._jobs.get(job)

    def defer(self, request: Request, chunks: int) -> None:
        """The request's leading `chunks` are computed: what of them is not in the tier is stored with the next step."""
        if chunks > request.offered_chunks and not request.is_stale:
            self._deferred.append(DeferredStore(request, chunks))
            request.offered_chunks = chunks

    def take_deferred(self, unresolved: Iterable[int]) -> list[DeferredStore]:
        """What can be stored now. What depends on a sync load that is unresolved is put off until it is computed on."""
        unresolved = set(unresolved)
        ready: list[DeferredStore] = []
        for deferred in self._deferred:
            if deferred.tainted_by & unresolved:
                self._put_off(deferred)
            else:
                ready.append(deferred)
        self._deferred = []
        return ready

    def put_off_all(self) -> None:
        """Store none of what is deferred; who keeps its slots offers it again when it computes further."""
        for deferred in self._deferred:
            self._put_off(deferred)
        self._deferred = []

    def drop(self, job: int) -> None:
        """Forget what was computed from a sync load that failed."""
        self._deferred = [deferred for deferred in self._deferred if job not in deferred.tainted_by]

    def make(self, job: int, deferred: DeferredStore) -> StoreSpec | None:
        """The job that stores what the tier lacks and has room for, its blocks granted; None where that is nothing."""
        parts: list[GroupBlocks] = []
        num_bytes = 0
        held = deferred.end
        for g, group in enumerate(self._groups):
            if group.needed_blocks is None:
                stored, blocks, held_here = self._grant_prefix(g, deferred)
                held = min(held, held_here)
            else:
                stored, blocks = self._grant_any(g, group.needed_blocks, deferred)
            for run, run_blocks in _runs(stored, blocks):
                parts.append(self._part(g, deferred, run, run_blocks))
                num_bytes += len(run) * self._k * group.block_bytes
        request = deferred.request
        if request.tables and request.stored_chunks == deferred.first:
            request.stored_chunks = held
        if not parts:
            return None
        spec = self._jobs[job] = StoreSpec(job, request.name, tuple(parts), num_bytes)
        for part in parts:
            self._storing.update(part.keys)
        return spec

    def flushes(self, written: Sequence[tuple[int, IndexArray]]) -> tuple[int, ...]:
        """The stores under way that read slots which are about to be written, given as (group, slots)."""
        import numpy as np

        if not written or not self._jobs:
            return ()
        by_space: dict[int, list[IndexArray]] = {}
        for group, slots in written:
            by_space.setdefault(self._space_of[group], []).append(slots)
        read: dict[int, tuple[list[IndexArray], list[int]]] = {space: ([], []) for space in by_space}
        for job, spec in self._jobs.items():
            for part in spec.groups:
                space = self._space_of[part.group]
                if space in read:
                    read[space][0].append(part.slots)
                    read[space][1].append(job)
        flushed: set[int] = set()
        for space, (arrays, jobs) in read.items():
            if arrays:
                is_written = np.isin(np.concatenate(arrays), np.concatenate(by_space[space]))
                readers = np.repeat(np.array(jobs, dtype=np.int64), [len(array) for array in arrays])
                flushed.update(np.unique(readers[is_written]).tolist())
        return tuple(sorted(flushed))

    def end(self, job: int, *, failed: bool) -> StoreSpec:
        """Every rank has reported the store: its keys are served from now on, or forgotten."""
        spec = self._jobs.pop(job)
        for part in spec.groups:
            self._storing.difference_update(part.keys)
            if failed:
                self._tier.fail_store(part.keys)
            else:
                self._tier.complete_store(part.keys)
        return spec

    def drop_all(self) -> None:
        """Store nothing of what is deferred, nor later."""
        self._deferred = []

    def forget_storing(self) -> None:
        """The tier was cleared: what is being stored will not be served, so nothing can be stored behind it."""
        self._storing.clear()

    def check_integrity(self) -> None:
        """Raise `InternalError` where a key is noted as being stored without a store."""
        keys = {key for spec in self._jobs.values() for part in spec.groups for key in part.keys}
        if not self._storing <= keys:
            raise InternalError(f"keys {self._storing - keys} are noted as being stored, and no store has them")
        statistics = self._tier.statistics()
        if not self._jobs and statistics.storing_blocks:
            raise InternalError(f"{statistics.storing_blocks} blocks are being stored without a store")

    def _put_off(self, deferred: DeferredStore) -> None:
        request = deferred.request
        if request.tables:
            request.offered_chunks = min(request.offered_chunks, deferred.first)

    def _grant_prefix(self, g: int, deferred: DeferredStore) -> tuple[list[int], list[int], int]:
        """Of a group that needs every block: the chunks to store with their host blocks, and how many leading chunks
        the tier has or will have.

        A chunk is stored only where the one before it is held too: otherwise no lookup would ever reach it.
        """
        keys = deferred.request.keys[g]
        table = deferred.tables[g]
        first, end = deferred.first, min(deferred.end, self._num_chunks(table))
        if first and not self._holds(keys[first - 1]):
            first = 0  # evicted meanwhile: the GPU cache still has all of the prefix
        without_slot = (table[first * self._k : end * self._k] < 0).nonzero()[0]
        if len(without_slot):
            end = first + int(without_slot[0]) // self._k
        first += self._tier.lookup(keys[first:end])
        if first >= end:
            return [], [], first
        wanted = self._reuse.leading(keys[first:end])
        grant = self._tier.prepare_store(wanted)
        granted = dict(zip(grant.keys, grant.blocks.tolist(), strict=True))
        if len(granted) == len(wanted):
            return list(range(first, first + len(wanted))), list(granted.values()), first + len(wanted)
        held = 0
        while held < len(wanted) and (wanted[held] in granted or self._holds(wanted[held])):
            held += 1
        if unreachable := [key for key in wanted[held:] if key in granted]:
            self._tier.fail_store(unreachable)
        stored = [first + i for i, key in enumerate(wanted[:held]) if key in granted]
        return stored, [granted[keys[c]] for c in stored], first + held

    def _grant_any(self, g: int, needed: int, deferred: DeferredStore) -> tuple[list[int], list[int]]:
        """Of a group that needs its last blocks: the chunks to store, with their host blocks.

        Where the prefix was cached or loaded, only its last `needed` blocks are there: older slots hold anything.
        """
        k, keys, table = self._k, deferred.request.keys[g], deferred.tables[g]
        first = max(deferred.first, -(-max(0, deferred.base_blocks - needed) // k))
        end = min(deferred.end, self._num_chunks(table))
        if first >= end:
            return [], []
        lowest: IndexArray = table[first * k : end * k].reshape(-1, k).min(axis=1)
        chunks = [first + c for c, slot in enumerate(lowest.tolist()) if slot >= 0]
        wanted = [keys[c] for c in chunks if self._reuse.lets(keys[c])]
        if not wanted:
            return [], []
        grant = self._tier.prepare_store(wanted)
        granted = dict(zip(grant.keys, grant.blocks.tolist(), strict=True))
        stored = [c for c in chunks if keys[c] in granted]
        return stored, [granted[keys[c]] for c in stored]

    def _holds(self, key: Hashable) -> bool:
        return key in self._storing or self._tier.lookup((key,)) == 1

    def _num_chunks(self, table: IndexArray) -> int:
        return len(table) // self._k

    def _part(self, g: int, deferred: DeferredStore, run: range, run_blocks: list[int]) -> GroupBlocks:
        import numpy as np

        blocks = np.array(run_blocks, dtype=np.int64)
        blocks.flags.writeable = False
        keys = tuple(deferred.request.keys[g][run.start : run.stop])
        return GroupBlocks(
            g, keys, blocks, deferred.tables[g][run.start * self._k : run.stop * self._k], run.start * self._k
        )


def _runs(chunks: Sequence[int], blocks: Sequence[int]) -> Iterator[tuple[range, list[int]]]:
    """The chunks, which rise, as runs without a gap, each with its blocks."""
    start = 0
    for i in range(1, len(chunks) + 1):
        if i == len(chunks) or chunks[i] != chunks[i - 1] + 1:
            yield range(chunks[start], chunks[i - 1] + 1), list(blocks[start:i])
            start = i
