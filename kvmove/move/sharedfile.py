"""The file behind a pool that several processes map: who makes it, who may open it, and who removes it.

    [0, blocks)              the blocks, rounded up to OS pages
    [blocks, blocks + page)  the header: magic, version, ready, num_blocks, block_bytes, process id of the creator

Every process that has the pool open holds a shared lock on the file, which the kernel drops when the process ends, in
whatever way. So a file without a lock is one that a crashed run left, and can be replaced. Making, opening and removing
files, each together with its look at the lock, happen under a lock on the directory: nothing comes between.
"""

from __future__ import annotations

import fcntl
import logging
import mmap
import os
import struct
import time
import weakref
from contextlib import suppress

from kvmove.errors import PinningError, Refused
from kvmove.move import shmdir
from kvmove.move.mapping import round_up
from kvmove.move.touching import kernel_populates

_MAGIC, _VERSION = b"kvmovehp", 1
_HEADER = struct.Struct("<8sIIQQQ")
_POLL_S = 0.01

_log = logging.getLogger(__name__)


class SharedFile:
    """A pool's open file in /dev/shm.

    1. Created: it has its size and its header, and no memory yet; others see it and wait.
    2. Announced: others attach.
    3. Closed; by its creator also removed. Who has it open keeps the memory, nobody new gets it.

    A creator that ends without closing removes the file at exit. After a crash the file stays, until a pool of that
    name is created again.

    Attributes:
        path, fd: the file. `created`: whether this process made it.
        num_blocks, block_bytes: the pool's sizes. `blocks_bytes`: both together, in whole OS pages.
        header_bytes: what the file has beyond the blocks.
    """

    header_bytes = mmap.PAGESIZE

    def __init__(self, path: str, fd: int, num_blocks: int, block_bytes: int, *, created: bool) -> None:
        self.path, self.fd, self.created = path, fd, created
        self.num_blocks, self.block_bytes = num_blocks, block_bytes
        self.blocks_bytes = round_up(num_blocks * block_bytes)
        self._finalizer = weakref.finalize(self, _close, path if created else None, fd, os.getpid())

    @classmethod
    def create(cls, name: str, num_blocks: int, block_bytes: int) -> SharedFile:
        """Make the file of the pool `name`, for this process until it is announced.

        Raises:
            RecordError: the name cannot be one.
            Refused: the name is in use, or /dev/shm cannot be used.
            PinningError: /dev/shm has not enough free space.
        """
        path = shmdir.path_of(name)
        with shmdir.gate():
            _remove_left_over(path)
            blocks_bytes = round_up(num_blocks * block_bytes)
            asked, free = blocks_bytes + cls.header_bytes, shmdir.free_bytes()
            if asked > free:
                raise _no_space(path, asked, free)
            try:
                fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            except OSError as error:
                raise Refused(f"the host pool {path} cannot be made: {error.strerror}") from error
            file = cls(path, fd, num_blocks, block_bytes, created=True)
            try:
                fcntl.flock(fd, fcntl.LOCK_SH)
                # The header's write also sets the size, so that there is no file with a size and no header.
                file._write_header(ready=0)
            except OSError as error:
                file._finalizer.detach()  # it would wait for the gate, which this call holds
                shmdir.unlink_if_same(path, fd)
                os.close(fd)
                raise _no_space(path, asked, free) from error
        if not kernel_populates():
            file._reserve(asked, free)
        return file

    @classmethod
    def attach(cls, name: str, timeout_s: float) -> SharedFile:
        """Open the file of the pool `name` once its creator has announced it, waiting at most `timeout_s`.

        Raises:
            RecordError: the name cannot be one.
            Refused: there is no such pool in time, a crashed run left it, or the file is no pool.
        """
        path = shmdir.path_of(name)
        deadline = time.monotonic() + timeout_s
        while True:
            with shmdir.gate():
                found = cls._look(path)
            if isinstance(found, SharedFile):
                return found
            if time.monotonic() >= deadline:
                raise Refused(found)
            time.sleep(_POLL_S)

    @classmethod
    def _look(cls, path: str) -> SharedFile | str:
        """The file if it can be attached to, or else why not yet."""
        fd = shmdir.open_existing(path)
        if fd is None:
            return (
                f"there is no host pool {path}: its creator has not made it yet, or has closed it; "
                "create it first, with HostPool(..., name=...), or give attach a longer timeout_s"
            )
        file = None
        try:
            _, _, ready, num_blocks, block_bytes, creator = _read_header(path, fd)
            if shmdir.is_unused(fd):
                return (
                    f"the host pool {path} was left by process {creator}, which ended without closing it, and nobody "
                    "uses it; create it again, with HostPool(..., name=...), which replaces the file"
                )
            if not ready:
                return f"the host pool {path} is still being made by process {creator}; give attach a longer timeout_s"
            fcntl.flock(fd, fcntl.LOCK_SH)
            file = cls(path, fd, num_blocks, block_bytes, created=False)
            return file
        finally:
            if file is None:
                os.close(fd)

    def announce(self) -> None:
        """Let others attach."""
        if self.created:
            self._write_header(ready=1)

    def unlink(self) -> None:
        """Remove the name now. Who has the pool open keeps it; nobody new can attach. Harmless when it is gone."""
        if not self._finalizer.alive:
            return  # closed: the descriptor may be another file's by now
        with shmdir.gate():
            shmdir.unlink_if_same(self.path, self.fd)

    def close(self) -> None:
        """Close the file; its creator also removes it. What is mapped stays mapped. Harmless when closed."""
        self._finalizer()

    def _write_header(self, ready: int) -> None:
        header = _HEADER.pack(_MAGIC, _VERSION, ready, self.num_blocks, self.block_bytes, os.getpid())
        os.pwrite(self.fd, header.ljust(self.header_bytes, b"\0"), self.blocks_bytes)

    def _reserve(self, asked: int, free: int) -> None:
        """Take the space at once: without the kernel's help, memory that runs out later would be a signal."""
        try:
            os.posix_fallocate(self.fd, 0, self.blocks_bytes)
        except OSError as error:
            self.close()
            raise _no_space(self.path, asked, free) from error


def _no_space(path: str, asked: int, free: int) -> PinningError:
    return PinningError(
        f"cannot make the host pool {path} of {asked} bytes: {shmdir.SHM_DIR} has {free} bytes free; enlarge it "
        f"(mount -o remount,size=... {shmdir.SHM_DIR}; docker run --shm-size=...), remove what nobody uses there, "
        "or ask for a smaller pool",
        asked_bytes=asked,
        pinned_bytes=0,
    )


def _read_header(path: str, fd: int) -> tuple[bytes, int, int, int, int, int]:
    size = os.fstat(fd).st_size
    text = os.pread(fd, _HEADER.size, max(0, size - SharedFile.header_bytes))
    if len(text) == _HEADER.size:
        magic, version, ready, num_blocks, block_bytes, creator = _HEADER.unpack(text)
        whole = round_up(num_blocks * block_bytes) + SharedFile.header_bytes == size
        if magic == _MAGIC and version == _VERSION and whole:
            return magic, version, ready, num_blocks, block_bytes, creator
        if magic == _MAGIC and version != _VERSION:
            raise Refused(
                f"the host pool {path} was made by another version of kvmove (format {version}, this one reads "
                f"{_VERSION}); use one version in all processes, or remove the file when they have ended"
            )
    raise Refused(f"{path} is not a host pool, or was cut short; remove the file, or choose another name for the pool")


def _remove_left_over(path: str) -> None:
    """Remove the file of a run that crashed; refuse where the name is in use, or the file is none of ours."""
    fd = shmdir.open_existing(path)
    if fd is None:
        return
    try:
        if os.fstat(fd).st_size:  # a creator that was killed between making and sizing it leaves none
            creator = _read_header(path, fd)[-1]
        else:
            creator = 0
        if not shmdir.is_unused(fd):
            raise Refused(
                f"the host pool {path} exists (made by process {creator}) and is in use; attach to it with "
                "HostPool.attach(name), close it in every process, or choose another name"
            )
        os.unlink(path)
        _log.warning("removed the host pool %s that process %d left without closing it", path, creator)
    finally:
        os.close(fd)


def _close(path_to_remove: str | None, fd: int, pid: int) -> None:
    if os.getpid() == pid:  # what a forked child closes is its parent's
        if path_to_remove is not None:
            with suppress(Refused), shmdir.gate():
                shmdir.unlink_if_same(path_to_remove, fd)
        fcntl.flock(fd, fcntl.LOCK_UN)  # closing alone would leave it while a view of the memory lives
    os.close(fd)
