"""The copies of one vLLM worker, over a `Mover`. Runs without vLLM; `spec` gives it vLLM's interface."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvmove.errors import MoveFailed, MoverBusy, MoverClosed, SyncLoadFailed
from kvmove.integrations.vllm.caches import DescribedCaches
from kvmove.integrations.vllm.parts import GpuBlocks, parts_of
from kvmove.move import HostPool, Mover, Ticket, load_batch, store_batch
from kvmove.move.queues import Queues
from kvmove.records import JobKind, Lane, Load, Part, Result, Store

# How long to let the device work before looking again for room among the indices of jobs in flight.
_BUSY_SLEEP_S = 50e-6


@dataclass(frozen=True, slots=True)
class Ended:
    """How a job ended. `error` is None, or a sentence that says what went wrong; `seconds` is on the device."""

    job: int
    kind: JobKind
    lane: Lane
    num_bytes: int
    seconds: float | None
    error: str | None = None


class Transfers:
    """Loads and stores of vLLM's chunks. Nothing here blocks the host while all goes well.

    A step of vLLM's worker, in this order:

    1. `store` for what the step before computed; `load` for this step.
    2. `wait` for the step's sync loads, and for stores whose blocks the step rewrites: the current stream waits.
       All expedited loads of a step are launched together here: vLLM submits them one by one.
    3. The forward pass, and `finished`.

    A chunk whose store failed holds no key's bytes. vLLM cannot take a key back, so the chunk is remembered, and a load
    of it fails, until another store has written it.

    For one thread at a time.
    """

    def __init__(
        self, caches: DescribedCaches, pool: HostPool, *, path: str | None = None, queues: Queues | None = None
    ) -> None:
        """Prepare to move chunks between `caches` and `pool`, which is closed with this.

        Raises:
            Refused: pool and caches do not fit together, or the named path does not work here.
            PinningError: memory for indices could not be pinned.
        """
        slots = caches.layout.slots_together
        # vLLM runs ahead of the device by a step or two, and a block may be stored, freed, loaded and stored in that
        # time: enough room that a submission never has to wait for it.
        self._mover = Mover(caches.layout, pool, path=path, index_capacity=max(8 * slots, 1 << 16), queues=queues)
        self._caches, self._pool = caches, pool
        self._held: list[Load] = []  # expedited, not launched yet
        self._tickets: dict[int, Ticket] = {}  # of stores and expedited loads that have not been reported
        self._bulk: dict[int, tuple[Part, ...]] = {}  # loads that have not been reported
        self._stored: dict[int, NDArray[np.int64]] = {}  # chunks of stores that have not been reported
        self._bad_chunks: set[int] = set()
        self._sync_errors: dict[int, str] = {}  # of sync loads that failed before they were launched
        self._ended: list[Ended] = []

    @property
    def bad_chunks(self) -> frozenset[int]:
        """Chunks that no load may read: the last store of each failed."""
        return frozenset(self._bad_chunks)

    def store(self, job: int, blocks: GpuBlocks, chunk_ids: NDArray[np.int32]) -> None:
        """Keep GPU blocks in host chunks, after what the current stream holds.

        Raises:
            Refused, RecordError: the numbers are wrong; nothing moved.
        """
        self._launch_held()
        parts = parts_of(f"store {job}", blocks, chunk_ids, self._caches, written=False)
        if not parts:
            self._ended.append(Ended(job, JobKind.STORE, Lane.BULK, 0, None))
            return
        chunks = _chunks(parts)
        try:
            self._tickets[job] = self._submit(lambda: store_batch(self._mover, [Store.of_parts(job, parts)]))
        except MoverClosed as error:
            self._bad_chunks.update(chunks.tolist())
            self._ended.append(Ended(job, JobKind.STORE, Lane.BULK, 0, None, str(error)))
            return
        self._stored[job] = chunks
        # Its loads come after it; should it fail, they are told so below and the chunk is bad again.
        self._bad_chunks.difference_update(chunks.tolist())

    def load(self, job: int, blocks: GpuBlocks, chunk_ids: NDArray[np.int32], *, expedited: bool) -> None:
        """Bring host chunks into GPU blocks, after what the current stream holds.

        Args:
            expedited: the step waits for it: launched with the others of the step, at the latest in `wait`.

        Raises:
            Refused, RecordError: the numbers are wrong; nothing moved.
        """
        lane = Lane.EXPEDITED if expedited else Lane.BULK
        parts = parts_of(f"load {job}", blocks, chunk_ids, self._caches, written=True)
        if not parts:
            self._ended.append(Ended(job, JobKind.LOAD, lane, 0, None))
            return
        bad = self._bad_chunks.intersection(_chunks(parts).tolist()) if self._bad_chunks else None
        if bad:
            self._fail_load(job, lane, f"the store of host chunk {min(bad)} had failed")
            return
        load = Load.of_parts(job, parts, lane)
        if expedited:
            self._held.append(load)
            return
        self._launch_held()
        try:
            self._submit(lambda: load_batch(self._mover, [load]))
        except MoverClosed as error:
            self._fail_load(job, lane, str(error))
            return
        self._bulk[job] = load.parts

    def spoil(self, chunk_ids: NDArray[np.int32]) -> None:
        """Let no load read these chunks until a store has written them: what they were to hold is worth nothing."""
        self._bad_chunks.update(chunk_ids.tolist())

    def wait(self, jobs: Iterable[int]) -> None:
        """Let the current stream wait for these jobs. Does not block the host. Jobs that have ended are passed over.

        Raises:
            SyncLoadFailed: sync loads among them are known to have failed. `finished` reports them too.
        """
        self._launch_held()
        failed: dict[int, str] = {}
        errors: dict[int, str | None] = {}  # by the ticket's identity: the sync loads of a step have one together
        for job in sorted(jobs):
            if job in self._sync_errors:
                failed[job] = self._sync_errors.pop(job)
            elif job in self._bulk:
                for part in self._bulk[job]:
                    self._mover.wait_for_slots(part.slots, part.group)
            elif (ticket := self._tickets.get(job)) is not None:
                if id(ticket) not in errors:
                    errors[id(ticket)] = _wait(ticket)
                # A store's failure is no reason to stop: nothing reads the blocks that it was to read.
                if (error := errors[id(ticket)]) is not None and job not in self._stored:
                    failed[job] = error
        if failed:
            raise SyncLoadFailed(
                f"sync load failed: {'; '.join(dict.fromkeys(failed.values()))}", jobs=tuple(failed), requests=()
            )

    def finished(self) -> list[Ended]:
        """Every job that has ended since the last call, each exactly once. Does not block."""
        self._launch_held()
        self._collect()
        ended, self._ended = self._ended, []
        return ended

    def shutdown(self) -> None:
        """Block until everything in flight has ended, and give the host memory back. Harmless twice."""
        self._held.clear()
        self._mover.close()
        self._pool.close()

    def _launch_held(self) -> None:
        if not self._held:
            return
        loads, self._held = self._held, []
        try:
            ticket = self._submit(lambda: load_batch(self._mover, loads))
        except MoverClosed as error:
            for load in loads:
                self._fail_load(load.job, Lane.EXPEDITED, str(error))
            return
        self._tickets.update((load.job, ticket) for load in loads)

    def _submit(self, submit: Callable[[], Ticket]) -> Ticket:
        while True:
            try:
                return submit()
            except MoverBusy:
                self._collect()
                time.sleep(_BUSY_SLEEP_S)

    def _fail_load(self, job: int, lane: Lane, why: str) -> None:
        if lane is Lane.EXPEDITED:
            self._sync_errors[job] = f"job {job}: {why}"
        self._ended.append(Ended(job, JobKind.LOAD, lane, 0, None, why))

    def _collect(self) -> None:
        for result in self._mover.finished():
            self._tickets.pop(result.job, None)
            self._bulk.pop(result.job, None)
            chunks = self._stored.pop(result.job, None)
            if chunks is not None and result.error is not None:
                self._bad_chunks.update(chunks.tolist())
            self._ended.append(_ended(result))


def _wait(ticket: Ticket) -> str | None:
    try:
        ticket.wait()
    except MoveFailed as error:
        return str(error)
    return None


def _chunks(parts: Sequence[Part]) -> NDArray[np.int64]:
    return np.concatenate([part.blocks for part in parts])


def _ended(result: Result) -> Ended:
    seconds = None if result.elapsed_ns is None else result.elapsed_ns * 1e-9
    return Ended(result.job, result.kind, result.lane, result.bytes, seconds, result.error)
