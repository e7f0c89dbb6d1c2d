"""Queues of one rank whose copies run late, in any legal order, and now and then not at all."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from kvmove.errors import InternalError
from kvmove.move.queues import Mark, Queue, Work

_ENGINE = -1  # the engine's own stream, as one more queue


class LateMark:
    """The end of a piece of work. Whoever blocks on it lets the queues run until it is reached."""

    __slots__ = ("_queues", "_reached")

    def __init__(self, queues: LateQueues | None) -> None:
        self._queues = queues
        self._reached = queues is None

    def reach(self) -> None:
        self._reached = True

    def done(self) -> bool:
        if self._queues is not None:
            self._queues.raise_if_broken()
        return self._reached

    def synchronize(self) -> None:
        while not self._reached:
            assert self._queues is not None
            self._queues.raise_if_broken()
            self._queues.run(1)
        self.done()

    def elapsed_ns(self) -> int | None:
        return None

    def queued_ns(self) -> int | None:
        return None


class LateQueues:
    """Streams that run nothing until `run`, `drain`, or somebody who blocks on a mark lets them.

    What runs is what CUDA streams would allow: in order within a queue, never before the marks that a piece comes
    after, and otherwise at random. `engine` puts work into the engine's stream.

    Faults:

    - `refuse(n)`: the n-th launch from now on is refused, as when a kernel cannot be launched.
    - `break_down()`: an error that stays, as after an illegal address; whatever asks the device from then on raises.
    """

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._queues: dict[int, deque[tuple[list[Mark], Callable[[], None], LateMark]]] = {
            q: deque() for q in (_ENGINE, *Queue)
        }
        self._refused_in: int | None = None
        self._broken: str | None = None

    @property
    def is_idle(self) -> bool:
        """Whether nothing is queued."""
        return not any(self._queues.values())

    def reseed(self, seed: int) -> None:
        """Choose another order from now on."""
        self._rng.seed(seed)

    def refuse(self, launch: int) -> None:
        """Refuse the `launch`-th launch from now on, counted from 0."""
        self._refused_in = launch

    def refuse_none(self) -> None:
        """Take `refuse` back, where nothing came of it."""
        self._refused_in = None

    def break_down(self, why: str = "CUDA error: an illegal memory access was encountered") -> None:
        """Fail everything that is queued, and everything that is asked from now on."""
        self._broken = why
        for queue in self._queues.values():
            queue.clear()

    def raise_if_broken(self) -> None:
        if self._broken is not None:
            raise RuntimeError(self._broken)

    def engine(self, work: Callable[[], None]) -> LateMark:
        """Run `work` in the engine's stream, after all it has been told to wait for."""
        return self._append(_ENGINE, [], work)

    def here(self) -> Mark:
        queue = self._queues[_ENGINE]
        return queue[-1][2] if queue else LateMark(None)

    def at(self, event: Any) -> Mark:
        if not isinstance(event, LateMark):
            raise InternalError(f"{event!r} is no point in these queues")
        return event

    def submit(self, queue: Queue, after: Iterable[Mark], work: Work) -> Mark:
        self.raise_if_broken()
        if self._refused_in is not None:
            self._refused_in -= 1
            if self._refused_in < 0:
                self._refused_in = None
                raise RuntimeError("the launch was refused")
        return self._append(queue, after, partial(work, None))

    def wait(self, mark: Mark) -> None:
        self._append(_ENGINE, [mark], lambda: None)

    def recycle(self, mark: Mark) -> None:
        return

    def run(self, most: int) -> int:
        """Run up to `most` pieces of work, and return how many there were to run."""
        for ran in range(most):
            # Marks say that they are reached also on a broken device, or nothing behind them would ever be dropped.
            ready = [q for q in self._queues.values() if q and all(_is_reached(m) for m in q[0][0])]
            if not ready:
                if not self.is_idle:
                    raise InternalError("deadlock: copies are queued, and none of them may run")
                return ran
            _, work, mark = self._rng.choice(ready).popleft()
            work()
            mark.reach()
        return most

    def drain(self) -> None:
        self.raise_if_broken()
        while self.run(1000):
            pass

    def _append(self, queue: int, after: Iterable[Mark], work: Callable[[], None]) -> LateMark:
        mark = LateMark(self)
        self._queues[queue].append((list(after), work, mark))
        return mark


def _is_reached(mark: Mark) -> bool:
    return not isinstance(mark, LateMark) or mark._reached
