"""What loads and steps have taken so far, as estimates for policies. Unknown until something was measured."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from kvmove.schema import MAX_TIME

# What a new measurement weighs against those before it: recent enough to follow a change of the traffic within some
# tens of steps, long enough that one slow step does not turn decisions over.
_NEW_WEIGHT = 1 / 8
# Steps with fewer tokens are bound by reading the weights; their time per token says nothing about a prefill.
_PREFILL_STEP_TOKENS = 256


@dataclass(slots=True)
class _Rate:
    """Nanoseconds per unit, from sums that forget."""

    units: float = 0.0
    ns: float = 0.0

    def observe(self, units: int, ns: int) -> None:
        if units > 0 and ns > 0:
            self.units += _NEW_WEIGHT * (units - self.units)
            self.ns += _NEW_WEIGHT * (ns - self.ns)

    def of(self, units: int) -> int | None:
        return None if self.units == 0 else min(MAX_TIME, ceil(units * self.ns / self.units))


class Estimates:
    """Running estimates. Times are nanoseconds, rounded up; None where nothing was measured yet."""

    __slots__ = ("_copying", "_parking", "_prefilling", "_stepping")

    def __init__(self) -> None:
        self._copying, self._prefilling, self._stepping, self._parking = _Rate(), _Rate(), _Rate(), _Rate()

    def copied(self, num_bytes: int, ns: int) -> None:
        """Note what finished loads have taken on the device; sums over loads and GPUs are fine."""
        self._copying.observe(num_bytes, ns)

    def stepped(self, tokens: int, ns: int) -> None:
        """Note what a step has taken that computed this many tokens."""
        if tokens > 0:
            self._stepping.observe(1, ns)
        if tokens >= _PREFILL_STEP_TOKENS:
            self._prefilling.observe(tokens, ns)

    def parked(self, num_bytes: int, ns: int) -> None:
        """Note for how long an async load of this size parked its request."""
        self._parking.observe(1, max(1, ns - (self.load_time_ns(num_bytes) or 0)))

    def load_time_ns(self, num_bytes: int) -> int | None:
        """How long copying this many bytes to one GPU takes."""
        return self._copying.of(num_bytes)

    def recompute_time_ns(self, tokens: int) -> int | None:
        """How long computing this many tokens takes, at the rate of recent prefills."""
        return self._prefilling.of(tokens)

    def step_time_ns(self) -> int | None:
        """How long a step takes."""
        return self._stepping.of(1)

    def async_delay_ns(self) -> int | None:
        """For how long an async load parks its request, beyond the copy."""
        return self._parking.of(1)
