"""The mover: loads and stores of whole blocks, checked before, ordered during, and accounted for after."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from types import TracebackType

import numpy as np
import torch
from numpy.typing import ArrayLike

from kvmove.costs import Profile
from kvmove.errors import MoverClosed, Refused
from kvmove.move.checks import UniqueCheck, as_jobs, refuse_bad_jobs, refuse_bad_parts, refuse_out_of_range
from kvmove.move.flight import Flight
from kvmove.move.hazards import Hazards
from kvmove.move.hostpool import HostPool
from kvmove.move.identity import identity
from kvmove.move.indices import IndexRing
from kvmove.move.launching import Launcher
from kvmove.move.layers import LayerPieces
from kvmove.move.layout import CacheLayout
from kvmove.move.paths import Paths
from kvmove.move.queues import Queue, Queues, queues_for
from kvmove.move.submission import Submission
from kvmove.move.ticket import Ticket
from kvmove.records import JobKind, Lane, Load, Result, Store
from kvmove.transfers import lane_of

_QUEUE_OF = {Lane.EXPEDITED: Queue.EXPEDITED, Lane.BULK: Queue.BULK}


class Mover:
    """Moves blocks between one cache and one host pool.

    1. Built: streams, index ring and kernels exist.
    2. Open: `kvmove.load_batch` and `kvmove.store_batch` submit jobs; `finished()` reports each exactly once.
    3. Closed, by `close()` or by a CUDA error that cannot be recovered from: submitting raises `MoverClosed`;
       `finished()` still reports what was in flight.

    May be called from several threads. "The engine's stream" is the calling thread's current CUDA stream.
    """

    def __init__(
        self,
        layout: CacheLayout,
        pool: HostPool,
        *,
        path: str | None = None,
        profile: Profile | None = None,
        index_capacity: int | None = None,
        queues: Queues | None = None,
    ) -> None:
        """Prepare to move blocks between `layout` and `pool`.

        Args:
            path: `direct`, `tma`, `staged`, `engine` or `reference`, for every job. None chooses for each by a measured
                table, among the paths that work on this machine.
            profile: what `kvmove calibrate` measured here: each job takes the path that it predicts to be the quickest,
                and results say what was predicted.
            index_capacity: indices (two a block) of all jobs in flight together. By default enough for all slots of
                the cache twice, or once where twice would be more than a million; at least 65,536.
            queues: where the copies run; None takes the device's own. Tests pass slow ones.

        Raises:
            Refused: pool and layout do not fit together, the named path does not work here, or the profile is of
                another machine, driver or version.
            PinningError: the index ring could not be pinned.
        """
        on_cuda = layout.device.type == "cuda"
        if index_capacity is not None and (type(index_capacity) is not int or index_capacity < 2):
            raise Refused(f"index_capacity is {index_capacity!r}; an int of at least 2 is needed, or None")
        if pool.block_bytes != layout.host_block_bytes:
            raise Refused(
                f"the pool's blocks have {pool.block_bytes} bytes and the layout needs {layout.host_block_bytes}; "
                "make the pool with HostPool.for_layout(layout, num_blocks)"
            )
        if on_cuda and not pool.pinned:
            raise Refused(f"the cache is on {layout.device} and the pool is not pinned; make it for that device")
        self.layout, self.pool = layout, pool
        if profile is not None:
            profile.refuse_elsewhere(**identity(layout.device))
        costs = None if profile is None else profile.model
        self._paths = Paths(layout, pool, path, costs)
        self._queues = queues or queues_for(layout.device)
        slots = layout.slots_together
        capacity = index_capacity or max(2 * slots, min(4 * slots, 1 << 20), 1 << 16)
        self._ring = IndexRing(capacity, pinned=on_cuda)
        self._flight = Flight(Hazards(slots, pool.num_blocks), self._ring, self._queues, layout.groups)
        self._launcher = Launcher(self._paths, self._flight, self._queues, layout.groups, costs)
        self._unique = UniqueCheck(layout.groups, slots, pool.num_blocks)
        self._closed: str | None = None  # why
        self._lock = threading.RLock()
        pool.hold(self)

    @property
    def path(self) -> str:
        """The name of the path that every job takes, or `auto` where it is chosen for each."""
        return self._paths.always

    def set_programs(self, lane: Lane | str, programs: int) -> None:
        """Set how many kernel programs a lane may hold at once, from the next call on. `bulk` covers stores too.

        Raises:
            Refused: not an int of at least 1.
            RecordError: there is no such lane.
        """
        if type(programs) is not int or programs < 1:
            raise Refused(f"{programs!r} programs for the {lane} lane; an int of at least 1 is needed")
        with self._lock:
            self._launcher.programs[_QUEUE_OF[lane_of(lane)]] = programs
            if lane_of(lane) is Lane.BULK:
                self._launcher.programs[Queue.STORE] = programs

    def load(
        self,
        loads: Sequence[Load],
        *,
        after: torch.cuda.Event | None,
        path: str | None,
        strict: bool,
        by_layer: bool = False,
    ) -> Ticket:
        """See `kvmove.load_batch`."""
        with self._lock:
            self._refuse_closed()
            self._refuse_capture("load_batch")
            loads = as_jobs(Load, loads)
            refuse_bad_jobs(Load, loads, self._flight.job_ids)
            refuse_bad_parts("load", loads, self.layout.groups, self.pool.ready_blocks, self.pool.num_blocks)
            self._unique.refuse_repeated_slots(loads)
            # All expedited loads go together; bulk loads apart, so that each is reported when it is done.
            urgent = [(x.job, x.parts) for x in loads if x.lane is Lane.EXPEDITED]
            urgent_path = self._paths.by_layer(path) if by_layer and urgent else path
            batches = [self._launcher.batch(Queue.EXPEDITED, tuple(urgent), urgent_path)] if urgent else []
            bulk = [((x.job, x.parts),) for x in loads if x.lane is Lane.BULK]
            batches += [self._launcher.batch(Queue.BULK, job, path) for job in bulk]
            made = self._launcher.submit(JobKind.LOAD, batches, after)
            waited = [s for s in made if s.batch.lane is Lane.EXPEDITED]
            return Ticket(self, tuple(x.job for x in loads), waited, strict=strict)

    def store(self, stores: Sequence[Store], *, after: torch.cuda.Event | None, path: str | None) -> Ticket:
        """See `kvmove.store_batch`."""
        with self._lock:
            self._refuse_closed()
            self._refuse_capture("store_batch")
            stores = as_jobs(Store, stores)
            refuse_bad_jobs(Store, stores, self._flight.job_ids)
            refuse_bad_parts("store", stores, self.layout.groups, self.pool.ready_blocks, self.pool.num_blocks)
            self._unique.refuse_repeated_places(stores)
            jobs = [((x.job, x.parts),) for x in stores]
            batches = [self._launcher.batch(Queue.STORE, job, path) for job in jobs]
            made = self._launcher.submit(JobKind.STORE, batches, after)
            return Ticket(self, tuple(x.job for x in stores), made, strict=False)

    def wait_for_slots(self, slots: ArrayLike, group: int = 0) -> None:
        """Let the current stream wait for every job in flight that reads or writes these slots of a group.

        The engine calls it before it rewrites slots that may still be stored or loaded. Does not block the host.
        Jobs of groups that lie in the same memory are waited for too.

        Raises:
            Refused: there is no such group, a slot is out of range, or the stream is being captured.
        """
        self._refuse_capture("wait_for_slots")
        given = np.asarray(slots).reshape(-1)
        if given.size and given.dtype.kind not in "iu":
            raise Refused(f"wait_for_slots: slots of dtype {given.dtype}; ints are needed")
        indices = given.astype(np.int64)
        if not 0 <= group < len(self.layout.groups):
            raise Refused(f"wait_for_slots: there is no group {group}; the cache has {len(self.layout.groups)}")
        if not len(indices):
            return
        of = self.layout.groups[group]
        refuse_out_of_range("wait_for_slots", "slot", indices, of.num_slots)
        with self._lock:
            for mark in self._flight.on_slots(indices + of.first_slot):
                self._queues.wait(mark)

    def wait_for(self, submission: Submission) -> None:
        """Let the current stream wait for the submission, unless it has ended. For tickets."""
        with self._lock:
            if submission.mark is not None:
                self._queues.wait(submission.mark)

    def wait_for_layer(self, submission: Submission, layer: int) -> None:
        """Let the current stream wait for a layer of the submission. For tickets.

        Raises:
            Refused: there is no such layer.
        """
        if not 0 <= layer < len(self.layout.tensors):
            raise Refused(f"wait_layer: there is no layer {layer!r}; the layout has {len(self.layout.tensors)} tensors")
        with self._lock:
            path = submission.batch.path
            if not isinstance(path, LayerPieces):
                self.wait_for(submission)
            elif submission.layer_marks:
                self._queues.wait(submission.layer_marks[path.piece_of(layer)])

    def observe(self, submission: Submission) -> None:
        """Block the host until the submission has ended, and take in how. For tickets."""
        with self._lock:
            self._flight.observe(submission)
            self._close_if_broken()

    def finished(self) -> list[Result]:
        """The jobs of both lanes and directions that ended since the last call, each exactly once.

        A job ends when the event after its copies was observed; its id is free again once it was returned here.
        Does not block. Works on a closed mover too.
        """
        with self._lock:
            self._flight.look()
            self._close_if_broken()
            return self._flight.collect()

    def close(self) -> None:
        """Block until everything in flight has ended, then let go of the pool. Harmless when closed already."""
        with self._lock:
            if self._closed is not None:
                return
            try:
                self._queues.drain()
            except RuntimeError as error:
                self._flight.break_off(error)
            self._flight.look()
            self._close_if_broken()
            if self._closed is None:
                self._let_go("close() was called")

    def _close_if_broken(self) -> None:
        if self._flight.broken is not None and self._closed is None:
            self._let_go(f"a CUDA error closed it: {self._flight.broken}")

    def _let_go(self, why: str) -> None:
        self._closed = why
        self._ring.close()
        self.pool.release(self)

    def _refuse_capture(self, what: str) -> None:
        if self.layout.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            raise Refused(
                f"{what} was called while the current stream is being captured into a CUDA graph; a graph would repeat "
                "the copy without its checks and its order. Call it before or after the capture, or on another stream"
            )

    def _refuse_closed(self) -> None:
        if self._closed is not None:
            raise MoverClosed(f"this mover is closed ({self._closed}); make a new one")

    def __enter__(self) -> Mover:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
