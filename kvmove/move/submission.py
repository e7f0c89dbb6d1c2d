"""One launch, and the jobs it serves."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from kvmove.move.indices import Span
from kvmove.move.paths import Path
from kvmove.move.queues import Mark, Queue
from kvmove.records import JobKind, Lane, Result

Index = NDArray[np.int64]
Job = tuple[int, Index, Index]  # job id, host blocks, slots


@dataclass(frozen=True, slots=True)
class Batch:
    """What one launch is to move, and how, before it has a number."""

    lane: Lane
    queue: Queue
    path: Path
    jobs: tuple[Job, ...]

    def index_arrays(self) -> list[Index]:
        """Host blocks of all jobs, then slots of all jobs: the order in which paths read them."""
        return [blocks for _, blocks, _ in self.jobs] + [slots for _, _, slots in self.jobs]


@dataclass(slots=True)
class Submission:
    """A batch with its place in the index ring.

    1. Reserved: it has a span.
    2. Launched: `mark` is its end.
    3. Ended: the mark was seen and given back, or `error` says what failed.
    """

    number: int  # counts submissions from 1
    kind: JobKind
    batch: Batch
    span: Span
    mark: Mark | None = None
    error: str | None = None
    count: int = field(init=False)  # blocks of all its jobs
    blocks: Index = field(init=False)  # their host blocks
    slots: Index = field(init=False)  # their slots

    def __post_init__(self) -> None:
        self.count = len(self.span.array) // 2
        self.blocks, self.slots = self.span.array[: self.count], self.span.array[self.count :]

    def results(self, block_bytes: int) -> list[Result]:
        """How each of its jobs ended."""
        ok = self.error is None
        elapsed_ns = self.mark.elapsed_ns() if ok and self.mark is not None else None
        return [
            Result(
                job=job,
                kind=self.kind,
                path=self.batch.path.name,
                lane=self.batch.lane,
                blocks=len(blocks),
                bytes=len(blocks) * block_bytes if ok else 0,
                elapsed_ns=elapsed_ns,
                error=self.error,
            )
            for job, blocks, _ in self.batch.jobs
        ]
