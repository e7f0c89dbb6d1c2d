"""One job, several ranks: a job of a tensor-parallel group has ended when every rank has reported it.

No torch: the scheduler's process uses it, where the results of all workers come together.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from kvmove.errors import InternalError, Refused
from kvmove.records import JobKind, Lane, Result


@dataclass(slots=True)
class _Open:
    """A job that not every rank has reported: from each rank, how it ended there."""

    kind: JobKind
    lane: Lane
    reported: dict[int, Result] = field(default_factory=dict)


class RankBoard:
    """Joins the results of `num_ranks` workers into one result for each job.

    The life of a job here:

    1. Expected: `expect` named it, before or when the ranks were told to do it.
    2. Partly reported: some ranks gave their `Result` to `report`. It may still be read or written by the others.
    3. Ended: the last rank reported, or was lost. The joined result is returned, once, and the job is forgotten.

    A job fails when it fails on any rank. Even so it ends only when *all* ranks have reported: until then another
    rank may still read its host blocks or write its slots, so nothing of it may be used again.

    A rank that was lost (its process died) moves nothing any more. It counts as having reported a failure of every
    job, open or expected later, until `replaced` says that another worker took its place.

    Args:
        num_ranks: workers that do every job, numbered from 0.

    Raises:
        Refused: there are no ranks.
    """

    def __init__(self, num_ranks: int) -> None:
        if type(num_ranks) is not int or num_ranks < 1:
            raise Refused(f"num_ranks is {num_ranks!r}; an int of at least 1 is needed")
        self._num_ranks = num_ranks
        self._open: dict[int, _Open] = {}
        self._lost: dict[int, str] = {}  # rank -> why

    @property
    def num_ranks(self) -> int:
        """Workers that do every job."""
        return self._num_ranks

    @property
    def open_jobs(self) -> frozenset[int]:
        """Jobs that not every rank has reported."""
        return frozenset(self._open)

    @property
    def is_whole(self) -> bool:
        """Whether every rank works."""
        return not self._lost

    @property
    def lost_ranks(self) -> dict[int, str]:
        """Ranks that do not work, with the reason of each."""
        return dict(self._lost)

    def expect(self, job: int, kind: JobKind, lane: Lane = Lane.BULK) -> Result | None:
        """Take note of a job that every rank is told to do; with no rank left to do it, return its failure at once.

        Raises:
            Refused: the job is expected already.
        """
        if job in self._open:
            raise Refused(f"expect: job {job} is open already; a job id can be used again once its result was returned")
        self._open[job] = _Open(kind, lane)
        return self._ended(job)

    def awaits(self, job: int, rank: int) -> bool:
        """Whether the rank is still to report the job."""
        known = self._open.get(job)
        return (
            known is not None and 0 <= rank < self._num_ranks and rank not in known.reported.keys() | self._lost.keys()
        )

    def report(self, rank: int, results: Iterable[Result]) -> list[Result]:
        """Take a rank's results and return the joined result of every job that they complete, in that order.

        What a lost rank still had to say is passed over.

        Raises:
            Refused: there is no such rank, or it reports a job that is not expected of it. Nothing is taken in.
        """
        self._require_rank("report", rank)
        if rank in self._lost:
            return []
        given = list(results)
        seen: set[int] = set()
        for result in given:
            known = self._open.get(result.job)
            if known is None or rank in known.reported or result.job in seen:
                raise Refused(f"report: rank {rank} reports job {result.job}, which is not expected of it (any more)")
            if result.kind is not known.kind:
                raise Refused(f"report: rank {rank} reports job {result.job} as a {result.kind}; it is a {known.kind}")
            seen.add(result.job)
        for result in given:
            self._open[result.job].reported[rank] = result
        return [joined for r in given if (joined := self._ended(r.job)) is not None]

    def lost(self, rank: int, why: str) -> list[Result]:
        """Give a rank up, and return the failure of every job that waited for it alone, by job id.

        Call it once the rank's process has ended: as long as it lives, its copies may go on.

        Raises:
            Refused: there is no such rank.
        """
        self._require_rank("lost", rank)
        self._lost.setdefault(rank, why)
        for job, known in self._open.items():
            known.reported.setdefault(rank, self._failure(job, known, why))
        return [joined for job in sorted(self._open) if (joined := self._ended(job)) is not None]

    def replaced(self, rank: int) -> None:
        """Let another worker take a lost rank's place, for jobs expected from now on.

        Raises:
            Refused: the rank is not lost.
        """
        if rank not in self._lost:
            raise Refused(f"replaced: rank {rank} is not lost")
        # Jobs that are open stay failed on this rank: its new worker was never told of them.
        for job, known in self._open.items():
            known.reported.setdefault(rank, self._failure(job, known, self._lost[rank]))
        del self._lost[rank]

    def check_integrity(self) -> None:
        """Raise `InternalError` where a job is kept that has ended."""
        for job, known in self._open.items():
            if self._num_reported(known) >= self._num_ranks:
                raise InternalError(f"job {job} was reported by all {self._num_ranks} ranks and is still open")

    def _num_reported(self, known: _Open) -> int:
        return len(known.reported.keys() | self._lost.keys())

    def _ended(self, job: int) -> Result | None:
        known = self._open[job]
        if self._num_reported(known) < self._num_ranks:
            return None
        del self._open[job]
        for rank, why in self._lost.items():
            known.reported.setdefault(rank, self._failure(job, known, why))
        return joined_result([known.reported[rank] for rank in range(self._num_ranks)])

    @staticmethod
    def _failure(job: int, known: _Open, why: str) -> Result:
        return failed_result(job, known.kind, known.lane, f"the worker was lost: {why}")

    def _require_rank(self, call: str, rank: int) -> None:
        if not 0 <= rank < self._num_ranks:
            raise Refused(f"{call}: there is no rank {rank}; there are {self._num_ranks}, numbered from 0")


def failed_result(job: int, kind: JobKind, lane: Lane, error: str) -> Result:
    """The result of a job that moved nothing."""
    return Result(job=job, kind=kind, path="none", lane=lane, blocks=0, bytes=0, elapsed_ns=None, error=error)


def joined_result(by_rank: Sequence[Result]) -> Result:
    """One result of a job from those of all ranks, in their order.

    The slowest rank's path and time, the most bytes and blocks that one GPU moved, and the errors of all ranks that
    failed, each with its rank where there are several.
    """
    slowest = max(by_rank, key=lambda r: r.elapsed_ns or 0)
    errors = [
        r.error if len(by_rank) == 1 else f"rank {rank}: {r.error}"
        for rank, r in enumerate(by_rank)
        if r.error is not None
    ]
    error = "; ".join(errors) if errors else None
    return replace(
        slowest,
        blocks=max(r.blocks for r in by_rank),
        bytes=0 if errors else max(r.bytes for r in by_rank),
        error=error,
    )
