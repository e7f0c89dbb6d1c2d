"""When a file that changes has come to rest: what to read of it, and when not yet.

A file that is being written is read as often as it is looked at, and used only once it was the same for a while:
its bytes, its size, its times and its place on the disk. Bytes are compared, not only times, because a file that is
written again within the resolution of its times, at the same length, differs in nothing else.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kvmove.kvpol.limits import READ_BYTES

CAUTION = 10  # times the debounce, for a file that looks as if it was cut while it was written
MAX_RESTLESS = 60  # times the debounce, after which a file that does not come to rest is reported


@dataclass(frozen=True, slots=True)
class Version:
    """What a path led to at one moment: `data`, or the `problem` that kept it from being read.

    Attributes:
        stamp: device, inode, size and times; None where there is no file, or where it changed while it was read.
    """

    data: bytes | None
    problem: str | None
    stamp: tuple[int, ...] | None

    @property
    def content(self) -> bytes | str | None:
        """What a use of this version depends on; None where it changed while it was read."""
        return self.problem if self.data is None else self.data

    def may_be_cut(self, before: bytes | None) -> bool:
        """Whether it looks like the beginning of something: of `before`, or of a file whose last line has no end."""
        if self.data is None or before is None:
            return False
        is_beginning = len(self.data) < len(before) and before.startswith(self.data)
        return is_beginning or has_open_end(self.data, before)


def has_open_end(data: bytes, before: bytes) -> bool:
    """Whether the last line of `data` has no end, and that of `before` had one."""
    return before.endswith(b"\n") and not data.endswith(b"\n")


def read_version(path: Path) -> Version:
    """What `path` leads to now; at most so much that a file which is too large for a policy can be told."""
    try:
        # A pipe in the file's place must not block who opens it.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as f:
            before = os.fstat(f.fileno())
            if not stat.S_ISREG(before.st_mode):
                return Version(None, "is no file", None)
            data = f.read(READ_BYTES)
            if _stamp(os.fstat(f.fileno())) != _stamp(before):
                return Version(None, None, None)
            return Version(data, None, _stamp(before))
    except OSError as e:
        return Version(None, f"cannot be read: {(e.strerror or str(e)).lower()}", None)
    except ValueError:
        return Version(None, "is no path", None)


def _stamp(s: os.stat_result) -> tuple[int, ...]:
    return s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns


class Follower:
    """Looks at a path, and says when there is another version of its file which is at rest. One thread at a time.

    Args:
        path: where to look.
        debounce_s: seconds for which a version must stay the same; `CAUTION` times that where it may be cut.
        clock: the time in seconds, from any origin.
    """

    def __init__(self, path: Path, debounce_s: float, clock: Callable[[], float]) -> None:
        self._path, self._debounce_s, self._clock = path, debounce_s, clock
        self._settled: Version | None = None  # what was given out last
        self._latest: Version | None = None  # another one, not at rest yet
        self._restless_since_s = self._same_since_s = 0.0

    @property
    def is_waiting(self) -> bool:
        """Whether another version was seen that is not at rest yet: look again soon."""
        return self._latest is not None

    def now(self) -> Version:
        """The file as it is now, at rest or not."""
        for _ in range(3):  # a file that changes while it is read is read again; it is small
            found = read_version(self._path)
            if found.content is not None:
                break
        else:
            found = Version(None, "changed each time it was read", None)
        self._settled, self._latest = found, None
        return found

    def look(self, in_use: bytes | None) -> Version | None:
        """Another version than the last one given out, once it is at rest; else None.

        `in_use` is what the policy in use was read from; a version that may be the beginning of it, or of another
        text, has to rest longer. A file that never rests is given out as a version with a problem.
        """
        at_s = self._clock()
        found = read_version(self._path)
        if self._settled is not None and found.content is not None and found.content == self._settled.content:
            self._latest = None
            return None
        if self._latest is None:
            self._restless_since_s = at_s
        if found != self._latest or found.content is None:
            self._latest, self._same_since_s = found, at_s
        needed_s = self._debounce_s * (CAUTION if found.may_be_cut(in_use) else 1)
        if at_s - self._same_since_s >= needed_s:
            self._settled, self._latest = found, None
            return found
        if at_s - self._restless_since_s >= self._debounce_s * MAX_RESTLESS:
            self._latest = None
            self._settled = Version(None, "does not come to rest: something keeps writing it", None)
            return self._settled
        return None
