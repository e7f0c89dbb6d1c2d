"""Whether what the parts of an offload scheduler hold of each request and job agrees; for tests and debugging."""

from __future__ import annotations

from collections.abc import Iterable

from kvmove.errors import InternalError
from kvmove.offload.loads import LoadBook
from kvmove.offload.ranks import RankBoard
from kvmove.offload.requests import Request, RequestState
from kvmove.offload.stores import StoreBook


def check_requests(requests: Iterable[Request], loads: LoadBook) -> None:
    """Raise `InternalError` where a request's state does not follow from the loads under way."""
    for request in requests:
        own = [loads.get(job) for job in request.loads]
        is_parked = any(load is not None and not load.is_sync for load in own)
        if None in own or is_parked != (request.state is RequestState.PARKED):
            raise InternalError(f"{request.name} is {request.state}, and its loads are {request.loads}")
        joined = None if request.joined_job is None else loads.get(request.joined_job)
        is_joined = joined is not None and joined.joined.get(request.name) is request
        if is_joined != (request.state is RequestState.JOINED):
            raise InternalError(f"{request.name} is {request.state}, and joined load {request.joined_job}")
        for job in request.tainted_by:
            load = loads.get(job)
            if load is None or load.sharers.get(request.name) is not request:
                raise InternalError(f"{request.name} depends on sync load {job}, which does not know it")


def check_jobs(board: RankBoard, loads: LoadBook, stores: StoreBook) -> None:
    """Raise `InternalError` where a job is under way that no rank is to report, or the other way round."""
    for part in (board, loads, stores):
        part.check_integrity()
    under_way = len(loads) + len(stores) - len(loads.unsubmitted())
    if len(board.open_jobs) != under_way or any(
        loads.get(j) is None and stores.get(j) is None for j in board.open_jobs
    ):
        raise InternalError(f"{under_way} jobs are under way, ranks are to report {sorted(board.open_jobs)}")
