"""`PolicyFile`: a policy that follows its file while the engine runs, and never leaves it without a policy.

Reading, parsing, checking and proving happen on a thread of its own; what the engine's thread does at a step boundary
is to compare one reference. So no lock is on the way of a decision, and no step sees two policies.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from kvmove.errors import PolicyError, Refused
from kvmove.kvpol.admission import Demands
from kvmove.kvpol.following import Follower, Version
from kvmove.kvpol.policy import Policy

if TYPE_CHECKING:
    from kvmove.kvpol.params import Overrides

_log = logging.getLogger(__name__)

# How often the file is looked at though nothing was notified: network file systems, links that lead to another
# folder, and a folder that was itself replaced do not always notify.
_LOOK_MS = 1000


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
    refusals: int  # how often the file was read and could not be used
    last_error: str | None  # why the file as it is now cannot be used, as text; None when it is in use
    last_error_at: float | None  # when that was found, in seconds since the epoch
    watching: bool


@dataclass(frozen=True, slots=True)
class _State:
    """Everything that `status` shows, in one reference: it is swapped as a whole and never waited for."""

    policy: Policy
    data: bytes | None  # what the policy was read from
    loaded_at: float
    reloads: int = 0
    refusals: int = 0
    error: str | None = None
    error_at: float | None = None


class PolicyFile:
    """The latest good policy of a file.

    1. Making it loads the file; a file that cannot be used raises, because there is no earlier policy to keep.
    2. With `watch`, a thread loads the file again after every change, once it has been at rest for the debounce.
       Without, `reload()` does, or `poll()`. A file that is missing, has mistakes or cannot be proved keeps the last
       good policy, and is reported to the log and in `status()`.
    3. `StepScheduler(file)` uses the policy in use at each `begin_step`; a step under way keeps its own. A scheduler
       of another kind is told by `apply_to(scheduler)`, called on its thread before each step.
    4. `close()`, or leaving the `with` block, ends the thread. The last policy stays usable.

    A file without a rule is refused, as is one whose last line has no end where the one before had one: both are what
    a file looks like that was cut while it was written. A version that may be the beginning of another one has to
    rest ten times as long before it is used. Versions are told apart by their bytes, never by their times alone, and
    links and folders on the way to the file are followed anew each time.

    Threads do not survive a fork: make it in the process that uses it.

    Args:
        path: the policy's file.
        params: values for the file's params, as for `Policy.load`; they hold for every version of the file.
        watch: follow the file (needs the extra `watch`).
        check_strict: refuse what `kvmove check --strict` fails on.
        prove: refuse what `kvmove prove` does not prove: a false `assert`, a rule that can never decide, and also a
            question that the solver did not answer in time, since nobody knows then (needs the extra `prove`).
        prove_timeout_s: seconds for each of these questions.
        debounce_ms: milliseconds for which a changed file must be at rest before it is read.
        clock: the time in seconds, for the debounce.

    Raises:
        PolicyError: the file cannot be used.
        Refused: an argument is out of range, or the extra that `watch` or `prove` needs is not installed.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        params: Overrides | None = None,
        *,
        watch: bool = True,
        check_strict: bool = False,
        prove: bool = False,
        prove_timeout_s: float = 10.0,
        debounce_ms: int = 100,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if type(debounce_ms) is not int or not 1 <= debounce_ms <= 60_000:
            raise Refused(f"debounce_ms is {debounce_ms!r}; an int in [1, 60000] is needed")
        self._demands = Demands(dict(params or {}), check_strict, prove, prove_timeout_s)
        notifications = _watchfiles() if watch else None
        # Absolute, so that the engine may change its working directory. Not resolved: a link may be swapped.
        self._path = Path(os.path.abspath(path))
        self._debounce_s = debounce_ms / 1000
        self._loading = threading.Lock()  # held by who looks at the file; never by `status`, `current` or `apply_to`
        self._follower = Follower(self._path, self._debounce_s, clock)
        version = self._follower.now()
        self._state = _State(self._demands.policy_of(self._path, version, None), version.data, time.time())
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        if notifications is not None:
            self._thread = threading.Thread(
                target=self._watch, args=(notifications,), name=f"kvmove policy {self._path.name}", daemon=True
            )
            self._thread.start()

    @property
    def current(self) -> Policy:
        """The latest good policy of the file."""
        return self._state.policy

    @property
    def is_broken(self) -> bool:
        """Whether the file as it was last read cannot be used; `status()` says why."""
        return self._state.error is not None

    def apply_to(self, scheduler: _TakesPolicy, applied: Policy | None = None) -> Policy:
        """Let `scheduler` use the current policy from its next step on, unless it is `applied` already.

        Call it on the scheduler's thread before `begin_step`, and pass what the last call returned.
        """
        policy = self._state.policy  # read once: the watching thread may replace it at any time
        if policy is not applied:
            scheduler.set_policy(policy)
        return policy

    def reload(self) -> bool:
        """Read the file now, on this thread, at rest or not; whether another policy is in use afterwards.

        Mistakes do not raise. It waits for a load that another thread has begun.
        """
        with self._loading:
            return self._use(self._follower.now())

    def poll(self) -> bool:
        """Look at the file once; if it has changed and is at rest, load it. Whether another policy is in use.

        The watching thread calls it. Without one, call it from time to time where loading may take its time. It does
        nothing while another thread loads.
        """
        if not self._loading.acquire(blocking=False):
            return False
        try:
            version = self._follower.look(self._state.data)
            return version is not None and self._use(version)
        finally:
            self._loading.release()

    def status(self) -> PolicyFileStatus:
        """What is in use, and how the last attempt to load went. It never waits."""
        state = self._state
        return PolicyFileStatus(
            path=str(self._path),
            name=state.policy.name,
            hash=state.policy.hash,
            loaded_at=state.loaded_at,
            reloads=state.reloads,
            refusals=state.refusals,
            last_error=state.error,
            last_error_at=state.error_at,
            watching=self._thread is not None and self._thread.is_alive(),
        )

    def close(self) -> None:
        """End the watching thread, after the load that it is at. Calling it again does nothing."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def __enter__(self) -> PolicyFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _use(self, version: Version) -> bool:
        """Put the policy of `version` in the place of the one in use, if it may be used and is another one."""
        old = self._state
        try:
            policy = self._demands.policy_of(self._path, version, old.data)
        except PolicyError as e:
            self._refuse(old, str(e))
            return False
        except Exception as e:  # any: a bug of ours must leave the engine its policy, and must be seen
            _log.exception("%s: loading it failed; this is a bug of kvmove, please report it", self._path)
            self._refuse(old, f"loading it failed: {e!r}")
            return False
        if policy.hash == old.policy.hash:
            self._state = replace(old, data=version.data, error=None, error_at=None)
            return False
        self._state = _State(policy, version.data, time.time(), old.reloads + 1, old.refusals)
        _log.info("%s: policy `%s` (%s) takes the place of %s", self._path, policy.name, policy.hash, old.policy.hash)
        return True

    def _refuse(self, old: _State, message: str) -> None:
        if old.error != message:
            _log.error("%s cannot be used, policy %s stays:\n%s", self._path, old.policy.hash, message)
        self._state = replace(old, refusals=old.refusals + 1, error=message, error_at=time.time())

    def _watch(self, notifications: Callable[..., Any]) -> None:
        while not self._stop.is_set():
            try:
                self._follow(notifications)
            except Exception as e:  # any: a lost watch must not end the watching
                _log.debug("%s: no notifications (%s); looking at the file instead", self._path, e)
                self._stop.wait(_LOOK_MS / 1000)

    def _follow(self, notifications: Callable[..., Any]) -> None:
        self._look_until_at_rest()  # what changed while nobody watched
        # The folder, not the file: editors and ConfigMaps put another file in its place.
        folder = self._path.parent
        watched = _identity(folder)
        events = notifications(
            folder, watch_filter=None, debounce=50, step=10, rust_timeout=_LOOK_MS, yield_on_timeout=True,
            stop_event=self._stop, raise_interrupt=False, recursive=False,
        )  # fmt: skip
        for _ in events:
            self._look_until_at_rest()
            if _identity(folder) != watched:
                return  # another folder stands there: watch that one

    def _look_until_at_rest(self) -> None:
        while True:
            self.poll()
            if not self._follower.is_waiting or self._stop.wait(self._debounce_s):
                return


def _identity(folder: Path) -> tuple[int, int] | None:
    try:
        s = os.stat(folder)
    except OSError:
        return None
    return s.st_dev, s.st_ino


def _watchfiles() -> Callable[..., Any]:
    try:
        from watchfiles import watch
    except ImportError:
        raise Refused(
            "watching a policy file needs watchfiles: pip install 'kvmove[watch]'; "
            "or pass watch=False and call reload()"
        ) from None
    return watch
