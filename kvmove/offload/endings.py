"""How jobs end: what the last rank's report, a lost rank, an abort or a reset means for requests, keys and slots."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kvmove.errors import InternalError, Refused
from kvmove.offload.loads import LoadBook, LoadJob
from kvmove.offload.outcomes import OutcomeBuilder
from kvmove.offload.ranks import RankBoard
from kvmove.offload.records import FailedLoad, FailedStore, JobResult, Outcome, Released
from kvmove.offload.requests import Request, RequestState
from kvmove.offload.stores import StoreBook
from kvmove.records import JobKind, Lane, Result


class Endings:
    """Takes jobs to their end, each once, and collects what the engine has to be told.

    Args:
        board: which rank has reported what.
        loads: the loads under way.
        stores: the stores under way.
        blocks_per_chunk: blocks that a host block holds.
        block_tokens: tokens of a block.
    """

    def __init__(
        self, board: RankBoard, loads: LoadBook, stores: StoreBook, *, blocks_per_chunk: int, block_tokens: int
    ) -> None:
        self._board = board
        self._loads = loads
        self._stores = stores
        self._k = blocks_per_chunk
        self._block_tokens = block_tokens
        self._outcome = OutcomeBuilder()

    def report(self, results: Sequence[JobResult]) -> Outcome:
        """Take in results of any ranks; all of them are looked at before one counts.

        Raises:
            Refused: a result is of no job under way, of a rank that there is not, or comes twice.
        """
        by_rank: dict[int, list[Result]] = {}
        seen: set[tuple[int, int]] = set()
        for result in results:
            if result.rank in self._board.lost_ranks:
                continue
            if not self._board.awaits(result.job, result.rank) or (result.job, result.rank) in seen:
                raise Refused(
                    f"on_results: rank {result.rank} of {self._board.num_ranks} reports job {result.job}, which is not "
                    "expected of it (any more); each rank reports each job of a plan once"
                )
            seen.add((result.job, result.rank))
            by_rank.setdefault(result.rank, []).append(self._as_ranks_report(result))
        for rank, given in by_rank.items():
            self._end(self._board.report(rank, given))
        return self._outcome.take()

    def lost(self, rank: int, error: str, requests: Iterable[Request]) -> Outcome:
        """Give a rank up: every job that it has not reported has failed there, and its GPU's cache is lost.

        Raises:
            Refused: there is no such rank.
        """
        self._end(self._board.lost(rank, error))
        self._forsake(requests)
        return self._outcome.take()

    def leave(self, request: Request) -> bool:
        """The request lets go of its slots, and of the load that it waits for; whether no load writes the slots now."""
        if request.joined_job is not None:
            joined = self._loads.get(request.joined_job)
            if joined is not None:
                joined.joined.pop(request.name, None)
        self._outcome.forget(request.name)
        under_way = [load for job in request.loads if (load := self._loads.get(job)) is not None]
        for load in under_way:
            self._release_joined(load, self._loads.abandon(load), f"the load of {request.name} was given up")
        request.state, request.joined_job = RequestState.ACTIVE, None
        request.lose_slots()
        return not under_way

    def withdraw(self, load: LoadJob) -> None:
        """An admitted load leaves the open step; its request is as it was before."""
        joined = self._loads.withdraw(load)
        if not load.is_sync:
            load.request.state = RequestState.ACTIVE
        self._release_joined(load, joined, f"the load of {load.spec.request} was not started")

    def withdraw_abandoned(self, load: LoadJob) -> None:
        """An admitted load leaves the open step, after its request did: nothing will write its slots."""
        self._loads.withdraw(load)
        self._outcome.freed.append(load.spec.request)

    def reset(self, requests: Iterable[Request]) -> None:
        """Store nothing of what was computed so far, nor of what is computed from it.

        Loads under way go on. Nobody joins them any more: with the tier cleared, every lookup of their keys misses.
        """
        self._stores.forget_storing()
        self._forsake(requests)

    def _forsake(self, requests: Iterable[Request]) -> None:
        """Store nothing of what is in slots now: nor of what is computed from it, while the requests keep these."""
        self._stores.drop_all()
        for request in requests:
            request.is_stale = bool(request.tables)

    def _as_ranks_report(self, result: JobResult) -> Result:
        load = self._loads.get(result.job)
        kind, lane = (JobKind.STORE, Lane.BULK) if load is None else (JobKind.LOAD, load.spec.lane)
        return Result(
            job=result.job, kind=kind, path="none", lane=lane, blocks=0, bytes=0, elapsed_ns=None, error=result.error
        )

    def _end(self, ended: Iterable[Result]) -> None:
        for result in ended:
            if result.kind is JobKind.STORE:
                spec = self._stores.end(result.job, failed=result.error is not None)
                if result.error is not None:
                    self._outcome.failed_stores.append(FailedStore(result.job, spec.request, result.error))
                continue
            load = self._loads.get(result.job)
            if load is None:
                raise InternalError(f"job {result.job} ended, which is no load under way")
            if load.is_sync and result.error is not None:
                self._fail_sync(load, result.error)
            # With a rank lost, the blocks may well be good, and nothing is loaded before the rank was replaced.
            joined = self._loads.end(load, discard=result.error is not None and self._board.is_whole)
            if load.is_abandoned:
                self._outcome.freed.append(load.spec.request)
            elif not load.is_sync:
                self._release(load, result.error)
            self._release_joined(load, joined, result.error)

    def _fail_sync(self, load: LoadJob, error: str) -> None:
        """Discard what depends on the load: computed tokens, deferred stores; and name who has to compute again."""
        job, blocks = load.spec.job, load.first_blocks
        self._stores.drop(job)
        for sharer in load.sharers.values():
            if job in sharer.tainted_by:
                sharer.rewind(blocks, self._k, self._block_tokens)
        names = tuple(dict.fromkeys((load.spec.request, *load.sharers)))
        tokens = blocks * self._block_tokens
        self._outcome.failed_loads.append(FailedLoad(job, load.spec.request, names, tokens, load.spec.groups, error))

    def _release(self, load: LoadJob, error: str | None) -> None:
        """The parked request may go on: with what was loaded, or without."""
        request = load.request
        request.state = RequestState.ACTIVE
        # A sync load that failed meanwhile may have rewound blocks that lie before the loaded ones.
        tokens = min(load.first_blocks, request.base_blocks) * self._block_tokens
        if error is None and request.base_blocks >= load.first_blocks:
            tokens += load.spec.tokens
        else:
            request.rewind(load.first_blocks, self._k, self._block_tokens)
        request.computed_tokens = tokens
        self._outcome.released.append(Released(request.name, load.spec.job, tokens, error=error))

    def _release_joined(self, load: LoadJob, joined: Iterable[Request], error: str | None) -> None:
        for request in joined:
            request.state, request.joined_job = RequestState.ACTIVE, None
            self._outcome.released.append(Released(request.name, load.spec.job, 0, joined=True, error=error))
