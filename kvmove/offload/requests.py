"""What the offload scheduler remembers of each request."""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING

from kvmove.errors import Refused
from kvmove.offload.records import Lookup
from kvmove.records import Decision

if TYPE_CHECKING:
    from kvmove.transfers import IndexArray


class RequestState(StrEnum):
    """Where a request is, as far as offload goes."""

    ACTIVE = "active"  # waiting or running: the engine decides
    PARKED = "parked"  # its async load is under way, into slots that it holds
    JOINED = "joined"  # without slots, until the load of another request ends


class Before:
    """What a step may change of a request, as it was before: for a refund, and for a step that is aborted."""

    __slots__ = ("base_blocks", "computed_tokens", "tables")

    def __init__(self, request: Request) -> None:
        self.tables = request.tables
        self.base_blocks = request.base_blocks
        self.computed_tokens = request.computed_tokens

    def restore(self, request: Request) -> None:
        """Give the request back what it had."""
        request.tables, request.base_blocks = self.tables, self.base_blocks
        request.computed_tokens = self.computed_tokens


class Request:
    """One request. `keys[g][c]` is the tier's key of chunk c in group g; `tables[g][i]` the slot of block i."""

    __slots__ = (
        "arrival_ns",
        "base_blocks",
        "before",
        "cached_blocks",
        "computed_tokens",
        "decision",
        "deferrals",
        "found",
        "hashes",
        "is_stale",
        "joined_job",
        "keys",
        "loads",
        "name",
        "num_tokens",
        "offered_chunks",
        "state",
        "stored_chunks",
        "tables",
        "tainted_by",
    )

    def __init__(self, name: str, num_groups: int, arrival_ns: int) -> None:
        self.name = name
        self.state = RequestState.ACTIVE
        self.keys: list[list[Hashable]] = [[] for _ in range(num_groups)]
        self.hashes: list[array[int]] = [array("q") for _ in range(num_groups)]  # of the keys
        self.num_tokens = 0
        self.arrival_ns = arrival_ns
        self.deferrals = 0
        # Of the open step:
        self.found: Lookup | None = None
        self.decision: Decision | None = None
        self.before: Before | None = None  # once it got slots in the step
        # Of its slots; `lose_slots` forgets all of it:
        self.tables: list[IndexArray] = []
        self.cached_blocks = 0  # leading blocks in the GPU cache at the last lookup
        self.base_blocks = 0  # leading blocks that it did not compute: were cached, or loaded
        self.computed_tokens = 0  # leading tokens whose KV is in its slots
        self.stored_chunks = 0  # leading chunks that are in the tier, or were when they were looked at
        self.offered_chunks = 0  # leading chunks that the tier had its chance to take
        self.is_stale = False  # some of its KV was computed before the cache was reset: none of it is stored
        self.tainted_by: set[int] = set()  # sync loads under way that its KV depends on
        # Of the loads that write its slots:
        self.loads: set[int] = set()
        self.joined_job: int | None = None

    def add_keys(self, keys: Sequence[Hashable], num_tokens: int, chunk_tokens: int) -> None:
        """Take further keys and the new number of tokens; nothing changes where they do not fit."""
        have = len(self.keys[0]) + len(keys)
        least = max(1, self.num_tokens)
        if type(num_tokens) is not int or num_tokens < least:
            raise Refused(f"{self.name}: num_tokens is {num_tokens!r}; an int of at least {least} is needed")
        if have > num_tokens // chunk_tokens:
            raise Refused(
                f"{self.name}: {have} keys, but {num_tokens} tokens have {num_tokens // chunk_tokens} whole chunks of "
                f"{chunk_tokens} tokens; give a key for each whole chunk"
            )
        if not keys:
            self.num_tokens = num_tokens
            return
        several = len(self.keys) > 1
        own = [keys] if not several else [_keys_of_group(keys, group) for group in range(len(self.keys))]
        if len(set(own[0])) < len(keys) or (self.keys[0] and any(key in self.keys[0] for key in own[0])):
            raise Refused(f"{self.name}: a key is given twice; a key stands for all tokens up to its chunk's end")
        self.num_tokens = num_tokens
        for group_keys, hashes, more in zip(self.keys, self.hashes, own, strict=True):
            group_keys.extend(more)
            hashes.extend(map(hash, more))

    def forget_step(self) -> None:
        """Forget what the open step found and decided."""
        self.found = self.decision = self.before = None

    def lose_slots(self) -> None:
        """The request has no slots any more."""
        self.tables = []
        self.cached_blocks = self.base_blocks = self.computed_tokens = self.stored_chunks = self.offered_chunks = 0
        self.is_stale = False
        self.tainted_by = set()

    def rewind(self, blocks: int, chunk_blocks: int, block_tokens: int) -> None:
        """Only the leading `blocks` hold what they should: the rest is to be computed again, and stored then."""
        self.base_blocks = min(self.base_blocks, blocks)
        self.computed_tokens = min(self.computed_tokens, blocks * block_tokens)
        self.stored_chunks = min(self.stored_chunks, blocks // chunk_blocks)
        self.offered_chunks = min(self.offered_chunks, blocks // chunk_blocks)


def _keys_of_group(keys: Sequence[Hashable], group: int) -> list[Hashable]:
    """The tier's keys of a group: each group has host blocks of its own."""
    suffix = group.to_bytes(2, "little")
    # Bytes remember their hash, tuples do not.
    return [key + suffix if type(key) is bytes else (key, group) for key in keys]
