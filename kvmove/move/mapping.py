"""A run of memory of exactly the OS pages that are needed, placed so that huge pages are possible."""

from __future__ import annotations

import ctypes
import mmap
import os
import re
import weakref
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from kvmove.move import shmdir

HUGE_BYTES = 2 << 20
SHMEM_ENABLED = "/sys/kernel/mm/transparent_hugepage/shmem_enabled"
MOUNTS = "/proc/self/mounts"
_MAP_FIXED, _MAP_NORESERVE = 0x10, 0x4000  # the values of x86-64 and arm64; Python's mmap does not have them
_REMOVE = 9  # MADV_REMOVE

# Through ctypes, and not through Python's mmap: it takes no address, and keeps the interpreter's lock in madvise.
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_MAP_FAILED = ctypes.c_void_p(-1).value


def round_up(num_bytes: int, unit: int = mmap.PAGESIZE) -> int:
    """The least multiple of `unit` bytes, by default of an OS page, that is not below `num_bytes`."""
    return -(-num_bytes // unit) * unit


def madvise(address: int, num_bytes: int, advice: int) -> None:
    """Give the kernel advice on [address, address + num_bytes), without the interpreter's lock. Raises OSError."""
    if libc.madvise(address, num_bytes, advice):
        raise last_error()


def last_error() -> OSError:
    """What the libc call that just failed in this thread left in errno."""
    code = ctypes.get_errno()
    return OSError(code, os.strerror(code))


class Mapping:
    """Shared memory of this process, without a file or from one, that lives as long as a view of it.

    Shared, not private, also without a file: after a fork, writes to private memory would go to copies that no device
    sees.

    Attributes:
        array: the memory, uint8 (num_bytes,).
        address: where it begins; a multiple of 2 MiB where the memory has as much.
        mapped_bytes: `num_bytes` rounded up to OS pages: what it can occupy at most.
    """

    def __init__(self, num_bytes: int, fd: int | None = None) -> None:
        """Map `num_bytes`, of the file `fd` from its beginning if it is given. Raises OSError."""
        self.num_bytes, self.mapped_bytes = num_bytes, round_up(num_bytes)
        self.from_file = fd is not None
        align = HUGE_BYTES if num_bytes >= HUGE_BYTES else mmap.PAGESIZE
        # The kernel picks no aligned place by itself where huge pages are off by default: reserve more, keep a part.
        spare = _map(None, self.mapped_bytes + align, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE, -1)
        self.address = round_up(spare, align)
        _unmap(spare, self.address - spare)
        _unmap(self.address + self.mapped_bytes, spare + align - self.address)
        kind = mmap.MAP_SHARED | _MAP_FIXED | (mmap.MAP_ANONYMOUS if fd is None else 0)
        try:
            _map(self.address, self.mapped_bytes, mmap.PROT_READ | mmap.PROT_WRITE, kind, -1 if fd is None else fd)
        except OSError:
            _unmap(self.address, self.mapped_bytes)
            raise
        self.buffer = (ctypes.c_char * num_bytes).from_address(self.address)
        # Arrays and tensors over it keep the buffer alive, so nobody's view ever points to memory that is gone.
        weakref.finalize(self.buffer, _unmap, self.address, self.mapped_bytes).atexit = False
        self.array: NDArray[np.uint8] = np.frombuffer(memoryview(self.buffer), dtype=np.uint8)

    def ask_for_huge_pages(self) -> str:
        """Ask for huge pages before the memory is touched. Returns what the system said, for people."""
        whole = self.num_bytes // HUGE_BYTES * HUGE_BYTES  # not the tail: a huge page there would be larger than asked
        if not whole:
            return "too small"
        try:
            madvise(self.address, whole, mmap.MADV_HUGEPAGE)
        except OSError as error:
            return f"refused ({error.strerror})"
        why = why_no_huge_pages(from_file=self.from_file)
        return "asked" if why is None else f"off ({why})"

    def huge_bytes(self) -> int | None:
        """How much is in huge pages now; None if unknown. As slow as `measure` where the system gives any."""
        return self.measure("ShmemPmdMapped") if why_no_huge_pages(from_file=self.from_file) is None else 0

    def empty(self) -> None:
        """Give the pages back, although somebody may still see them (as zeros): a traceback, for one."""
        with suppress(OSError):
            madvise(self.address, self.mapped_bytes, _REMOVE)

    def measure(self, field: str) -> int | None:
        """The bytes that /proc/self/smaps counts as `field` (`Size`, `Rss`, ...) in this memory; None if unknown.

        The kernel walks all memory of the process for it: seconds, where that is hundreds of GiB in small pages.
        """
        total, inside = 0, False
        try:
            with open("/proc/self/smaps") as lines:
                for line in lines:
                    if area := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
                        begin = int(area[1], 16)
                        inside = self.address <= begin < self.address + self.mapped_bytes
                    elif inside and line.startswith(f"{field}:"):
                        total += int(line.split()[1]) << 10
        except OSError:
            return None
        return total


def why_no_huge_pages(*, from_file: bool) -> str | None:
    """The setting by which the system gives shared memory no huge pages, whatever is asked; None where it may."""
    try:
        with open(SHMEM_ENABLED) as file:
            setting = (re.findall(r"\[(\w+)\]", file.read()) or ["unknown"])[0]
    except OSError:
        return "the kernel has none"
    if not from_file or setting in ("deny", "force"):
        return f"shmem_enabled is {setting}" if setting in ("never", "deny", "unknown") else None
    # A file system of its own goes by how it was mounted, and the default is never.
    try:
        with open(MOUNTS) as file:
            options = [line.split()[3] for line in file if line.split()[1] == shmdir.SHM_DIR]
    except OSError:
        options = []
    allowed = re.search(r"\bhuge=(always|within_size|advise)\b", options[-1] if options else "")
    return None if allowed else f"{shmdir.SHM_DIR} is mounted with huge=never"


def _map(address: int | None, num_bytes: int, access: int, kind: int, fd: int) -> int:
    got = libc.mmap(address, num_bytes, access, kind, fd, 0)
    if got == _MAP_FAILED:
        raise last_error()
    return int(got)


def _unmap(address: int, num_bytes: int) -> None:
    if num_bytes:
        libc.munmap(address, num_bytes)
