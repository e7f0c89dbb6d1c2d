"""From checked jobs to launches: by which path, after what, and what a launch that was refused leaves behind."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial

import torch

from kvmove.costs import CostModel
from kvmove.move.flight import Flight
from kvmove.move.layers import LayerPieces
from kvmove.move.layout import Group
from kvmove.move.paths import Path, Paths, work_of
from kvmove.move.queues import Mark, Queue, Queues
from kvmove.move.submission import Batch, Job, Submission
from kvmove.records import JobKind, Lane

# Programs of a kernel that may run at once. On an H200 two reach 0.91 of contiguous DMA with pages of 16 KiB, four with
# 4 KiB; a store of 4 KiB pages fell to 0.78 with four on one machine and had 0.93 with eight on others. The link is
# shared by what each has in flight: bulk that has few leaves the most to expedited loads, which hold theirs briefly.
EXPEDITED_PROGRAMS = 32
BULK_PROGRAMS = ((16 << 10, 4), (4 << 10, 8), (0, 16))  # (smallest page of at least so many bytes, programs)

_SERVES = {
    Queue.EXPEDITED: (JobKind.LOAD, Lane.EXPEDITED),
    Queue.BULK: (JobKind.LOAD, Lane.BULK),
    Queue.STORE: (JobKind.STORE, Lane.BULK),
}


class Launcher:
    """Launches the jobs of one mover. For one thread at a time, as the mover sees to.

    Attributes:
        programs: how many kernel programs each queue may hold at once.
    """

    def __init__(
        self, paths: Paths, flight: Flight, queues: Queues, groups: Sequence[Group], costs: CostModel | None
    ) -> None:
        self._paths, self._flight, self._queues = paths, flight, queues
        self._groups, self._costs = groups, costs
        smallest = min(page.num_bytes for group in groups for page in group.pages)
        bulk = next(programs for num_bytes, programs in BULK_PROGRAMS if smallest >= num_bytes)
        self.programs = {queue: EXPEDITED_PROGRAMS if queue is Queue.EXPEDITED else bulk for queue in Queue}

    def batch(self, queue: Queue, jobs: tuple[Job, ...], named: str | LayerPieces | None) -> Batch:
        """Jobs of one launch in a queue, by the path that was named for them or the one that is chosen.

        Raises:
            Refused: the named path does not work here.
        """
        kind, lane = _SERVES[queue]
        parts = [part for _, of_job in jobs for part in of_job]
        path: Path | LayerPieces
        if named is None:
            path = self._paths.choose(kind, lane, parts)
        else:
            path = self._paths.named(named) if isinstance(named, str) else named
        batch = Batch(lane, queue, path, jobs, parts)
        if self._costs is not None:
            batch.predicted_ns = self._costs.predict_ns(kind, path.name, lane, work_of(parts, self._groups))
        return batch

    def submit(self, kind: JobKind, batches: list[Batch], after: torch.cuda.Event | None) -> list[Submission]:
        """Launch each batch after the engine's stream, or after the event `after`.

        A launch that is refused fails its own jobs, and no other's.

        Raises:
            Refused, MoverBusy: there are too many indices; nothing was launched.
        """
        made = self._flight.reserve(kind, batches)
        engine = self._queues.here() if after is None else self._queues.at(after)
        for s in made:
            try:
                before = self._flight.before(s)
                if not before and kind is JobKind.LOAD:
                    s.let_host_rest()
                mark = self._launch(s, [engine, *before])
            except Exception as error:
                self._settle(s.batch.queue)
                self._flight.failed(s, f"could not be launched ({error})")
            else:
                self._flight.launched(s, mark)
        return made

    def _settle(self, queue: Queue) -> None:
        """Block until the queue is empty: of several launches, those before a refused one still read their indices."""
        with suppress(Exception):  # a device that is broken says so again where it is asked what has ended
            self._queues.submit(queue, (), lambda stream: None).synchronize()

    def _launch(self, s: Submission, after: list[Mark]) -> Mark:
        """Queue the submission's work after the marks. Returns its end."""
        path, queue = s.batch.path, s.batch.queue
        if not isinstance(path, LayerPieces):
            return self._queues.submit(queue, after, partial(self._copy, s, path))
        for piece in range(len(path.stops)):
            copy = partial(path.load, piece, s.pairs, self.programs[queue])
            s.layer_marks.append(self._queues.submit(queue, after, copy))
            after = []  # one queue keeps its order
        return s.layer_marks[-1]

    def _copy(self, s: Submission, path: Path, stream: torch.cuda.Stream | None) -> None:
        move = path.load if s.kind is JobKind.LOAD else path.store
        move(s.pairs, self.programs[s.batch.queue], stream)
