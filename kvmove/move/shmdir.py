"""The directory of shared memory: names in it, room in it, and locks that tell which of its files are in use."""

from __future__ import annotations

import fcntl
import os
import re
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from kvmove.errors import RecordError, Refused

SHM_DIR = "/dev/shm"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
_GATE_S = 5.0  # how long to wait for the directory's lock; it is held for microseconds


def path_of(name: str) -> str:
    """The file of the pool `name`. Raises RecordError where it cannot be a name."""
    if not _NAME.fullmatch(name):
        raise RecordError(
            f"host pool name {name!r}: 1 to 200 letters, digits, `.`, `_` and `-` are needed, "
            "beginning with a letter or digit"
        )
    return f"{SHM_DIR}/kvmove.{name}"


def free_bytes() -> int:
    """What /dev/shm has room for."""
    space = os.statvfs(SHM_DIR)
    return space.f_bavail * space.f_frsize


@contextmanager
def gate() -> Iterator[None]:
    """Hold the lock on the directory."""
    try:
        fd = os.open(SHM_DIR, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise Refused(f"shared host pools need {SHM_DIR}, which cannot be used: {error.strerror}") from error
    try:
        deadline = time.monotonic() + _GATE_S
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise Refused(
                        f"another process has held the lock on {SHM_DIR} for {_GATE_S:.0f} s; end it (lslocks shows it)"
                    ) from None
                time.sleep(0.001)
        yield
    finally:
        # Not by closing alone: a child that was forked meanwhile would keep the lock.
        fcntl.flock(fd, fcntl.LOCK_UN)
        os.close(fd)


def open_existing(path: str) -> int | None:
    """Open this user's file at `path`; None where there is none. Raises Refused where it is somebody else's."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Refused(f"{path} cannot be opened ({error.strerror}); choose another name for the pool") from error
    about = os.fstat(fd)
    if not stat.S_ISREG(about.st_mode) or about.st_uid != os.geteuid():
        os.close(fd)
        raise Refused(f"{path} is not a file of this user; choose another name for the pool")
    return fd


def is_unused(fd: int) -> bool:
    """Whether no process has it open. Called with the gate held, so that nobody mistakes this look for a user."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    fcntl.flock(fd, fcntl.LOCK_UN)
    return True


def unlink_if_same(path: str, fd: int) -> None:
    """Remove `path` if it still names the open file `fd`. Called with the gate held."""
    with suppress(FileNotFoundError):
        now = os.stat(path, follow_symlinks=False)
        if os.path.samestat(now, os.fstat(fd)):  # and not a newer pool of the same name
            os.unlink(path)
