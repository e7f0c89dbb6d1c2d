"""A request while the simulated engine serves it."""

from __future__ import annotations

from dataclasses import dataclass

from kvmove.replay.settings import MILLISECOND_NS, Settings
from kvmove.replay.trace import Request


@dataclass(frozen=True, slots=True)
class Placed:
    """Blocks of a request with their slots: block i is to be in slot i."""

    request: str
    block_hashes: tuple[int, ...]
    slots: list[int]


class Sequence:
    """One request's place in the engine.

    1. Waiting: it has no slots. It may have been deferred, or wait for another request's load of its prefix.
    2. Parked: it holds all its slots, and an async load is under way to the first ones.
    3. Prefilling: `computed_tokens` of its prompt are in its slots.
    4. Decoding: the whole prompt is; it holds its slots until its last token.

    Slots for the whole prompt and answer are taken together, so that no request is ever preempted.
    """

    __slots__ = (
        "_block_tokens",
        "arrival_ns",
        "block_hashes",
        "computed_tokens",
        "deferrals",
        "first_tried_ns",
        "had_hit",
        "index",
        "input_tokens",
        "name",
        "num_blocks",
        "num_reusable",
        "output_tokens",
        "slots",
    )

    def __init__(self, index: int, request: Request, settings: Settings) -> None:
        self._block_tokens = block_tokens = settings.block_tokens
        self.index = index
        self.name = request.request
        self.arrival_ns = round(request.timestamp_ms * MILLISECOND_NS / settings.rate)
        self.input_tokens = request.input_tokens
        self.output_tokens = request.output_tokens
        # A partial block is nobody else's prefix: only full ones are kept and looked for.
        self.block_hashes = request.hash_ids[: request.input_tokens // block_tokens]
        # The last token is computed in any case, because its logits give the first token of the answer; so a prompt
        # that ends with a full block does not reuse that block.
        self.num_reusable = (request.input_tokens - 1) // block_tokens
        self.num_blocks = -(-(request.input_tokens + request.output_tokens) // block_tokens)
        self.slots: list[int] = []
        self.computed_tokens = 0
        self.first_tried_ns: int | None = None
        self.deferrals = 0
        self.had_hit = False

    @property
    def tokens_left(self) -> int:
        """Tokens of the prompt that are still to be computed."""
        return self.input_tokens - self.computed_tokens

    def blocks(self, first: int, end: int) -> Placed:
        """The full blocks [first, end) of its prompt, with their slots."""
        return Placed(self.name, self.block_hashes[first:end], self.slots[first : min(end, len(self.block_hashes))])

    def completed_by(self, tokens: int) -> Placed:
        """The full blocks whose last token is among the next `tokens` of its prompt."""
        computed = self.computed_tokens
        return self.blocks(computed // self._block_tokens, (computed + tokens) // self._block_tokens)
