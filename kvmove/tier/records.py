"""What a host tier hands out: the grant of a store, and its counters."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvmove.transfers import IndexArray


@dataclass(frozen=True, slots=True, eq=False)
class StoreGrant:
    """Room for keys in the tier: `keys[i]` is to be stored in host block `blocks[i]`.

    `blocks` is a read-only int64 array of shape (keys,), and may be empty. `evicted_keys` had to go for it, in
    the order in which they went.
    """

    keys: tuple[Hashable, ...]
    blocks: IndexArray
    evicted_keys: tuple[Hashable, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TierStatistics:
    """A snapshot of a host tier. The first group says what is so now, the second counts since it was made."""

    num_blocks: int
    block_bytes: int | None  # of a host block, where the tier was told
    free_blocks: int
    ready_blocks: int  # served by lookups, pinned or not
    storing_blocks: int  # their store has not ended, and they will be served when it completes
    leaving_blocks: int  # discarded; freed when the last load or the store that holds them ends
    pinned_blocks: int  # held by at least one load, leaving ones included

    keys_looked_up: int
    keys_found: int
    keys_loaded: int  # load ended, whether it succeeded or not
    keys_stored: int
    keys_failed: int  # their store failed
    keys_evicted: int
    keys_discarded: int
    keys_without_room: int  # missing, but not granted because everything else was held

    @property
    def capacity_bytes(self) -> int | None:
        """Bytes of all blocks; None where the tier was not told the size of one."""
        return None if self.block_bytes is None else self.num_blocks * self.block_bytes

    @property
    def used_bytes(self) -> int | None:
        """Bytes of the blocks that hold something or are about to; None where the size of one is not known."""
        return None if self.block_bytes is None else (self.num_blocks - self.free_blocks) * self.block_bytes
