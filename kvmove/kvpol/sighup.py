"""Policy files that are read again when the process gets SIGHUP."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType

from kvmove.errors import Refused
from kvmove.kvpol.reload import PolicyFile


def reload_on_sighup(*files: PolicyFile) -> Callable[[], None]:
    """Reload `files` whenever this process gets SIGHUP; return a function that ends that.

    The handler that was there before still runs, after the reloads were started on a thread of their own.

    Raises:
        Refused: this is not the main thread, the only one that can set signal handlers, or there is no SIGHUP.
    """
    hangup = getattr(signal, "SIGHUP", None)
    if hangup is None:
        raise Refused("this system has no SIGHUP; call PolicyFile.reload() instead")
    if threading.current_thread() is not threading.main_thread():
        raise Refused("reload_on_sighup was called on another thread; call it on the main one, which gets the signals")
    before = signal.getsignal(hangup)

    def reload_all() -> None:
        for file in files:
            file.reload()

    def handle(number: int, frame: FrameType | None) -> None:
        # Not here: the signal may have interrupted a reload on this thread, which holds the lock.
        threading.Thread(target=reload_all, name="kvmove policies on SIGHUP", daemon=True).start()
        if callable(before):
            before(number, frame)

    signal.signal(hangup, handle)

    def restore() -> None:
        signal.signal(hangup, signal.SIG_DFL if before is None else before)

    return restore
