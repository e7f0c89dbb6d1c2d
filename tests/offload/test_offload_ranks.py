"""A job of several ranks ends once, when all have reported it, and fails when any fails."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvmove.errors import Refused
from kvmove.offload.ranks import RankBoard
from kvmove.records import JobKind, Lane, Result


def result(job: int, *, error: str | None = None, num_bytes: int = 64, elapsed_ns: int | None = 10) -> Result:
    return Result(
        job=job, kind=JobKind.LOAD, path="direct", lane=Lane.BULK, blocks=2, bytes=num_bytes, elapsed_ns=elapsed_ns,
        error=error,
    )  # fmt: skip


def test_a_job_ends_when_the_last_rank_reports() -> None:
    """Nothing is returned before, and the joined result has the slowest rank's time."""
    board = RankBoard(3)
    board.expect(7, JobKind.LOAD)
    assert board.report(0, [result(7)]) == []
    assert board.report(2, [result(7, elapsed_ns=30)]) == []
    assert board.open_jobs == {7}
    (ended,) = board.report(1, [result(7, elapsed_ns=None, num_bytes=96)])
    assert (ended.job, ended.elapsed_ns, ended.bytes, ended.error) == (7, 30, 96, None)
    assert not board.open_jobs


def test_a_job_that_fails_on_one_rank_still_waits_for_the_others() -> None:
    """The slots of a failed job may be written by another rank until that one has reported."""
    board = RankBoard(2)
    board.expect(1, JobKind.LOAD)
    assert board.report(1, [result(1, error="bad checksum")]) == []
    (ended,) = board.report(0, [result(1)])
    assert ended.error == "rank 1: bad checksum"
    assert ended.bytes == 0


def test_a_lost_rank_fails_its_jobs_now_and_later() -> None:
    """Jobs that waited for it alone end at once, others when the living ranks report; new ones fail until replaced."""
    board = RankBoard(2)
    for job in (1, 2):
        board.expect(job, JobKind.LOAD)
    board.report(0, [result(1)])
    (ended,) = board.lost(1, "exit code 9")
    assert ended.job == 1
    assert ended.error is not None
    assert "exit code 9" in ended.error
    assert board.report(1, [result(2)]) == []
    assert board.open_jobs == {2}
    board.expect(3, JobKind.STORE)
    board.replaced(1)
    for job in (2, 3):
        (late,) = board.report(0, [replace(result(job), kind=JobKind.STORE if job == 3 else JobKind.LOAD)])
        assert late.error is not None
    board.expect(4, JobKind.LOAD)
    assert board.report(0, [result(4)]) == []
    (fine,) = board.report(1, [result(4)])
    assert fine.error is None


def test_with_every_rank_lost_an_expected_job_fails_at_once() -> None:
    """Otherwise nobody would ever report it."""
    board = RankBoard(1)
    board.lost(0, "gone")
    ended = board.expect(5, JobKind.STORE)
    assert ended is not None
    assert ended.error == "the worker was lost: gone"
    assert not board.open_jobs


@pytest.mark.parametrize("results", [[result(9)], [result(1), result(1)], [replace(result(1), kind=JobKind.STORE)]])
def test_a_report_of_what_was_not_expected_is_refused_whole(results: list[Result]) -> None:
    """An unknown job, a job twice, or one of another kind: nothing is taken in."""
    board = RankBoard(2)
    board.expect(1, JobKind.LOAD)
    with pytest.raises(Refused):
        board.report(0, results)
    assert board.report(0, [result(1)]) == []
    with pytest.raises(Refused, match="not expected"):
        board.report(0, [result(1)])


@given(
    ranks=st.integers(1, 4),
    jobs=st.integers(1, 6),
    failing=st.sets(st.tuples(st.integers(0, 3), st.integers(0, 5))),
    lost=st.sets(st.integers(0, 3)),
    order=st.randoms(use_true_random=False),
)
def test_every_job_ends_once_whatever_the_order(
    ranks: int, jobs: int, failing: set[tuple[int, int]], lost: set[int], order: random.Random
) -> None:
    """Reports and losses in any order end each job exactly once, failed exactly when a rank failed or was lost."""
    board = RankBoard(ranks)
    for job in range(jobs):
        board.expect(job, JobKind.LOAD)
    events: list[tuple[int, int | None]] = [(rank, job) for rank in range(ranks) for job in range(jobs)]
    events += [(rank, None) for rank in lost if rank < ranks]
    order.shuffle(events)
    ended: list[Result] = []
    failed: set[int] = set()
    gone: set[int] = set()
    reported: set[tuple[int, int]] = set()
    for rank, job in events:
        if job is None:
            failed |= {j for j in range(jobs) if (rank, j) not in reported}
            gone.add(rank)
            ended += board.lost(rank, "gone")
        else:
            if rank not in gone:
                reported.add((rank, job))
                if (rank, job) in failing:
                    failed.add(job)
            ended += board.report(rank, [result(job, error="no" if (rank, job) in failing else None)])
        board.check_integrity()
    assert sorted(r.job for r in ended) == list(range(jobs))
    assert {r.job for r in ended if r.error} == failed
