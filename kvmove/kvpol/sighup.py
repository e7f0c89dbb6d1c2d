"""Policy files that are read again when the process gets SIGHUP."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable
from types import FrameType

from kvmove.errors import Refused
from kvmove.kvpol.reload import PolicyFile

_log = logging.getLogger(__name__)

THREAD_NAME = "kvmove policies on SIGHUP"


def reload_on_sighup(*files: PolicyFile) -> Callable[[], None]:
    """Reload `files` whenever this process gets SIGHUP; return a function that ends that.

    The handler that was there before still runs, after the reloads were started on a thread of their own. Signals
    that come while a reload waits for its turn are one reload.

    Raises:
        Refused: this is not the main thread, the only one that can set signal handlers, or there is no SIGHUP.
    """
    hangup = getattr(signal, "SIGHUP", None)
    if hangup is None:
        raise Refused("this system has no SIGHUP; call PolicyFile.reload() instead")
    if threading.current_thread() is not threading.main_thread():
        raise Refused("reload_on_sighup was called on another thread; call it on the main one, which gets the signals")
    before = signal.getsignal(hangup)
    one_at_a_time = threading.Lock()
    is_asked = threading.Lock()  # held from a signal until its reload begins

    def reload_all() -> None:
        with one_at_a_time:
            is_asked.release()  # before reading: what is written from now on needs another signal
            for file in files:
                file.reload()

    def handle(number: int, frame: FrameType | None) -> None:
        # Not here: the signal may have interrupted a reload on this thread, which holds the file's lock.
        if is_asked.acquire(blocking=False):
            try:
                threading.Thread(target=reload_all, name=THREAD_NAME, daemon=True).start()
            except RuntimeError as e:  # no thread can be started; the engine's thread, which runs this, must go on
                is_asked.release()
                _log.error("SIGHUP: the policies are not read again: %s", e)
        if callable(before):
            before(number, frame)

    signal.signal(hangup, handle)

    def restore() -> None:
        if signal.getsignal(hangup) is handle:  # whoever set another one since keeps it
            signal.signal(hangup, signal.SIG_DFL if before is None else before)

    return restore
