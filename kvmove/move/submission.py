"""One launch, and the jobs it serves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from kvmove.move.indices import Pairs, Span
from kvmove.move.layers import LayerPieces
from kvmove.move.layout import Group
from kvmove.move.paths import Path
from kvmove.move.queues import Mark, Queue
from kvmove.records import JobKind, Lane, Part, Result

Index = NDArray[np.int64]
Job = tuple[int, tuple[Part, ...]]  # job id, what it moves


@dataclass(slots=True)
class Batch:
    """What one submission is to move, and how, before it has a number."""

    lane: Lane
    queue: Queue
    path: Path | LayerPieces
    jobs: tuple[Job, ...]
    parts: list[Part]  # of all jobs
    predicted_ns: int | None = None  # device time of all of it


class Indices:
    """The numbers that a batch's launches read, and those that order it among others.

    Attributes:
        arrays: for each group its positions in the pool, of all parts, and then its slots: what the ring keeps.
        blocks, slots: host blocks, and slots counted over all groups; None where `arrays` are these already.
    """

    __slots__ = ("_counts", "arrays", "blocks", "slots")

    def __init__(self, parts: Sequence[Part], groups: Sequence[Group]) -> None:
        self.blocks: Index | None = None
        self.slots: Index | None = None
        self._counts: list[tuple[int, int]] = []  # (group, blocks); none where the arrays are halves
        if len(groups) == 1 and groups[0].blocks_per_chunk == 1:
            self.arrays = [p.blocks for p in parts] + [p.slots for p in parts]
            return
        by_group: dict[int, list[Part]] = {}
        for part in parts:
            by_group.setdefault(part.group, []).append(part)
        self.arrays = []
        for number, own in sorted(by_group.items()):
            self.arrays += [groups[number].positions(p) for p in own] + [p.slots for p in own]
            self._counts.append((number, sum(len(p.slots) for p in own)))
        self.blocks = np.concatenate([p.blocks for p in parts])
        self.slots = np.concatenate([p.slots + groups[p.group].first_slot for p in parts])

    def pairs(self, span: Span) -> list[Pairs]:
        """The copy of `arrays` in a span, as paths are given it: one launch for each."""
        if not self._counts:
            half = len(span.array) // 2
            return [Pairs(0, span.array[:half], span.array[half:], span.address, span.address + 8 * half)]
        begin, made = 0, []
        for group, count in self._counts:
            middle, end = begin + count, begin + 2 * count
            at = span.address + 8 * begin
            made.append(Pairs(group, span.array[begin:middle], span.array[middle:end], at, at + 8 * count))
            begin = end
        return made


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
    indices: Indices
    span: Span
    mark: Mark | None = None
    layer_marks: list[Mark] = field(default_factory=list)  # of a load by layers, the end of each piece
    error: str | None = None
    pairs: list[Pairs] = field(init=False)  # what paths are given, by group
    blocks: Index = field(init=False)  # the host blocks it touches, each at least once
    slots: Index = field(init=False)  # the slots it touches, counted over all groups

    def __post_init__(self) -> None:
        self.pairs = self.indices.pairs(self.span)
        # Without groups and chunks, what the paths are given says it all.
        only = self.pairs[0]
        self.blocks = only.positions if self.indices.blocks is None else self.indices.blocks
        self.slots = only.slots if self.indices.slots is None else self.indices.slots

    def let_host_rest(self) -> None:
        """Say to the path that nothing in flight writes its host blocks."""
        for p in self.pairs:
            p.host_rests = True

    def _elapsed_ns(self) -> int | None:
        """Of pieces the sum: they follow each other."""
        times = [mark.elapsed_ns() for mark in self.marks()]
        return None if not times or None in times else sum(t for t in times if t is not None)

    def marks(self) -> list[Mark]:
        """The ends of its launches, in order; the last one is `mark`."""
        return self.layer_marks or ([] if self.mark is None else [self.mark])

    def results(self, groups: Sequence[Group]) -> list[Result]:
        """How each of its jobs ended."""
        ok = self.error is None
        elapsed_ns = self._elapsed_ns() if ok else None
        queued_ns = self.marks()[0].queued_ns() if ok and self.mark is not None else None
        return [
            Result(
                job=job,
                kind=self.kind,
                path=self.batch.path.name,
                lane=self.batch.lane,
                blocks=sum(len(p.slots) for p in parts),
                bytes=sum(len(p.slots) * groups[p.group].block_bytes for p in parts) if ok else 0,
                elapsed_ns=elapsed_ns,
                error=self.error,
                predicted_ns=self.batch.predicted_ns,
                queued_ns=queued_ns,
            )
            for job, parts in self.batch.jobs
        ]
