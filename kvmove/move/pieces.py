"""Make a mapping usable piece by piece: touched, pinned, and all of it given back when one piece fails."""

from __future__ import annotations

import errno
import os
import resource
import threading
import time
from contextlib import nullcontext, suppress

from kvmove.errors import PinningError
from kvmove.move import cudart, shmdir
from kvmove.move.mapping import Mapping
from kvmove.move.touching import Touching


class _Cannot(Exception):
    """Why a piece could not be pinned, and what to change."""

    def __init__(self, why: str, remedy: str) -> None:
        super().__init__(why)
        self.remedy = remedy


class Pieces:
    """The pieces of one mapping, from its beginning.

    1. Started: pieces become ready in order, in this thread or in one of its own.
    2. Ready: `ready_bytes` is all of it.
    3. Failed: `raise_failure` raises; nothing stays pinned, from when no holder uses what was ready.
    4. Closed: nothing is pinned.

    Attributes:
        ends: where each piece ends, bytes from the beginning, ascending.
        ready_bytes: how much from the beginning is ready.
        device_address: the beginning as kernels see it; known once the first piece is ready.
        ready_s: seconds from the start until all was ready; None before.
    """

    def __init__(
        self, mapping: Mapping, piece_bytes: int, *, gpu: int | None, touched: bool, file: str | None = None
    ) -> None:
        """Pieces of `piece_bytes` of `mapping`.

        Args:
            gpu: the CUDA device to pin for; None does not pin.
            touched: whether the memory gets its pages at once; else when it is first used or pinned.
            file: where the memory is from, for messages.
        """
        self.mapping = mapping
        self.ends = [*range(piece_bytes, mapping.num_bytes, piece_bytes), mapping.num_bytes]
        self.ready_bytes, self.device_address = 0, mapping.address
        self.ready_s: float | None = None
        self._piece_bytes, self._gpu, self._touched, self._file = piece_bytes, gpu, touched, file
        self._registered: list[int] = []
        self._holders: set[int] = set()
        self._failure: tuple[str, int] | None = None  # message, bytes that were pinned
        # Reentrant: the garbage collector may close pieces in a thread that holds a lock.
        self._changed = threading.Condition(threading.RLock())
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()

    def start(self, *, background: bool) -> None:
        """Make the pieces ready; `background` returns when the first one is.

        Raises:
            PinningError: a piece failed.
        """
        if background:
            # A daemon, because a process that ends must not first pin what is left.
            self._thread = threading.Thread(target=self._prepare, name="kvmove-pinning", daemon=True)
            self._thread.start()
            with self._changed:
                self._changed.wait_for(lambda: self.ready_bytes or self._failure)
        else:
            self._prepare()
        self.raise_failure()

    def wait(self, timeout_s: float | None) -> bool:
        """Block until all is ready or it was closed; False when `timeout_s` passed before.

        Raises:
            PinningError: a piece failed.
        """
        with self._changed:
            done = self._changed.wait_for(
                lambda: self.all_ready or self._failure is not None or self._stop.is_set(), timeout_s
            )
            self.raise_failure()
            return done

    @property
    def all_ready(self) -> bool:
        return self.ready_bytes == self.mapping.num_bytes

    @property
    def pinned_pieces(self) -> int:
        return len(self._registered)

    @property
    def failure(self) -> str | None:
        """Why a piece failed; None while none did."""
        return self._failure[0] if self._failure else None

    def raise_failure(self) -> None:
        """Raise PinningError if a piece failed."""
        if self._failure is not None:
            message, pinned = self._failure
            raise PinningError(message, asked_bytes=self.mapping.num_bytes, pinned_bytes=pinned)

    def hold(self, holder: int) -> None:
        """Keep what is ready until `holder` releases it, even if a later piece fails. Raises PinningError."""
        with self._changed:
            self.raise_failure()
            self._holders.add(holder)

    def release(self, holder: int) -> None:
        """End a hold. The last one gives a failed mapping back. Releasing twice is harmless."""
        with self._changed:
            self._holders.discard(holder)
            if self._failure is not None and not self._holders:
                self._unpin()

    @property
    def num_holders(self) -> int:
        return len(self._holders)

    def stop(self) -> None:
        """Make no further piece ready, and block until the one being worked on has ended."""
        if os.getpid() != self._pid:
            return  # a forked child has neither the thread nor the CUDA context
        self._stop.set()
        with self._changed:
            self._changed.notify_all()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def close(self) -> None:
        """Stop and unpin. Harmless when closed already."""
        self.stop()
        self._unpin()

    def _prepare(self) -> None:
        started = time.monotonic()
        touching = Touching(self.mapping, self._stop) if self._touched else None
        begin = 0
        try:
            with nullcontext() if self._gpu is None else cudart.on_device(self._gpu):
                for end in self.ends:
                    if touching is not None:
                        touching.wait_for(end)
                    if self._stop.is_set():
                        return
                    if self._gpu is not None:
                        self._pin(begin, end)
                    if end == self.mapping.num_bytes:
                        self.ready_s = time.monotonic() - started
                    with self._changed:
                        self.ready_bytes = end
                        self._changed.notify_all()
                    begin = end
        except Exception as error:
            self._fail(error)
        finally:
            if touching is not None:
                if not self.all_ready:
                    self._stop.set()
                touching.join()
            if self._stop.is_set() and self._thread is threading.current_thread():
                self._unpin_unless_held()  # closed by the garbage collector in this very thread, after its last look

    def _pin(self, begin: int, end: int) -> None:
        address = self.mapping.address + begin
        failure = cudart.host_register(address, end - begin)
        if failure is not None and failure.barred:
            raise _Cannot(
                str(failure),
                "this machine bars programs from pinning (confidential computing does); "
                "pageable=True makes a pool that is not pinned",
            )
        if failure is not None:
            raise _Cannot(str(failure), "raise it (ulimit -l) or ask for a smaller pool")
        self._registered.append(address)
        alias = cudart.device_alias(address)
        if begin == 0:
            self.device_address = alias
        elif alias - self.device_address != begin:
            raise _Cannot(
                f"the device sees the {len(self._registered)} pinned pieces at unrelated addresses",
                f"ask for at most {self._piece_bytes} bytes",
            )

    def _fail(self, error: Exception) -> None:
        remedy = error.remedy if isinstance(error, _Cannot) else "ask for a smaller pool"
        if isinstance(error, OSError):
            # The kernel says EFAULT where a process that touched the memory itself would have got SIGBUS.
            why = "there is no memory for it" if error.errno == errno.EFAULT else str(error.strerror)
        else:
            why = str(error) or type(error).__name__
        message = (
            f"cannot {'populate' if self._gpu is None else 'pin'} {self.mapping.num_bytes} bytes of host memory: {why} "
            f"after {self.ready_bytes} bytes; {self._limits()}; {remedy}"
        )
        with self._changed:
            self._failure = (message, self.ready_bytes if self._gpu is not None else 0)
            # Kernels in flight may still read what was ready: their mover's release gives it back.
            self._unpin_unless_held()
            self._changed.notify_all()

    def _limits(self) -> str:
        limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
        allows = "unlimited" if limit == resource.RLIM_INFINITY else f"{limit} bytes"
        limits = f"the locked-memory limit is {allows}"
        if self._file is not None:
            with suppress(OSError):
                limits = f"{shmdir.SHM_DIR} has {shmdir.free_bytes()} bytes free for {self._file}; {limits}"
        return limits

    def _unpin_unless_held(self) -> None:
        with self._changed:
            if not self._holders:
                self._unpin()

    def _unpin(self) -> None:
        if os.getpid() != self._pid:
            return
        with self._changed:
            while self._registered:
                cudart.host_unregister(self._registered.pop())
