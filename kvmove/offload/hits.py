"""From a request and what the GPU cache has of it to a hit, as a policy sees it."""

from __future__ import annotations

from collections.abc import Sequence

from kvmove.errors import Refused
from kvmove.offload.lookup import PrefixSearch
from kvmove.offload.records import Group, Lookup, LookupKind
from kvmove.offload.requests import Request
from kvmove.prefix import BlockSizes
from kvmove.records import Hit
from kvmove.tier import HostTier

MISS = Lookup(LookupKind.MISS)


class HitFinder:
    """Finds hits in the tier, and weighs them exactly.

    One token of a prompt is always left to compute: its output is what the next token is sampled from. With full
    attention only, that is the last token of the last block, which is loaded; a window or a state cannot be wound back
    by a token, so with one of these the hit ends a block earlier.
    """

    def __init__(self, tier: HostTier, groups: Sequence[Group], *, block_tokens: int, blocks_per_chunk: int) -> None:
        self._search = PrefixSearch(tier, groups, blocks_per_chunk)
        self._block_tokens = block_tokens
        self._sizes = BlockSizes(block_tokens, tuple(group.sizes for group in groups))
        self._has_windows = self._sizes.has_windows

    def cached_blocks(self, request: Request, cached_tokens: int) -> int:
        """The cached tokens as blocks.

        Raises:
            Refused: they are no whole blocks, or more than the request has.
        """
        blocks, rest = divmod(cached_tokens, self._block_tokens)
        if rest or not 0 <= cached_tokens <= request.num_tokens:
            raise Refused(
                f"lookup: cached_tokens of {request.name} is {cached_tokens}; whole blocks of {self._block_tokens} "
                f"tokens, at most its {request.num_tokens} tokens, are needed"
            )
        return blocks

    def find(self, request: Request) -> int:
        """How many leading blocks the request can have, at least those that are cached."""
        end_tokens = request.num_tokens - 1
        most = end_tokens // self._block_tokens if self._has_windows else -(-end_tokens // self._block_tokens)
        return self._search.longest(request.keys, request.hashes, request.cached_blocks, most)

    def found(self, request: Request, end: int) -> Lookup:
        """The hit of the blocks from the cached ones to `end`."""
        first = request.cached_blocks
        tokens = min(end * self._block_tokens, request.num_tokens - 1) - first * self._block_tokens
        return Lookup(LookupKind.HIT, end - first, tokens, self._sizes.bytes_of(end - first))

    def hit(
        self,
        request: Request,
        found: Lookup,
        *,
        load_time_ns: int | None,
        recompute_time_ns: int | None,
        waited_ns: int,
        priority: int,
        deadline_left_ns: int | None,
    ) -> Hit:
        """What was found, with everything that a policy may read.

        Raises:
            RecordError: an estimate is out of the schema's range.
        """
        first = request.cached_blocks
        cached_tokens = first * self._block_tokens
        return Hit(
            request=request.name,
            bytes=found.bytes,
            tokens=found.tokens,
            blocks=found.blocks,
            prompt_tokens=request.num_tokens,
            cached_tokens=cached_tokens,
            compute_tokens=request.num_tokens - cached_tokens - found.tokens,
            load_time_ns=load_time_ns,
            recompute_time_ns=recompute_time_ns,
            waited_ns=waited_ns,
            deferrals=request.deferrals,
            priority=priority,
            deadline_left_ns=deadline_left_ns,
            sizes=self._sizes,
            cuts=self._search.cuts(request.keys, first, first + found.blocks) if self._has_windows else None,
        )
