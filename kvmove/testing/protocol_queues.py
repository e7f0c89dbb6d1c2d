"""Queues of one rank whose copies run late, in any legal order, and now and then not at all."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

from kvmove.errors import InternalError
from kvmove.move.queues import Mark, Queue, Work
from kvmove.testing.queues import ManualMark, ManualQueues


class LateMark(ManualMark):
    """The end of a piece of work. Whoever blocks on it lets the queues run until it is reached."""

    def __init__(self, queues: LateQueues | None) -> None:
        super().__init__(done=queues is None)
        self._queues = queues

    @property
    def is_reached(self) -> bool:
        """Whether the work has run, also where the device has broken down since."""
        return self._done

    def done(self) -> bool:
        if self._queues is not None:
            self._queues.raise_if_broken()
        return self._done

    def synchronize(self) -> None:
        while not self._done:
            assert self._queues is not None
            self._queues.raise_if_broken()
            self._queues.run(1)
        self.done()


class LateQueues(ManualQueues):
    """Streams that run nothing until `run`, `drain`, or somebody who blocks on a mark lets them; and that can fail.

    Faults:

    - `refuse(n)`: the n-th launch from now on is refused, as when a kernel cannot be launched.
    - `break_down()`: an error that stays, as after an illegal address; whatever asks the device from then on raises.
    """

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self._refused_in: int | None = None
        self._broken: str | None = None

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

    def here(self) -> Mark:
        return LateMark(None) if self.is_idle_engine else super().here()

    def at(self, event: Any) -> Mark:
        if not isinstance(event, LateMark):
            raise InternalError(f"{event!r} is no point in these queues")
        return event

    def submit(self, queue: Queue, after: Iterable[Mark], work: Work) -> ManualMark:
        self.raise_if_broken()
        if self._refused_in is not None:
            self._refused_in -= 1
            if self._refused_in < 0:
                self._refused_in = None
                raise RuntimeError("the launch was refused")
        return super().submit(queue, after, work)

    def drain(self) -> None:
        self.raise_if_broken()
        super().drain()

    def _new_mark(self) -> LateMark:
        return LateMark(self)

    def _is_reached(self, mark: Mark) -> bool:
        # Marks say that they are reached also on a broken device, or nothing behind them would ever be dropped.
        return mark.is_reached if isinstance(mark, LateMark) else mark.done()
