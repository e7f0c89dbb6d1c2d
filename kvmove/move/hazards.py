"""Which jobs in flight a new one has to come after, for GPU slots and host blocks, reads and writes alike.

                   reads                        writes
    load           host blocks                  slots
    store          slots                        host blocks

A reader comes after the last writer of the same place; a writer comes after the last writer and after the
readers since. Queues run in order, so one number a place and queue is enough: the last job there. Jobs are
numbered from 1 in the order of their submission, and 0 is "none".

Slots are counted over all groups (`Group.first_slot`). A host block is one place even where it holds a chunk: jobs on
different places of it are ordered too, which costs little and keeps the memory small. An index may come up twice.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvmove.move.queues import Queue

Index = NDArray[np.int64]


class _Places:
    """The last reader and the last writer in each queue, and the last of them all, of every slot or host block."""

    def __init__(self, count: int) -> None:
        # Also row by row: indexing a row takes half of what indexing both dimensions at once does.
        self.reader = np.zeros((len(Queue), count), dtype=np.int64)
        self.writer = np.zeros((len(Queue), count), dtype=np.int64)
        self.reader_of, self.writer_of = list(self.reader), list(self.writer)
        self.last = np.zeros(count, dtype=np.int64)

    def idle(self, at: Index, oldest: int) -> bool:
        """Whether nothing numbered `oldest` or later is on these places: the usual case, told by one look."""
        return bool(self.last[at].max() < oldest)


class Hazards:
    """Remembers who touched what last. Constant memory, and no loop over blocks in Python."""

    def __init__(self, num_slots: int, num_blocks: int) -> None:
        self._slots = _Places(num_slots)
        self._blocks = _Places(num_blocks)

    def before_load(self, src_blocks: Index, dst_slots: Index, oldest: int) -> set[int]:
        """Jobs numbered `oldest` or later that a load has to come after."""
        return _reads(self._blocks, src_blocks, oldest) | _writes(self._slots, dst_slots, oldest)

    def before_store(self, src_slots: Index, dst_blocks: Index, oldest: int) -> set[int]:
        """Jobs numbered `oldest` or later that a store has to come after."""
        return _reads(self._slots, src_slots, oldest) | _writes(self._blocks, dst_blocks, oldest)

    def on_slots(self, slots: Index, oldest: int) -> set[int]:
        """Jobs numbered `oldest` or later that read or write any of these slots."""
        return _writes(self._slots, slots, oldest)

    def note_load(self, number: int, queue: Queue, src_blocks: Index, dst_slots: Index) -> None:
        """Job `number` in `queue` reads these host blocks and writes these slots."""
        self._blocks.reader_of[queue][src_blocks] = number
        self._slots.writer_of[queue][dst_slots] = number
        self._note(number, src_blocks, dst_slots)

    def note_store(self, number: int, queue: Queue, src_slots: Index, dst_blocks: Index) -> None:
        """Job `number` in `queue` reads these slots and writes these host blocks."""
        self._slots.reader_of[queue][src_slots] = number
        self._blocks.writer_of[queue][dst_blocks] = number
        self._note(number, dst_blocks, src_slots)

    def _note(self, number: int, blocks: Index, slots: Index) -> None:
        self._blocks.last[blocks] = number
        self._slots.last[slots] = number


def _reads(places: _Places, at: Index, oldest: int) -> set[int]:
    return set() if places.idle(at, oldest) else _since(places.writer[:, at], oldest)


def _writes(places: _Places, at: Index, oldest: int) -> set[int]:
    if places.idle(at, oldest):
        return set()
    return _since(places.writer[:, at], oldest) | _since(places.reader[:, at], oldest)


def _since(numbers: NDArray[np.int64], oldest: int) -> set[int]:
    return {int(n) for n in np.unique(numbers) if n >= oldest}
