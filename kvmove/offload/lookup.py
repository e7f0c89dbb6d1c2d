"""How many leading blocks of a request the host tier can bring back, over all groups of layers."""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Sequence

from kvmove.offload.records import Group
from kvmove.tier import HostTier


class PrefixSearch:
    """Finds the longest prefix after which every group has what the next token needs.

    A group with full attention needs every block beyond the GPU cache, a window its last blocks, a state the last one.
    Of the blocks that the GPU cache has, every group is taken to hold what it needs.

    Args:
        tier: where the chunks are.
        groups: the cache's groups of layers.
        blocks_per_chunk: blocks that one host block holds.
    """

    def __init__(self, tier: HostTier, groups: Sequence[Group], blocks_per_chunk: int) -> None:
        self._tier = tier
        self._k = blocks_per_chunk
        self._full = [g for g, group in enumerate(groups) if group.needed_blocks is None]
        self._windows = [(g, group.needed_blocks) for g, group in enumerate(groups) if group.needed_blocks is not None]

    def longest(self, keys: Sequence[Sequence[Hashable]], hashes: Sequence[array[int]], first: int, most: int) -> int:
        """The most leading blocks, counted from the request's start and at most `most`, that can be had when `first`
        of them are in the GPU cache; `first` where there is nothing beyond them. `hashes` are the keys', by group.
        """
        k = self._k
        end = min(most, len(keys[0]) * k)
        first_chunk = first // k
        for g in self._full:
            if end <= first:
                return first
            end_chunk = -(-end // k)
            wanted, their_hashes = keys[g], hashes[g]
            if first_chunk or end_chunk < len(wanted):
                wanted, their_hashes = wanted[first_chunk:end_chunk], their_hashes[first_chunk:end_chunk]
            end = min(end, (first_chunk + self._tier.lookup(wanted, their_hashes)) * k)
        before = end if not self._windows else -1
        while end > first and end != before:  # one group's cut can leave another group's window without a block
            before = end
            for g, needed in self._windows:
                end = self._last_window(keys[g], first, end, needed)
        return max(first, end)

    def cuts(self, keys: Sequence[Sequence[Hashable]], first: int, end: int) -> tuple[int, ...] | None:
        """Where a hit of the blocks [first, end) can be cut, counted from `first`; None: anywhere.

        At a cut, the blocks before it that a window needs have to be in the tier, as at the end.
        """
        if not self._windows:
            return None
        k = self._k
        first_chunk, end_chunk = first // k, -(-end // k)
        good = bytearray(b"\x01") * (end - first + 1)
        for g, needed in self._windows:
            chunk = first_chunk
            run_start = first  # of the blocks without a gap that end at the block looked at
            while chunk < end_chunk:
                run_end = min(end, (chunk + self._tier.lookup(keys[g][chunk:end_chunk])) * k)
                # In a run, [run_start, run_end), a cut has its window from `needed` blocks into the run on, or where
                # the run begins at the GPU cache. The block after a run is missing.
                if run_start > first:
                    for block in range(run_start, min(run_start + needed, run_end + 1)):
                        good[block - first] = 0
                chunk = run_end // k + 1
                run_start = chunk * k
                for block in range(max(first, run_end) + 1, min(run_start, end) + 1):
                    good[block - first] = 0
        if all(good):
            return None
        return tuple(cut for cut in range(1, end - first) if good[cut])

    def _last_window(self, keys: Sequence[Hashable], first: int, end: int, needed: int) -> int:
        """The last block boundary at or before `end` whose `needed` blocks before it are all in the tier."""
        k = self._k
        chunk = (end - 1) // k
        wanted = keys[max(first, end - needed) // k : chunk + 1]
        if self._tier.lookup(wanted) == len(wanted):  # mostly so, and one question instead of many
            return end
        while end > first and (chunk + 1) * k > max(first, end - needed):
            if self._tier.lookup(keys[chunk : chunk + 1]) == 0:
                end = chunk * k
            chunk -= 1
        return max(first, end)
