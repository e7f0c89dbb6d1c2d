"""What a block has to hold: every word says which block, which page and which place it belongs to."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kvmove.replay.contents import POISON, expected_words

HASHES = st.lists(st.integers(0, (1 << 64) - 1), unique=True, min_size=1, max_size=20)


@given(hashes=HASHES, num_pages=st.integers(1, 5), page_words=st.integers(1, 40))
def test_no_two_words_are_alike(hashes: list[int], num_pages: int, page_words: int):
    """Words of other blocks, pages and places all differ, and none is poison."""
    words = expected_words(hashes, num_pages, page_words)
    assert words.shape == (num_pages, len(hashes), page_words)
    assert words.dtype == np.uint64
    assert len(np.unique(words)) == words.size
    assert not (words == POISON).any()


@given(hashes=HASHES)
def test_a_block_holds_the_same_whoever_asks(hashes: list[int]):
    """A block's words depend on its hash, not on the blocks beside it or on their order."""
    together = expected_words(hashes[::-1], 3, 8)[:, ::-1]
    for i, block_hash in enumerate(hashes):
        assert (expected_words([block_hash], 3, 8)[:, 0] == together[:, i]).all()


def test_neighbouring_small_numbers_share_no_words():
    """A hundred thousand blocks numbered from 0, as traces number them, have no word in common."""
    words = expected_words(range(100_000), 2, 2)
    assert len(np.unique(words)) == words.size
