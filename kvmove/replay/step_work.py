"""What one step is to do, in one object: a new step starts from nothing because it is a new object."""

from __future__ import annotations

from kvmove.replay.sequence import Placed, Sequence


class StepWork:
    """Filled while the step is planned, done by the worker, and then forgotten.

    Attributes:
        tokens_left: what is left of the step's token budget.
        scheduled: requests with the prompt tokens that this step computes of them.
        begun: requests that got their slots in this step and are not parked.
        cached: blocks that they use from the GPU cache.
        sync_loads: blocks that the plan's sync loads bring, in their order.
        async_loads: likewise for the async ones, with their requests, which are parked from now on.
    """

    __slots__ = ("async_loads", "begun", "cached", "scheduled", "sync_loads", "tokens_left")

    def __init__(self, max_tokens: int) -> None:
        self.tokens_left = max_tokens
        self.scheduled: list[tuple[Sequence, int]] = []
        self.begun: list[Sequence] = []
        self.cached: list[Placed] = []
        self.sync_loads: list[Placed] = []
        self.async_loads: list[tuple[Sequence, Placed]] = []

    def begin(self, seq: Sequence) -> None:
        """The request runs from this step on."""
        self.begun.append(seq)
        self.schedule(seq)

    def schedule(self, seq: Sequence) -> None:
        """Compute as much of the request's prompt as there is room for."""
        tokens = min(seq.tokens_left, self.tokens_left)
        if tokens:
            self.tokens_left -= tokens
            self.scheduled.append((seq, tokens))

    @property
    def scheduled_tokens(self) -> int:
        """Prompt tokens that this step computes."""
        return sum(tokens for _, tokens in self.scheduled)

    def completed(self) -> list[Placed]:
        """The full blocks of which this step computes the last token."""
        return [seq.completed_by(tokens) for seq, tokens in self.scheduled]
