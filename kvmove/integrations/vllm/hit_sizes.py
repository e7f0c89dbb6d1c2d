"""What a hit weighs, exactly: the GPU blocks that vLLM loads for it, group by group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Group:
    """One group of layers with a block table of its own.

    A block is loaded if a token that is still to be computed can read it. `window_tokens` is how many tokens before
    the next one that can read; None: all of them. A recurrent state is a window of one token.
    `attention_chunk_tokens`: instead, the tokens since the last multiple of this number.
    """

    block_tokens: int
    block_bytes: int  # on one GPU, all layers of the group
    window_tokens: int | None = None
    attention_chunk_tokens: int | None = None

    def blocks_to_load(self, cached_tokens: int, end_tokens: int) -> int:
        """How many blocks hold tokens [`cached_tokens`, `end_tokens`) and are needed after `end_tokens`."""
        first_needed = 0
        if self.attention_chunk_tokens is not None:
            first_needed = end_tokens // self.attention_chunk_tokens * self.attention_chunk_tokens
        elif self.window_tokens is not None:
            first_needed = max(0, end_tokens - self.window_tokens)
        first = max(-(-cached_tokens // self.block_tokens), first_needed // self.block_tokens)
        return max(0, -(-end_tokens // self.block_tokens) - first)


@dataclass(frozen=True, slots=True)
class HitSizes:
    """The groups of an engine, and how many tokens a chunk of host memory has.

    `cuttable`: every group needs all of its blocks, and so the leading part of a hit is a hit. (With a window or a
    state, what an earlier end needs may not be in host memory.) A hit is cut at the end of a chunk of every group,
    because that is where vLLM's own hits end.
    """

    groups: Sequence[Group]
    chunk_tokens: int  # of the chunks of all groups, the least common multiple
    cuttable: bool

    @property
    def block_tokens(self) -> int:
        """Tokens of the smallest block."""
        return min(g.block_tokens for g in self.groups)

    def num_bytes(self, cached_tokens: int, end_tokens: int) -> int:
        """Bytes that loading tokens [`cached_tokens`, `end_tokens`) moves to one GPU."""
        return sum(g.blocks_to_load(cached_tokens, end_tokens) * g.block_bytes for g in self.groups)

    def num_blocks(self, cached_tokens: int, end_tokens: int) -> int:
        """Blocks of the smallest size that the tokens [`cached_tokens`, `end_tokens`) fill, at least one."""
        return max(1, -(-(end_tokens - cached_tokens) // self.block_tokens))

    def cuts(self, cached_tokens: int, end_tokens: int) -> tuple[int, ...]:
        """After how many blocks a hit can be cut; rising, without the whole hit."""
        if not self.cuttable:
            return ()
        first = (cached_tokens // self.chunk_tokens + 1) * self.chunk_tokens
        return tuple((end - cached_tokens) // self.block_tokens for end in range(first, end_tokens, self.chunk_tokens))
