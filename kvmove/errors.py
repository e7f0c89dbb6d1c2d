"""Everything kvmove raises on purpose, split by what the caller can do next.

KVMoveError
├── RecordError       a record's field is out of range: fix the value (a ValueError too)
├── PolicyError       a policy cannot be used: fix the file; `findings` has every mistake of it
│   └── ExamplesError a file of examples beside a policy cannot be used: fix that file; `problems` has every one
├── TraceError        a line of a trace is malformed: fix line `line`
├── LayoutError       these tensors cannot be described as a paged cache: change the tensors or the arguments
├── PinningError      host memory could not be pinned; nothing stays pinned: raise the limit or ask for less
├── Refused           a call was refused before anything moved or changed: fix the call
│   ├── MoverBusy     the same call can be accepted later, after `mover.finished()`
│   └── MoverClosed   this mover is done: make a new one
├── MoveFailed        a job failed after it was accepted: its destination does not hold what was asked for
│   └── SyncLoadFailed   loads that this step's output depends on: publish nothing of the step for `requests`
└── InternalError     an invariant of kvmove is broken: our bug, please report it
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvmove.kvpol.findings import Finding


class KVMoveError(Exception):
    """Base of every error that kvmove raises on purpose."""


class RecordError(KVMoveError, ValueError):
    """A record was built with a value outside its field's range."""


class PolicyError(KVMoveError):
    """A policy cannot be used. `findings` holds every mistake found in it, in source order."""

    def __init__(self, message: str, findings: Sequence[Finding] = ()) -> None:
        super().__init__(message)
        self.findings = tuple(findings)


class ExamplesError(PolicyError):
    """A file of examples cannot be used. `problems` has each mistake: its line, counted from 1, and what it is."""

    def __init__(self, file: str, problems: Sequence[tuple[int, str]]) -> None:
        super().__init__("\nerror: ".join(f"{file}:{line}: {problem}" for line, problem in problems))
        self.file, self.problems = file, tuple(problems)


class TraceError(KVMoveError):
    """Line `line` (counted from 1) of the trace `path` is not a request."""

    def __init__(self, path: str, line: int, reason: str) -> None:
        super().__init__(f"{path}, line {line}: {reason}")
        self.path, self.line, self.reason = path, line, reason


class LayoutError(KVMoveError, ValueError):
    """These tensors cannot be described as a paged cache."""


class PinningError(KVMoveError):
    """Host memory could not be pinned. Whatever had been pinned before was released again."""

    def __init__(self, message: str, *, asked_bytes: int, pinned_bytes: int) -> None:
        super().__init__(message)
        self.asked_bytes, self.pinned_bytes = asked_bytes, pinned_bytes


class Refused(KVMoveError, ValueError):
    """A call was refused: nothing was launched, moved or changed."""


class MoverBusy(Refused):
    """Too much is in flight for this call now; call `mover.finished()` and try again."""


class MoverClosed(Refused):
    """The mover was closed, by its owner or by a CUDA error that cannot be recovered from."""


class MoveFailed(KVMoveError):
    """Job `job` failed after it was accepted. Its destination does not hold what was asked for."""

    def __init__(self, message: str, *, job: int) -> None:
        super().__init__(message)
        self.job = job


class SyncLoadFailed(MoveFailed):
    """Sync loads of a step failed. No token of the step may be published for `requests`: compute them again.

    `jobs` are all the jobs that failed, `requests` the ids of the requests that they were for, where these are known.
    """

    def __init__(self, message: str, *, jobs: Sequence[int], requests: Sequence[str]) -> None:
        super().__init__(message, job=jobs[0])
        self.jobs, self.requests = tuple(jobs), tuple(requests)

    def __reduce__(self) -> tuple[object, ...]:
        return _sync_load_failed, (str(self), self.jobs, self.requests)


def _sync_load_failed(message: str, jobs: Sequence[int], requests: Sequence[str]) -> SyncLoadFailed:
    """What unpickles the error: it goes from a worker's process to the scheduler's."""
    return SyncLoadFailed(message, jobs=jobs, requests=requests)


class InternalError(KVMoveError):
    """An invariant of kvmove itself is broken. This is a bug of ours; please report it."""
