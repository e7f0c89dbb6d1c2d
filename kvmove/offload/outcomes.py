"""Collects what results, aborts and withdrawn loads mean for the engine, until it asks."""

from __future__ import annotations

from kvmove.offload.records import FailedLoad, FailedStore, Outcome, Released


class OutcomeBuilder:
    """What the next `Outcome` will say, in the order in which it came about."""

    __slots__ = ("failed_loads", "failed_stores", "freed", "released")

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self.released: list[Released] = []
        self.failed_loads: list[FailedLoad] = []
        self.failed_stores: list[FailedStore] = []
        self.freed: list[str] = []

    def forget(self, request: str) -> None:
        """The request ended before it was told that it is released."""
        self.released = [r for r in self.released if r.request != request]

    def take(self) -> Outcome:
        """Return what has come together, and start anew."""
        outcome = Outcome(
            released=tuple(self.released),
            failed_loads=tuple(self.failed_loads),
            failed_stores=tuple(self.failed_stores),
            freed=tuple(self.freed),
        )
        self._clear()
        return outcome
