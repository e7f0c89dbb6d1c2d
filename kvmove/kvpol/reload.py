"""`PolicyFile`: a policy that follows its file while the engine runs, and never leaves it without a policy.

Reading, parsing and checking happen on a thread of its own; what the engine's thread does at a step boundary is
to compare one reference. So no lock is on the way of a decision, and no step sees two policies.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from kvmove.errors import PolicyError, Refused
from kvmove.kvpol.policy import Policy

if TYPE_CHECKING:
    from kvmove.kvpol.params import Overrides

_log = logging.getLogger(__name__)

# How often the file is looked at though nothing was notified: network file systems, links that lead to another
# folder, and a folder that was itself replaced do not always notify.
_LOOK_MS = 1000
_MAX_LOOKS = 50  # a file that never comes to rest is read after this many times the debounce


class _TakesPolicy(Protocol):
    def set_policy(self, policy: Any, /) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyFileStatus:
    """What a `PolicyFile` holds, and how its last attempt to load went."""

    path: str
    name: str  # of the policy in use
    hash: str  # of the policy in use; every decision record carries it
    loaded_at: float  # when the policy in use was loaded, in seconds since the epoch
    reloads: int  # how often another policy took the place of the one before
    last_error: str | None  # why the file as it is now cannot be used, as text; None when it is in use
    last_error_at: float | None  # when that was found, in seconds since the epoch
    watching: bool


class PolicyFile:
    """The latest good policy of a file.

    1. Making it loads the file; a file that cannot be used raises, because there is no earlier policy to keep.
    2. With `watch`, a thread loads the file again after every change, once it has been at rest for the debounce.
       Without, `reload()` does. A file that is missing or has mistakes keeps the last good policy, and is
       reported to the log and in `status()`.
    3. Before each `begin_step`, the engine's thread calls `apply_to(scheduler)`, which hands over a new policy
       if there is one. A step under way keeps its own.
    4. `close()`, or leaving the `with` block, ends the thread. The last policy stays usable.

    Threads do not survive a fork: make it in the process that uses it.

    Args:
        path: the policy's file.
        params: values for the file's params, as for `Policy.load`; they hold for every version of the file.
        watch: follow the file (needs the extra `watch`).
        check_strict: refuse what `kvmove check --strict` fails on.
        debounce_ms: milliseconds for which a changed file must be at rest before it is read.

    Raises:
        PolicyError: the file cannot be used.
        Refused: `debounce_ms` is out of range, or `watch` is asked for and watchfiles is not installed.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        params: Overrides | None = None,
        *,
        watch: bool = True,
        check_strict: bool = False,
        debounce_ms: int = 100,
    ) -> None:
        if type(debounce_ms) is not int or not 1 <= debounce_ms <= 60_000:
            raise Refused(f"debounce_ms is {debounce_ms!r}; an int in [1, 60000] is needed")
        # Absolute, so that the engine may change its working directory. Not resolved: a link may be swapped.
        self._path = Path(os.path.abspath(path))
        self._params = dict(params or {})
        self._check_strict = check_strict
        self._debounce_s = debounce_ms / 1000
        self._loading = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        notifications = _watchfiles() if watch else None
        self._seen = _signature(self._path)
        self._current = self._load()
        self._loaded_at = time.time()
        self._reloads = 0
        self._error: tuple[str, float] | None = None
        if notifications is not None:
            self._thread = threading.Thread(
                target=self._watch, args=(notifications,), name=f"kvmove policy {self._path.name}", daemon=True
            )
            self._thread.start()

    @property
    def current(self) -> Policy:
        """The latest good policy of the file."""
        return self._current

    @property
    def is_broken(self) -> bool:
        """Whether the file as it is now cannot be used. Unlike `status()`, which says why, it never waits."""
        return self._error is not None

    def apply_to(self, scheduler: _TakesPolicy, applied: Policy | None = None) -> Policy:
        """Let `scheduler` use the current policy from its next step on, unless it is `applied` already.

        Call it on the scheduler's thread before `begin_step`, and pass what the last call returned.
        """
        policy = self._current  # read once: the watching thread may replace it at any time
        if policy is not applied:
            scheduler.set_policy(policy)
        return policy

    def reload(self) -> bool:
        """Read the file now, on this thread; whether another policy is in use afterwards. Mistakes do not raise."""
        with self._loading:
            self._seen = _signature(self._path)
            try:
                policy = self._load()
            except PolicyError as e:
                self._report(str(e))
                return False
            self._error = None
            old = self._current
            if policy.hash == old.hash:
                return False
            self._current = policy
            self._loaded_at = time.time()
            self._reloads += 1
        _log.info("%s: policy `%s` (%s) takes the place of %s", self._path, policy.name, policy.hash, old.hash)
        return True

    def status(self) -> PolicyFileStatus:
        """What is in use, and how the last attempt to load went."""
        with self._loading:
            message, at = self._error or (None, None)
            return PolicyFileStatus(
                path=str(self._path),
                name=self._current.name,
                hash=self._current.hash,
                loaded_at=self._loaded_at,
                reloads=self._reloads,
                last_error=message,
                last_error_at=at,
                watching=self._thread is not None and self._thread.is_alive(),
            )

    def close(self) -> None:
        """End the watching thread. Calling it again does nothing."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def __enter__(self) -> PolicyFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _load(self) -> Policy:
        policy = Policy.load(self._path, self._params)
        if self._check_strict:
            from kvmove.kvpol.analyse import analyse
            from kvmove.kvpol.render import render_all

            source = policy.analysis.source
            findings = analyse(source, self._params, strict=True).findings
            if findings:
                raise PolicyError(render_all(findings, source), findings)
        return policy

    def _report(self, message: str) -> None:
        if self._error is None or self._error[0] != message:
            _log.error("%s cannot be used, policy %s stays:\n%s", self._path, self._current.hash, message)
        self._error = (message, time.time())

    def _watch(self, notifications: Callable[..., Any]) -> None:
        while not self._stop.is_set():
            try:
                self._follow(notifications)
            except Exception as e:  # any: a lost watch must not end the watching
                _log.debug("%s: no notifications (%s); looking at the file instead", self._path, e)
                self._stop.wait(_LOOK_MS / 1000)
                self._reload_if_changed()

    def _follow(self, notifications: Callable[..., Any]) -> None:
        # The folder, not the file: editors and ConfigMaps put another file in its place.
        events = notifications(
            self._path.parent, watch_filter=None, debounce=50, step=10, rust_timeout=_LOOK_MS, yield_on_timeout=True,
            stop_event=self._stop, raise_interrupt=False, recursive=False,
        )  # fmt: skip
        for _ in events:
            self._reload_if_changed()

    def _reload_if_changed(self) -> None:
        before = _signature(self._path)
        if before == self._seen:
            return
        for _ in range(_MAX_LOOKS):
            if self._stop.wait(self._debounce_s):
                return
            now = _signature(self._path)
            if now == before:
                break
            before = now
        self.reload()


def _watchfiles() -> Callable[..., Any]:
    try:
        from watchfiles import watch
    except ImportError:
        raise Refused(
            "watching a policy file needs watchfiles: pip install 'kvmove[watch]'; "
            "or pass watch=False and call reload()"
        ) from None
    return watch


def _signature(path: Path) -> tuple[int, ...] | None:
    """What changes when the file does; None where there is none to look at."""
    try:
        s = os.stat(path)
    except OSError:
        return None
    return s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns
