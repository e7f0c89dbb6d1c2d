"""Hits of blocks of stated sizes, with partial tails and sliding windows, and hits that cannot be cut everywhere."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from kvmove.prefix import BlockSizes, GroupBytes
from kvmove.records import Hit

# From how a hit is cut, in its low bits, to how large its parts are. Zero is a hit of equal blocks.
PARTS = st.integers(0, (1 << 12) - 1)
_MAX_CUTS = 16


def with_parts(hit: Hit, parts: int, max_bytes: int) -> Hit:
    """`hit` with the sizes or the cuts that `parts`, drawn from `PARTS`, stands for.

    Its blocks, and where no window explains them also its bytes, change as little as the sizes need.
    """
    kind, rest = parts % 4, parts // 4
    if kind in (1, 3):
        hit = replace(hit, cuts=_cuts(hit.blocks, rest))
    if kind in (2, 3):
        hit = _of_sizes(hit, rest, max_bytes)
    return hit


def _cuts(blocks: int, rest: int) -> tuple[int, ...]:
    """Every so many blocks, from one of the first on."""
    apart = max(1 + rest % 5, blocks // _MAX_CUTS)
    return tuple(range(1 + rest // 5 % 3, blocks, apart))


def _of_sizes(hit: Hit, rest: int, max_bytes: int) -> Hit:
    """Blocks with so many tokens that the hit's fill them, the last one perhaps in part."""
    block_tokens = -(-hit.tokens // hit.blocks)
    blocks = -(-hit.tokens // block_tokens)
    block_bytes = max(1, -(-hit.bytes // blocks))
    num_bytes, groups = hit.bytes, [GroupBytes(block_bytes)]
    if rest % 2:
        window_bytes = block_bytes * (1 + rest // 2 % 3) + rest // 6 % 2
        groups.append(GroupBytes(block_bytes, window_bytes))
    else:
        if block_bytes > 1 and block_bytes * blocks > max_bytes:
            block_bytes -= 1
            groups = [GroupBytes(block_bytes)]
        is_whole = hit.tokens == blocks * block_tokens
        least = block_bytes * blocks if is_whole else block_bytes * (blocks - 1) + 1
        num_bytes = min(max(hit.bytes, least), block_bytes * blocks)
    cuts = None if hit.cuts is None else tuple(c for c in hit.cuts if c < blocks)
    sizes = BlockSizes(block_tokens, tuple(groups))
    return replace(hit, blocks=blocks, bytes=num_bytes, sizes=sizes, cuts=cuts)
