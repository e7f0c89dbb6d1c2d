"""What a block has to hold: words that depend on the block, the page and the place in the page.

Every word of every page differs from what any other block, page or place holds, so a page that is missing, stale,
swapped or shifted shows. numpy only, no device: the replica's memory is compared with this.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]

# No block's word: the mixed words are odd, so that a slot that was never written cannot look like one that was.
POISON = np.uint64(0xA5A5_A5A5_A5A5_A5A4)

# The multipliers and shifts of splitmix64's finaliser.
_MULTIPLY_1, _MULTIPLY_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_STEP = np.uint64(0x9E3779B97F4A7C15)


def expected_words(block_hashes: Sequence[int], num_pages: int, page_words: int) -> Words:
    """The words of these blocks: uint64 (pages, blocks, page_words)."""
    blocks = _mixed(np.array(block_hashes, dtype=np.uint64) + _STEP)
    pages = _mixed(np.arange(1, num_pages + 1, dtype=np.uint64) * _STEP)
    words = np.arange(1, page_words + 1, dtype=np.uint64) * _STEP
    # The block and the page are mixed apart and then together: with a plain sum, block 1's page 2 would be block 2's 1.
    seeds = _mixed(blocks[None, :] ^ pages[:, None])
    return _mixed(seeds[:, :, None] + words) | np.uint64(1)


def _mixed(values: Words) -> Words:
    """splitmix64's finaliser: a bijection on 64-bit words in which every input bit reaches every output bit."""
    z = values.copy()
    z ^= z >> np.uint64(30)
    z *= _MULTIPLY_1
    z ^= z >> np.uint64(27)
    z *= _MULTIPLY_2
    z ^= z >> np.uint64(31)
    return z
