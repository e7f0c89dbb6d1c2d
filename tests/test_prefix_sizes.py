"""What leading blocks weigh, and how many fit under a limit: against counting them one by one."""

from __future__ import annotations

import pickle
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kvmove import BlockSizes, GroupBytes, Hit, RecordError


def hit_of(
    num_bytes: int, tokens: int, blocks: int, sizes: BlockSizes | None = None, cuts: tuple[int, ...] | None = None
) -> Hit:
    return Hit(
        request="r", bytes=num_bytes, tokens=tokens, blocks=blocks, prompt_tokens=tokens, cached_tokens=0,
        compute_tokens=0, sizes=sizes, cuts=cuts,
    )  # fmt: skip


GROUPS = st.lists(st.builds(GroupBytes, st.integers(1, 40), st.none() | st.integers(1, 200)), min_size=1, max_size=3)


@st.composite
def sized_hits(draw: st.DrawFn) -> Hit:
    blocks = draw(st.integers(1, 12))
    cuts = draw(st.none() | st.sets(st.integers(1, 11)).map(lambda c: tuple(sorted(k for k in c if k < blocks))))
    if draw(st.booleans()):
        tokens = draw(st.integers(blocks, 4 * blocks))
        return hit_of(draw(st.integers(1, 300)), tokens, blocks, None, cuts)
    sizes = BlockSizes(draw(st.integers(1, 5)), tuple(draw(GROUPS)))
    tokens = draw(st.integers((blocks - 1) * sizes.block_tokens + 1, blocks * sizes.block_tokens))
    most = sizes.bytes_of(blocks)
    least = 1 if sizes.has_windows else sizes.bytes_of(blocks - 1) + 1
    if tokens == blocks * sizes.block_tokens and not sizes.has_windows:
        least = most
    return hit_of(draw(st.integers(least, most)), tokens, blocks, sizes, cuts)


@given(sized_hits(), st.integers(-5, 500))
@example(hit_of(50, 9, 3, BlockSizes(4, (GroupBytes(40, 80),))), 60)
def test_the_most_blocks_that_fit_are_those_found_by_trying_each(hit: Hit, limit: int) -> None:
    """Also where the whole hit weighs less than one block less does, and where it cannot be cut everywhere."""
    cuts = [*(range(1, hit.blocks) if hit.cuts is None else hit.cuts), hit.blocks]
    assert hit.blocks_within_bytes(limit) == max((k for k in cuts if hit.prefix_bytes(k) <= limit), default=0)
    assert hit.blocks_within_tokens(limit) == max((k for k in cuts if hit.prefix_tokens(k) <= limit), default=0)
    assert (hit.prefix_bytes(hit.blocks), hit.prefix_tokens(hit.blocks)) == (hit.bytes, hit.tokens)
    assert pickle.loads(pickle.dumps(hit)) == hit


@given(sized_hits())
def test_longer_prefixes_of_whole_blocks_weigh_no_less(hit: Hit) -> None:
    """Every prefix has at least a byte and, for each of its blocks, a token; only the whole hit may weigh less."""
    weights = [hit.prefix_bytes(k) for k in range(1, hit.blocks)]
    tokens = [hit.prefix_tokens(k) for k in range(1, hit.blocks + 1)]
    assert weights == sorted(weights)
    assert min([*weights, hit.bytes]) > 0
    assert all(a < b for a, b in pairwise(tokens))


def test_a_window_moves_with_the_cut() -> None:
    """One group grows with every block, the other stops at two blocks, the last block is partial."""
    sizes = BlockSizes(16, (GroupBytes(100), GroupBytes(30, 60)))
    hit = hit_of(300 + 60 + 40, 53, 4, sizes)
    assert [hit.prefix_bytes(k) for k in (1, 2, 3, 4)] == [130, 260, 360, 400]
    assert [hit.prefix_tokens(k) for k in (1, 2, 3, 4)] == [16, 32, 48, 53]
    assert [hit.blocks_within_bytes(limit) for limit in (129, 130, 359, 360, 399, 400)] == [0, 1, 2, 3, 3, 4]
    assert replace(hit, cuts=(2,)).blocks_within_bytes(399) == 2


@pytest.mark.parametrize(
    ("num_bytes", "tokens", "blocks", "message"),
    [
        (400, 64, 3, "64 tokens are not 3 blocks of 16 tokens"),
        (400, 48, 4, "48 tokens are not 4 blocks of 16 tokens"),
        (399, 64, 4, "4 blocks of these sizes are 400 bytes, not 399"),
        (300, 60, 4, "4 blocks of these sizes are 400 bytes, not 300"),
        (401, 60, 4, "not 401"),
    ],
)
def test_a_hit_that_is_not_of_its_blocks_is_refused(num_bytes: int, tokens: int, blocks: int, message: str) -> None:
    """What the hit weighs as a whole agrees with what its blocks weigh."""
    with pytest.raises(RecordError, match=message):
        hit_of(num_bytes, tokens, blocks, BlockSizes(16, (GroupBytes(100),)))


def test_sizes_and_cuts_out_of_range_are_refused() -> None:
    """The message names the value."""
    for cuts in ((0,), (4,), (2, 2), (3, 1), (True,)):
        with pytest.raises(RecordError, match="rising ints from 1 to 3"):
            hit_of(4, 4, 4, None, cuts)
    with pytest.raises(RecordError, match="window_bytes is 0"):
        GroupBytes(1, 0)
    with pytest.raises(RecordError, match="block_tokens is 0"):
        BlockSizes(0, (GroupBytes(1),))
    with pytest.raises(RecordError, match="groups is"):
        BlockSizes(1, ())
