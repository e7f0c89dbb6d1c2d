"""What a worker remembers of each job until it has reported it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kvmove.move import Ticket
from kvmove.records import JobKind, Lane, Load, Result, Store


@dataclass(slots=True)
class OpenJob:
    """A job that was submitted and not reported; `ticket` is None where the mover did not take it, for `error`."""

    what: Load | Store
    kind: JobKind
    lane: Lane
    request: str | None
    ticket: Ticket | None = None
    error: str | None = None

    @property
    def job(self) -> int:
        return self.what.job

    @property
    def is_sync(self) -> bool:
        """Whether the step's output depends on it."""
        return self.kind is JobKind.LOAD and self.lane is Lane.EXPEDITED


class Failures:
    """The sync loads that one call found failed, each once and in order, and why."""

    def __init__(self) -> None:
        self.jobs: dict[int, None] = {}
        self.reasons: dict[str, None] = {}

    def add(self, jobs: Iterable[int], why: str | None) -> None:
        """Note that these jobs failed; nothing happens where there are none, or no reason."""
        added = dict.fromkeys(jobs)
        if added and why is not None:
            self.jobs.update(added)
            self.reasons[why] = None


class OpenJobs:
    """The jobs of one worker, by id.

    Attributes:
        failed_unchecked: errors of sync loads that were reported before the step's `check`, by job. A step that
            polls for results before it checks must still raise.
    """

    def __init__(self) -> None:
        self._jobs: dict[int, OpenJob] = {}
        self._requests: dict[int, str] = {}  # of failed_unchecked
        self.failed_unchecked: dict[int, str] = {}

    def ids(self) -> frozenset[int]:
        return frozenset(self._jobs)

    def get(self, job: int) -> OpenJob | None:
        return self._jobs.get(job)

    def add(self, known: OpenJob) -> None:
        self._jobs[known.job] = known

    def sync_of(self, ticket: Ticket) -> list[int]:
        """The expedited loads of a call: they share a launch, so they arrive and fail together."""
        return [j for j, known in self._jobs.items() if known.ticket is ticket and known.is_sync]

    def forget_failure(self, job: int) -> str | None:
        """The request of a failed sync load that is being raised for."""
        self.failed_unchecked.pop(job, None)
        known = self._jobs.get(job)
        return self._requests.pop(job, None) if known is None else known.request

    def close(self, result: Result, *, remember: bool) -> None:
        """The job was reported; with `remember`, keep how a failed one ended for the check that is still to come."""
        known = self._jobs.pop(result.job, None)
        if remember and result.error is not None:
            self.failed_unchecked[result.job] = result.error
            if known is not None and known.request is not None:
                self._requests[result.job] = known.request
