"""Requests of a simulated engine: prompts that share prefixes, and what has to be in each of their blocks."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from hashlib import blake2b

_MASK = (1 << 63) - 1


class Place(StrEnum):
    """Where the engine has a request."""

    WAITING = "waiting"  # without slots
    RUNNING = "running"
    PARKED = "parked"  # with slots, for its own async load
    JOINED = "joined"  # without slots, for another request's load


@lru_cache(1 << 16)
def block_hashes(branches: tuple[int, ...]) -> tuple[int, ...]:
    """A hash for each block, of its own text `branches[i]` and of all text before it."""
    digest = b""
    hashes = []
    for branch in branches:
        digest = blake2b(digest + branch.to_bytes(8, "little"), digest_size=8).digest()
        hashes.append(int.from_bytes(digest, "little") & _MASK)
    return tuple(hashes)


def partial_hash(block_hash: int, tokens: int) -> int:
    """What a block holds of which only so many tokens, counted from the request's start, were computed."""
    return (block_hash ^ (tokens + 1) * 0x9E3779B97F4A7C15) & _MASK


@dataclass(slots=True)
class SimRequest:
    """One request of the engine.

    Attributes:
        hashes: of its blocks, for all tokens that it will ever have.
        num_tokens: prompt and output so far.
        total_tokens: at which it is finished.
        computed: leading tokens whose KV is in its slots.
        tables: for each group the slots of its blocks; -1 is a block without a slot.
        tail: what its last block holds where that was computed in part, or loaded although a token of it is to be
            computed again.
    """

    name: str
    hashes: tuple[int, ...]
    num_tokens: int
    total_tokens: int
    place: Place = Place.WAITING
    computed: int = 0
    tables: list[list[int]] = field(default_factory=list)
    tail: int | None = None

    def keys(self, chunk_blocks: int, block_tokens: int, first_chunk: int = 0) -> list[bytes]:
        """The keys of its whole chunks from `first_chunk` on."""
        chunks = range(first_chunk, self.num_tokens // (chunk_blocks * block_tokens))
        return [self.hashes[(c + 1) * chunk_blocks - 1].to_bytes(8, "little") for c in chunks]

    def lose_slots(self) -> list[list[int]]:
        """It has no slots any more; returns them."""
        tables, self.tables, self.computed, self.tail = self.tables, [], 0, None
        return tables
