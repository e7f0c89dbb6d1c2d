"""Makes an example readable: estimates unknown, values small, and round where the smallest is not."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from fractions import Fraction
from time import thread_time

from kvmove import schema
from kvmove.kvpol.proof.inputs import READABLE, Inputs
from kvmove.kvpol.proof.session import Term, check
from kvmove.kvpol.proof.worlds import World
from kvmove.kvpol.units import OF_SCHEMA, show
from kvmove.schema import Unit

# What a value is to be at most, tried as the value too. Times are decimal.
_POWERS_OF_TWO = [0, *(1 << n for n in range(47))]
_DECIMAL = [0, *(digit * 10**n for n in range(14) for digit in (1, 2, 5)), schema.MAX_TIME]
# A hit that leaves nothing to compute is never sync, whatever the policy says: an example that is not one says more.
_PREFERRED = {"compute_tokens": 1}
_SUMS = ("prompt_tokens",)  # settled by the others
_ROUND = {
    Unit.BYTES: (1 << 30, 1 << 20, 1 << 10),
    Unit.TOKENS: (1024, 64, 16),
    Unit.TIME: (10**9, 10**6, 10**3),
    Unit.NUMBER: (1000, 100, 10),
}
_MAX_CHECK_S = 0.25  # an attempt that takes longer is not worth it: the example is right without it


class Shrinking:
    """Fixes one variable after the other to the simplest value with which the solver's formulas can still hold."""

    def __init__(self, solver: Term, world: World, seconds: float) -> None:
        self.solver, self.world = solver, world
        # Of this thread's work, so that a busy machine does not change what is shown.
        self.deadline = thread_time() + seconds
        self.model = solver.model()

    def run(self) -> Term:
        """A model of the formulas; scopes that were opened in the solver stay open."""
        self._settle_unread()
        for v in sorted(READABLE, key=lambda v: v.name in _SUMS):
            for inputs in self._apart(v):
                if v.optional and self._try(self.world.session.opposite(inputs.known[v.name])):
                    continue
                self._settle(v, inputs)
        return self.model

    def _settle_unread(self) -> None:
        """What no formula reads is as small as it can be, all at once where that goes."""
        s = self.world.session
        facts = []
        for inputs in self.world.inputs:
            for v in READABLE:
                if v.name not in inputs.read and v.optional:
                    facts.append(s.opposite(inputs.known[v.name]))
                elif v.name not in inputs.read and v.name not in _SUMS:
                    facts.append(inputs.values[v.name] == s.number(_PREFERRED.get(v.name, max(v.low, 0))))
        self._try(*facts)

    def _apart(self, v: schema.Variable) -> Iterator[Inputs]:
        """The hits with a value of their own of this variable; the larger ones last."""
        seen: list[Term] = []
        for inputs in self.world.inputs:
            value = inputs.values[v.name]
            if not any(value is other for other in seen):
                seen.append(value)
                yield inputs

    def _settle(self, v: schema.Variable, inputs: Inputs) -> None:
        value, number = inputs.values[v.name], self.world.session.number
        if v.low < 0 and not self._try(value >= number(0)):
            value = -value
        if v.name in _PREFERRED and self._try(value == number(_PREFERRED[v.name])):
            return
        ladder = _DECIMAL if v.unit is Unit.TIME else _POWERS_OF_TWO
        # Invariant: a value of at most ladder[high] is possible.
        low, high = 0, bisect_left(ladder, self._now(value))
        if high == len(ladder):
            return
        while low < high:
            middle = (low + high) // 2
            if self._try(value <= number(ladder[middle])):
                high = min(middle, bisect_left(ladder, self._now(value)))
            else:
                low = middle + 1
        # 4MiB says more than 3145729B, but 9 says more than 16.
        if v.unit in (Unit.NUMBER, Unit.TOKENS) or not self._try(value == number(ladder[high])):
            self._settle_between(v, value, ladder[high - 1] + 1 if high else 0)

    def _settle_between(self, v: schema.Variable, value: Term, least: int) -> None:
        """Fix a value to the smallest one that it can have, or a round one a little above it."""
        number = self.world.session.number
        low, high = least, self._now(value)
        while low < high and self._in_time():
            middle = (low + high) // 2
            if self._try(value <= number(middle)):
                high = self._now(value)
            else:
                low = middle + 1
        rounded = [-(-high // step) * step for step in _ROUND[v.unit]]
        dimension = OF_SCHEMA[v.unit]
        shortest = len(show(Fraction(high), dimension))
        for candidate in sorted(rounded):
            if len(show(Fraction(candidate), dimension)) < shortest and self._try(value == number(candidate)):
                return
        self._try(value == number(high))

    def _now(self, value: Term) -> int:
        return int(self.model.eval(value, model_completion=True).as_long())

    def _in_time(self) -> bool:
        return thread_time() < self.deadline

    def _try(self, *facts: Term) -> bool:
        """Keep to `facts` from now on if that is possible, and is found out quickly."""
        if not self._in_time():
            return False
        self.solver.push()
        self.solver.add(*facts)
        if check(self.solver, min(self.deadline - thread_time(), _MAX_CHECK_S)):
            self.model = self.solver.model()
            return True
        self.solver.pop()
        return False
