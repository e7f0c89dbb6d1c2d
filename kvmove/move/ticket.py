"""What a submitted call gives back: the place where the engine waits, and where it learns of failures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kvmove.errors import MoveFailed

if TYPE_CHECKING:
    from kvmove.move.mover import Mover
    from kvmove.move.submission import Submission


class Ticket:
    """One call of `load_batch` or `store_batch`.

    1. Submitted: the copies are queued; the caller goes on.
    2. Waited: after `wait()`, what the caller launches next on its stream sees the expedited loads' blocks.
       For stores: what it launches next may overwrite the slots that were stored.
    3. Checked: after the step's output sync, `check()` says whether the step may publish its tokens.

    Attributes:
        jobs: ids of the call's jobs, in the order given.
    """

    def __init__(self, mover: Mover, jobs: tuple[int, ...], waited: Sequence[Submission], *, strict: bool) -> None:
        self.jobs = jobs
        self._mover = mover
        self._waited = tuple(waited)
        self._strict = strict

    def wait(self) -> None:
        """Let the current stream wait for the call's expedited loads (or stores). Does not block the host.

        Bulk loads are not waited for; `mover.finished()` reports them. With `strict`, blocks the host until the
        loads are done, so that a failure shows here.

        Raises:
            MoveFailed: a job of this call could not be launched or, with `strict`, failed.
        """
        for submission in self._waited:
            self._mover.wait_for(submission)  # for all, also where one has failed: who goes on relies on the others
        for submission in self._waited:
            self._raise_if_failed(submission)
        if self._strict:
            self.check()

    def wait_layer(self, layer: int) -> None:
        """Let the current stream wait for one layer of the call's expedited loads. Does not block the host.

        Call it before anything of that layer reads or writes the loaded slots, for every layer in turn. After a call
        without `by_layer` it waits for everything, as `wait()` does. `check()` is due as ever.

        Args:
            layer: index of a tensor in the list that `CacheLayout.from_tensors` was given.

        Raises:
            MoveFailed: a job of this call could not be launched.
            Refused: there is no such layer.
        """
        for submission in self._waited:
            self._mover.wait_for_layer(submission, layer)
        for submission in self._waited:
            self._raise_if_failed(submission)

    def check(self) -> None:
        """Say whether every expedited load (or store) of this call arrived. Call it at the step's output sync.

        By then the copies are done, and this returns at once; called earlier, it blocks the host until they are.

        Raises:
            MoveFailed: a job failed. Its destination does not hold what was asked for: drop the step's output
                for every request that uses these blocks.
        """
        for submission in self._waited:
            self._mover.observe(submission)
            self._raise_if_failed(submission)

    @staticmethod
    def _raise_if_failed(submission: Submission) -> None:
        if submission.error is not None:
            jobs = [job for job, _ in submission.batch.jobs]
            raise MoveFailed(
                f"{submission.kind} {', '.join(map(str, jobs))} failed: {submission.error}; "
                "its destination does not hold the blocks: compute them again, or forget the stored keys",
                job=jobs[0],
            )
