"""Make the kernel give memory its pages before somebody waits for them: in order, by a few threads at once."""

from __future__ import annotations

import errno
import mmap
import os
import threading
from functools import cache

from kvmove.move.mapping import Mapping, madvise

_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE, Linux 5.14: fails, and raises no signal, where memory runs out
# One call of the kernel: long enough that threads seldom meet, short enough that a pool closes at once.
SLICE_BYTES = 32 << 20
# Zeroing pages is bound by memory, and an engine starts other work beside it.
MAX_THREADS = 8


@cache
def kernel_populates() -> bool:
    """Whether the kernel populates memory on request. Where not, pages are read one by one."""
    try:
        probe = Mapping(mmap.PAGESIZE)
        madvise(probe.address, probe.mapped_bytes, _POPULATE_WRITE)
    except OSError:
        return False
    return True


def num_threads(num_bytes: int) -> int:
    """How many threads touch memory of this size."""
    return max(1, min(MAX_THREADS, len(os.sched_getaffinity(0)), -(-num_bytes // SLICE_BYTES)))


class Touching:
    """Touches a mapping from its beginning, ahead of whoever waits. What the memory holds does not change.

    Setting `stop` ends it after the slices that are being touched.
    """

    def __init__(self, mapping: Mapping, stop: threading.Event) -> None:
        self._mapping, self._stop = mapping, stop
        self._begins = range(0, mapping.mapped_bytes, SLICE_BYTES)
        self._taken = 0  # slices
        self._done = bytearray(len(self._begins))
        self._touched_bytes = 0  # all before it are touched
        self._error: OSError | None = None
        self._failed_at: int | None = None  # the first byte of the slice that failed
        self._changed = threading.Condition()
        self._threads = [
            # Daemons, because a process that ends must not first touch what is left.
            threading.Thread(target=self._work, name=f"kvmove-touch-{i}", daemon=True)
            for i in range(num_threads(mapping.num_bytes))
        ]
        for thread in self._threads:
            thread.start()

    def wait_for(self, end: int) -> None:
        """Block until [0, end) is touched, or it was stopped.

        Raises:
            OSError: the kernel has no more memory for it.
        """
        with self._changed:
            # Slices are taken in order, so those before the one that failed are done or being touched.
            while self._touched_bytes < end and not self._failed_before(end) and not self._stop.is_set():
                self._changed.wait(0.05)  # whoever stops it does not notify
            if self._error is not None and self._failed_before(end):
                raise self._error

    def _failed_before(self, end: int) -> bool:
        return self._failed_at is not None and self._failed_at < end

    def join(self) -> None:
        """Block until no thread touches any more: everything is touched, or it failed or was stopped."""
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        while not self._stop.is_set() and self._error is None:
            with self._changed:
                number = self._taken
                if number == len(self._begins):
                    return
                self._taken += 1
            begin = self._begins[number]
            end = min(begin + SLICE_BYTES, self._mapping.mapped_bytes)
            try:
                touch(self._mapping, begin, end)
            except OSError as error:
                with self._changed:
                    if self._failed_at is None or begin < self._failed_at:
                        self._error, self._failed_at = error, begin
                    self._changed.notify_all()
                return
            with self._changed:
                self._done[number] = 1
                first_undone = self._done.find(0)
                done = self._mapping.mapped_bytes if first_undone < 0 else self._begins[first_undone]
                self._touched_bytes = done
                self._changed.notify_all()


def touch(mapping: Mapping, begin: int, end: int) -> None:
    """Give [begin, end) of a mapping its pages, without the interpreter's lock. Raises OSError."""
    if not kernel_populates():
        # Reading is enough, since shared memory has no common zero page; writing could undo another process's write.
        mapping.array[begin : end : mmap.PAGESIZE].max()
        return
    while True:
        try:
            madvise(mapping.address + begin, end - begin, _POPULATE_WRITE)
        except OSError as error:
            if error.errno not in (errno.EINTR, errno.EAGAIN):
                raise
        else:
            return
