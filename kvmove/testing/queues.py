"""Queues that run nothing until told to, in any order that the marks allow: for tests of the order rules."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from kvmove.errors import InternalError
from kvmove.move.queues import Mark, Queue, Work

_ENGINE = -1  # the engine's own stream, as one more queue


class ManualMark:
    """Done once its piece of work has run."""

    def __init__(self, *, done: bool = False) -> None:
        self._done = done

    def reach(self) -> None:
        self._done = True

    def done(self) -> bool:
        return self._done

    def synchronize(self) -> None:
        if not self._done:
            raise AssertionError("the mover blocked the host on work that has not run")

    def elapsed_ns(self) -> int | None:
        return None

    def queued_ns(self) -> int | None:
        return None


class ManualQueues:
    """Work waits in its queue until `run` picks it, at random among the queues whose head may run.

    `engine` appends work to the engine's stream. What runs is what streams would allow: in order within a
    queue, and never before the marks that it comes after.
    """

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._queues: dict[int, deque[tuple[list[Mark], Callable[[], None], ManualMark]]] = {
            q: deque() for q in (_ENGINE, *Queue)
        }

    @property
    def is_idle(self) -> bool:
        """Whether nothing is queued."""
        return not any(self._queues.values())

    def engine(self, work: Callable[[], None]) -> ManualMark:
        return self._append(_ENGINE, [], work)

    @property
    def is_idle_engine(self) -> bool:
        """Whether the engine's stream has nothing to run."""
        return not self._queues[_ENGINE]

    def here(self) -> Mark:
        return ManualMark(done=True) if self.is_idle_engine else self._queues[_ENGINE][-1][2]

    def at(self, event: Any) -> Mark:
        assert isinstance(event, ManualMark)
        return event

    def submit(self, queue: Queue, after: Iterable[Mark], work: Work) -> ManualMark:
        return self._append(queue, after, partial(work, None))

    def wait(self, mark: Mark) -> None:
        self._append(_ENGINE, [mark], lambda: None)

    def recycle(self, mark: Mark) -> None:
        return

    def _append(self, queue: int, after: Iterable[Mark], work: Callable[[], None]) -> ManualMark:
        mark = self._new_mark()
        self._queues[queue].append((list(after), work, mark))
        return mark

    def _new_mark(self) -> ManualMark:
        return ManualMark()

    def _is_reached(self, mark: Mark) -> bool:
        return mark.done()

    def run(self, most: int) -> int:
        """Run up to `most` pieces of work; returns how many ran."""
        for ran in range(most):
            ready = [q for q in self._queues.values() if q and all(self._is_reached(m) for m in q[0][0])]
            if not ready:
                if not self.is_idle:
                    raise InternalError("deadlock: work is queued, and none of it may run")
                return ran
            _, work, mark = self._rng.choice(ready).popleft()
            work()
            mark.reach()
        return most

    def drain(self) -> None:
        while self.run(1000):
            pass
