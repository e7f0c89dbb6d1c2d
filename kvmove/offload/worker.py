"""The worker of one rank: does what a step's plan says over the mover, and says how each job ended."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING

from kvmove.errors import MoveFailed, MoverBusy, MoverClosed, Refused, SyncLoadFailed
from kvmove.move import Mover, Ticket, load_batch, store_batch
from kvmove.offload.ranks import failed_result
from kvmove.offload.worker_jobs import Failures, OpenJob, OpenJobs
from kvmove.records import JobKind, Lane, Load, Part, Result, Store

if TYPE_CHECKING:
    import torch

    from kvmove.transfers import IndexLike

    # Host blocks or slots of a cache with one group and one block a chunk, or the parts of any other.
    Places = IndexLike


class OffloadWorker:
    """Loads and stores of one rank, over a `Mover`.

    The life of a step, as the engine's worker goes through it:

    1. `wait_for_slots` for slots that the step rewrites although a store may still read them.
    2. `submit_stores`, then `submit_loads`: the copies are queued, nothing blocks. All expedited loads of one call
       share a launch. A call for one job: `submit_store`, `submit_load`.
    3. `wait(jobs)` with the step's sync loads: the current stream waits for them, the host does not.
    4. The forward pass.
    5. At the output sync that the step has anyway: `check()`. It raises `SyncLoadFailed` where a sync load of the
       step failed, before a token is published.
    6. `finished()`: every job that has ended, whatever its lane and outcome, each exactly once.

    Failures:

    - A sync (expedited) load raises `SyncLoadFailed` as early as it is known: when it is submitted, in `wait` (with
      `strict`, always there), or in `check`. The error names every job and request that failed. `finished()` reports
      the jobs as failed too, so that a scheduler learns of them in one way.
    - Any other load, and a store, never raises for a reason of its own: `finished()` reports its failure.
    - A worker whose mover is closed, by `shutdown` or by a CUDA error, is dead: it fails its jobs, those in flight
      and those that are still submitted, and raises for sync loads. It never leaves a job unreported.

    For one thread at a time, which need not be the engine's. "The current stream" is that thread's CUDA stream.
    """

    def __init__(self, mover: Mover, *, strict: bool = False) -> None:
        """Use `mover`, which nobody else submits to.

        Args:
            strict: let `wait` block the host until the sync loads are done, so that their failure shows before the
                forward pass instead of after it.
        """
        self.mover = mover
        self._strict = strict
        self._open = OpenJobs()
        self._failed: list[Result] = []  # of jobs that the mover never took
        self._unchecked: list[int] = []  # sync loads since the last check
        self._dead: str | None = None  # why

    @property
    def jobs(self) -> frozenset[int]:
        """Jobs that `finished()` has yet to report."""
        return self._open.ids()

    @property
    def is_dead(self) -> bool:
        """Whether every job submitted from now on fails: after `shutdown`, or once the mover refused to go on."""
        return self._dead is not None

    def submit_load(
        self, job: int, src: Places | Sequence[Part], dst: Places | None = None, expedited: bool = False,
        *, request: str | None = None,
    ) -> None:  # fmt: skip
        """Bring host block `src[i]` into slot `dst[i]`.

        Args:
            job: an id that no job in flight has.
            src: host blocks; or the `Part`s of a load of several groups or chunks, without `dst`.
            dst: slots, as many.
            expedited: the step waits for it (a sync load); otherwise it completes between steps.
            request: what to name when it fails.

        Raises:
            RecordError, Refused: the arguments are wrong; nothing moved.
            SyncLoadFailed: it is expedited and could not be launched.
        """
        lane = Lane.EXPEDITED if expedited else Lane.BULK
        load = Load.of_parts(job, _parts(src), lane) if dst is None else Load(job, _indices(src), dst, lane)
        self.submit_loads([load], {} if request is None else {job: request})

    def submit_store(self, job: int, src: Places | Sequence[Part], dst: Places | None = None) -> None:
        """Keep slot `src[i]` in host block `dst[i]`; or do it for the `Part`s in `src`, without `dst`.

        Raises:
            RecordError, Refused: the arguments are wrong; nothing moved.
        """
        self.submit_stores([Store.of_parts(job, _parts(src)) if dst is None else Store(job, _indices(src), dst)])

    def submit_loads(
        self, loads: Sequence[Load], requests: Mapping[int, str] | None = None,
        *, after: torch.cuda.Event | None = None,
    ) -> None:  # fmt: skip
        """Start these loads; those in the expedited lane go together.

        Args:
            requests: the request of each job, for the message when it fails; jobs may be missing.
            after: start after this event instead of after the current stream; see `kvmove.load_batch`.

        Raises:
            Refused: a load is not one that the cache can take, or its job id is in use; nothing moved.
            SyncLoadFailed: expedited loads could not be launched. Those in the bulk lane go on.
        """
        if not loads:
            return
        self._refuse_open_jobs("submit_loads", loads)
        opened = [OpenJob(x, JobKind.LOAD, x.lane, (requests or {}).get(x.job)) for x in loads]
        ticket, why = self._submit(partial(load_batch, self.mover, loads, after=after, strict=self._strict))
        self._take(opened, ticket, why)
        sync = [x.job for x in loads if x.lane is Lane.EXPEDITED]
        self._unchecked += sync
        if why is not None:
            failures = Failures()
            failures.add(sync, why)
            self._raise_if_any(failures)

    def submit_stores(self, stores: Sequence[Store], *, after: torch.cuda.Event | None = None) -> None:
        """Start these stores. One that cannot be launched is reported by `finished()`.

        Raises:
            Refused: a store is not one that the cache can take, or its job id is in use; nothing moved.
        """
        if not stores:
            return
        self._refuse_open_jobs("submit_stores", stores)
        ticket, why = self._submit(partial(store_batch, self.mover, stores, after=after))
        self._take([OpenJob(x, JobKind.STORE, Lane.BULK, None) for x in stores], ticket, why)

    def wait(self, jobs: Iterable[int]) -> None:
        """Let the current stream wait for these jobs: what is launched next sees loads, and may rewrite stored slots.

        Does not block the host, unless the worker is strict and a job is a sync load. Jobs that have ended, or were
        never submitted here, are passed over.

        Raises:
            SyncLoadFailed: a sync load among them is known to have failed.
        """
        waited: list[Ticket] = []
        failures = Failures()
        for job in jobs:
            known = self._open.get(job)
            if known is None:
                failures.add([job], self._open.failed_unchecked.get(job))
            elif known.ticket is None:
                failures.add([job] if known.is_sync else [], known.error)
            elif known.lane is Lane.BULK:
                # A store too: the ticket is one for the whole call, and stops waiting at the first job that failed.
                for part in known.what.parts:
                    self.mover.wait_for_slots(part.slots, part.group)
            elif known.ticket not in waited:
                waited.append(known.ticket)
                try:
                    known.ticket.wait()
                except MoveFailed as error:
                    failures.add(self._open.sync_of(known.ticket), str(error))
        self._raise_if_any(failures)

    def wait_for_slots(self, slots: Places, group: int = 0) -> None:
        """Let the current stream wait for every job that reads or writes these slots, before it rewrites them.

        Raises:
            Refused: there is no such group or slot.
        """
        self.mover.wait_for_slots(slots, group)

    def check(self) -> None:
        """Say whether the sync loads submitted since the last call arrived. Call it at the step's output sync.

        By then their copies are done and this returns at once; called earlier, it blocks the host until they are.

        Raises:
            SyncLoadFailed: some failed: publish nothing of this step for their requests. Call it on every rank, and
                let all ranks agree, before a token is published.
        """
        jobs, self._unchecked = self._unchecked, []
        checked: list[Ticket] = []
        failures = Failures()
        for job in jobs:
            known = self._open.get(job)
            if known is None:  # `finished()` reported it before it was checked
                failures.add([job], self._open.failed_unchecked.get(job))
            elif known.ticket is None:
                failures.add([job], known.error)
            elif known.ticket not in checked:
                checked.append(known.ticket)
                try:
                    known.ticket.check()
                except MoveFailed as error:
                    failures.add(self._open.sync_of(known.ticket), str(error))
        self._raise_if_any(failures)

    def finished(self) -> list[Result]:
        """Every job that has ended since the last call, each exactly once, after its event was observed.

        Does not block. Goes on working on a dead worker.
        """
        results = self._failed + self.mover.finished()
        self._failed = []
        unchecked = set(self._unchecked)
        for result in results:
            self._open.close(result, remember=result.job in unchecked)
        return results

    def shutdown(self) -> None:
        """Block until everything in flight has ended, and take no more. `finished()` still reports. Harmless twice."""
        self._dead = self._dead or "it was shut down"
        self.mover.close()

    def fail_jobs(self, jobs: Sequence[tuple[int, JobKind, Lane]], why: str) -> None:
        """Let `finished()` report these jobs, which were never submitted, as failed: whoever waits for them is told."""
        self._failed += [failed_result(job, kind, lane, why) for job, kind, lane in jobs]

    def _submit(self, submit: Callable[[], Ticket]) -> tuple[Ticket | None, str | None]:
        """The ticket of a call to the mover, or why there is none."""
        if self._dead is not None:
            return None, f"this worker is dead: {self._dead}"
        try:
            return submit(), None
        except MoverClosed as error:
            self._dead = str(error)
            return None, f"this worker is dead: {error}"
        except MoverBusy as error:
            return None, str(error)

    def _take(self, opened: Sequence[OpenJob], ticket: Ticket | None, why: str | None) -> None:
        for known in opened:
            known.ticket, known.error = ticket, why
            self._open.add(known)
            if why is not None:
                self._failed.append(failed_result(known.job, known.kind, known.lane, why))

    def _raise_if_any(self, failures: Failures) -> None:
        """Raise for these sync loads. Having raised, `check` is not to raise for them again."""
        if not failures.jobs:
            return
        self._unchecked = [job for job in self._unchecked if job not in failures.jobs]
        named = [(job, self._open.forget_failure(job)) for job in failures.jobs]
        what = ", ".join(f"job {job}" + (f" of request {request}" if request else "") for job, request in named)
        raise SyncLoadFailed(
            f"sync load failed: {what}: {'; '.join(failures.reasons)}; "
            "publish no token of this step for these requests, and compute them again",
            jobs=tuple(failures.jobs),
            requests=[request for _, request in named if request],
        )

    def _refuse_open_jobs(self, call: str, jobs: Sequence[Load | Store]) -> None:
        for x in jobs:
            if self._open.get(x.job) is not None:
                raise Refused(f"{call}: job {x.job} is in flight; its id is free once finished() has reported it")

    def __enter__(self) -> OffloadWorker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()


def _parts(src: Places | Sequence[Part]) -> list[Part]:
    parts = [x for x in src if isinstance(x, Part)]
    if len(parts) != len(src):
        raise Refused("a job without `dst` is made of Parts; pass flat `src` and `dst`, or a sequence of Part")
    return parts


def _indices(src: Places | Sequence[Part]) -> Places:
    return src  # type: ignore[return-value]  # a Part among them is refused by the record
