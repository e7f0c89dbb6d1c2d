"""A step's plan, as one rank's worker does it, and how its jobs ended, as the scheduler is told."""

from __future__ import annotations

from kvmove.errors import Refused
from kvmove.offload.records import JobResult, OffloadPlan
from kvmove.offload.worker import OffloadWorker
from kvmove.records import JobKind, Lane


def start_step(worker: OffloadWorker, plan: OffloadPlan) -> None:
    """Start everything in the plan, and let the current stream wait for what the forward pass needs.

    Whatever it raises, every job of the plan is reported by `job_results`, each once.

    Raises:
        SyncLoadFailed: a sync load is known to have failed; the rest of the plan goes on.
        Refused: a job names slots or blocks that there are not, as from a stale block table; it moved nothing, and
            is reported as failed. The rest of the plan goes on.
    """
    try:
        start_stores(worker, plan)
    finally:
        start_loads(worker, plan)


def start_stores(worker: OffloadWorker, plan: OffloadPlan) -> None:
    """Start the stores, and let the current stream wait for those whose slots this step writes.

    Call it before anything of this step writes a slot.

    Raises:
        Refused: as for `start_step`; stores of the same plan are refused together.
    """
    stores = [s.store() for s in plan.stores]
    try:
        worker.submit_stores(stores)
    except Refused as error:
        worker.fail_jobs([(s.job, JobKind.STORE, Lane.BULK) for s in stores], str(error))
        raise
    finally:
        worker.wait(plan.flushes)


def start_loads(worker: OffloadWorker, plan: OffloadPlan) -> None:
    """Start the loads, and let the current stream wait for the sync ones.

    Raises:
        SyncLoadFailed, Refused: as for `start_step`; loads of the same plan are refused together.
    """
    specs = [*plan.sync_loads, *plan.async_loads]
    try:
        worker.submit_loads([s.load() for s in specs], {s.job: s.request for s in specs})
    except Refused as error:
        worker.fail_jobs([(s.job, JobKind.LOAD, s.lane) for s in specs], str(error))
        raise
    worker.wait([s.job for s in plan.sync_loads])


def job_results(worker: OffloadWorker, rank: int) -> list[JobResult]:
    """The jobs of this rank that have ended since the last call, each exactly once. Does not block."""
    return [JobResult(r.job, rank, r.error) for r in worker.finished()]
