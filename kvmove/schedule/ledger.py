"""The one ledger of a step: what is left of its byte budget, as policies read it."""

from __future__ import annotations

from kvmove.errors import InternalError
from kvmove.records import StepState


class Ledger:
    """A step's state while hits are decided: the attributes of a `StepState`, of which two change.

    `budget_remaining_bytes` falls and `sync_loads` rises with every reservation; a refund undoes both. The
    other attributes stay what the engine said when the step began. It is mutable and has slots because a
    policy reads it for every hit.
    """

    __slots__ = (
        "async_delay_ns",
        "budget_bytes",
        "budget_remaining_bytes",
        "drain_time_ns",
        "free_slots",
        "inflight_bytes",
        "inflight_loads",
        "running",
        "step_time_ns",
        "sync_loads",
        "waiting",
    )

    def __init__(self, state: StepState) -> None:
        self.budget_bytes = state.budget_bytes
        self.budget_remaining_bytes = state.budget_remaining_bytes
        self.inflight_bytes = state.inflight_bytes
        self.inflight_loads = state.inflight_loads
        self.drain_time_ns = state.drain_time_ns
        self.step_time_ns = state.step_time_ns
        self.async_delay_ns = state.async_delay_ns
        self.running = state.running
        self.waiting = state.waiting
        self.free_slots = state.free_slots
        self.sync_loads = state.sync_loads

    def reserve(self, num_bytes: int) -> None:
        """Debit a load that passed the guard rails."""
        if num_bytes > self.budget_remaining_bytes:
            raise InternalError(
                f"{num_bytes} bytes reserved with {self.budget_remaining_bytes} of {self.budget_bytes} left"
            )
        self.budget_remaining_bytes -= num_bytes
        self.sync_loads += 1

    def refund(self, num_bytes: int) -> None:
        """Undo one `reserve` of as many bytes."""
        self.budget_remaining_bytes += num_bytes
        self.sync_loads -= 1

    def check_integrity(self, reserved_bytes: int, reservations: int) -> None:
        """Raise `InternalError` unless exactly these reservations are debited and the budget holds them."""
        if self.budget_remaining_bytes < 0 or self.budget_remaining_bytes + reserved_bytes != self.budget_bytes:
            raise InternalError(
                f"budget {self.budget_bytes}, {reserved_bytes} bytes reserved, but {self.budget_remaining_bytes} left"
            )
        if self.sync_loads != reservations:
            raise InternalError(f"the ledger counts {self.sync_loads} sync loads, but {reservations} are reserved")
