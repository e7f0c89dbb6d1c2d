"""Jobs under way, until they have ended twice: in simulated time, and really."""

from __future__ import annotations

import heapq
import time
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from kvmove.errors import InternalError, MoveFailed
from kvmove.move import Mover
from kvmove.records import Result
from kvmove.replay.settings import Model

_REAL_TIMEOUT_S = 60.0  # far beyond any copy of a replica; a job that takes longer is lost

T = TypeVar("T")


class Link:
    """One direction of the modelled link: bulk copies go one after the other.

    Sync loads go before them, and are so small beside a step that what they delay is left out.
    """

    def __init__(self, model: Model) -> None:
        self._model = model
        self._free_ns = 0

    def submit(self, now_ns: int, num_bytes: int) -> int:
        """Queue a copy and return when it ends."""
        self._free_ns = max(self._free_ns, now_ns) + self._model.copy_time_ns(num_bytes)
        return self._free_ns

    def drain_time_ns(self, now_ns: int) -> int:
        """How long until everything that is queued has ended."""
        return max(0, self._free_ns - now_ns)


class EndedJobs:
    """The results of a mover, by job. What really takes long never shows in simulated time: it is waited for."""

    def __init__(self, mover: Mover) -> None:
        self._mover = mover
        self._results: dict[int, Result] = {}

    def take(self, job: int) -> Result:
        """How the job ended, once.

        Raises:
            MoveFailed: it failed.
            InternalError: the mover reported it twice, or not at all.
        """
        deadline = time.monotonic() + _REAL_TIMEOUT_S
        self._look()
        while job not in self._results:
            if time.monotonic() > deadline:
                raise InternalError(f"job {job} was submitted {_REAL_TIMEOUT_S:.0f} s ago and never reported")
            time.sleep(0.0001)
            self._look()
        result = self._results.pop(job)
        if result.error is not None:
            raise MoveFailed(f"{result.kind} {job} failed: {result.error}", job=job)
        return result

    def check_empty(self) -> None:
        """Raise `InternalError` where the mover reported a job that nobody waited for."""
        self._look()
        if self._results:
            raise InternalError(f"the mover reported jobs that nobody waits for: {sorted(self._results)}")

    def _look(self) -> None:
        for result in self._mover.finished():
            if result.job in self._results:
                raise InternalError(f"job {result.job} was reported twice")
            self._results[result.job] = result


@dataclass(order=True, slots=True)
class _Flight(Generic[T]):
    due_ns: int
    job: int
    due_step: int = field(compare=False)
    what: T = field(compare=False)


class Transfers(Generic[T]):
    """What is under way in simulated time: each job with the step and the time at which the engine may see its end."""

    def __init__(self) -> None:
        self._flights: list[_Flight[T]] = []

    def __len__(self) -> int:
        return len(self._flights)

    def add(self, job: int, what: T, *, due_step: int, due_ns: int) -> None:
        """Let `ended` return `what` from step `due_step` and time `due_ns` on."""
        heapq.heappush(self._flights, _Flight(due_ns, job, due_step, what))

    def ended(self, step: int, now_ns: int) -> list[tuple[int, T]]:
        """The jobs whose end the engine sees now, with what was given for them, each once; in order of their end."""
        seen: list[tuple[int, T]] = []
        early: list[_Flight[T]] = []
        while self._flights and self._flights[0].due_ns <= now_ns:
            flight = heapq.heappop(self._flights)
            if flight.due_step <= step:
                seen.append((flight.job, flight.what))
            else:
                early.append(flight)
        for flight in early:
            heapq.heappush(self._flights, flight)
        return seen
