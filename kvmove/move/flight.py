"""What is in flight: who has to come after whom, which indices are in use, and how each job ended."""

from __future__ import annotations

from collections.abc import Sequence

from kvmove.errors import MoverBusy, Refused
from kvmove.move.hazards import Hazards
from kvmove.move.indices import IndexRing, Span
from kvmove.move.layout import Group
from kvmove.move.queues import Mark, Queue, Queues
from kvmove.move.submission import Batch, Index, Indices, Submission
from kvmove.records import JobKind, Result


class Flight:
    """The submissions of one mover, from reservation to result.

    Attributes:
        job_ids: ids in use: in flight, or ended and not collected yet.
        broken: None, or the CUDA error after which nothing can be launched.
    """

    def __init__(self, hazards: Hazards, ring: IndexRing, queues: Queues, groups: Sequence[Group]) -> None:
        self._hazards, self._ring, self._queues = hazards, ring, queues
        self._groups = groups
        self._number = 0
        self._under_way: dict[int, Submission] = {}  # by number, so oldest first
        self._ended: list[Result] = []
        self.job_ids: set[int] = set()
        self.broken: str | None = None

    def reserve(self, kind: JobKind, batches: Sequence[Batch]) -> list[Submission]:
        """Take index spans for all batches, or for none.

        Raises:
            Refused, MoverBusy: as `IndexRing.take`; nothing is reserved.
        """
        made: list[Submission] = []
        try:
            for batch in batches:
                self._number += 1
                indices = Indices(batch.parts, self._groups)
                made.append(Submission(self._number, kind, batch, indices, self._take(self._number, indices.arrays)))
        except Refused:
            for s in made:
                self._ring.give_back(s.number)
            raise
        for s in made:
            self.job_ids.update(job for job, _ in s.batch.jobs)
        return made

    def _take(self, number: int, arrays: list[Index]) -> Span:
        try:
            return self._ring.take(number, arrays)
        except MoverBusy:
            self.look()  # jobs may have ended without anybody having asked
            return self._ring.take(number, arrays)

    def before(self, s: Submission) -> list[Mark]:
        """The marks of the submissions under way that `s` has to come after."""
        if not self._under_way:
            return []
        oldest = self._oldest()
        if s.kind is JobKind.LOAD:
            return self._marks(self._hazards.before_load(s.blocks, s.slots, oldest))
        return self._marks(self._hazards.before_store(s.slots, s.blocks, oldest))

    def on_slots(self, slots: Index) -> list[Mark]:
        """The marks of the submissions under way that read or write any of these slots, counted over all groups."""
        return self._marks(self._hazards.on_slots(slots, self._oldest()))

    def _oldest(self) -> int:
        return next(iter(self._under_way), self._number + 1)

    def _marks(self, numbers: set[int]) -> list[Mark]:
        return [m for n in sorted(numbers) if n in self._under_way and (m := self._under_way[n].mark) is not None]

    def launched(self, s: Submission, mark: Mark) -> None:
        """`s` is queued and ends at `mark`."""
        s.mark = mark
        self._under_way[s.number] = s
        if s.kind is JobKind.LOAD:
            self._hazards.note_load(s.number, s.batch.queue, s.blocks, s.slots)
        else:
            self._hazards.note_store(s.number, s.batch.queue, s.slots, s.blocks)

    def failed(self, s: Submission, error: str) -> None:
        """`s` has failed, and nothing of it is running."""
        s.error = error
        self._end(s)

    def look(self) -> None:
        """Take in what has ended, without blocking. Of each queue, nothing after its first unfinished one can have."""
        waiting: set[Queue] = set()
        for s in list(self._under_way.values()):
            if s.batch.queue in waiting or s.mark is None:
                continue
            try:
                done = s.mark.done()
            except RuntimeError as error:
                self.break_off(error)
                return
            if done:
                self._end(s)
            else:
                waiting.add(s.batch.queue)

    def observe(self, s: Submission) -> None:
        """Block the host until `s` has ended, and take in how."""
        if s.number not in self._under_way or s.mark is None:
            return
        try:
            s.mark.synchronize()
        except RuntimeError as error:
            self.break_off(error)
            return
        self._end(s)

    def break_off(self, error: RuntimeError) -> None:
        """A CUDA error that stays: everything under way has failed, and nothing can be launched again."""
        self.broken = str(error).splitlines()[0]
        for s in list(self._under_way.values()):
            self.failed(s, self.broken)

    def _end(self, s: Submission) -> None:
        self._under_way.pop(s.number, None)
        self._ring.give_back(s.number)
        self._ended += s.results(self._groups)
        for mark in s.marks():
            self._queues.recycle(mark)
        s.mark = None
        s.layer_marks.clear()

    def collect(self) -> list[Result]:
        """Results of the jobs that ended since the last call; their ids are free again."""
        results, self._ended = self._ended, []
        self.job_ids.difference_update(r.job for r in results)
        return results
