"""CacheLayout sees the pages that engines have, and refuses what cannot be moved safely."""

from __future__ import annotations

import pytest
import torch

from kvmove import CacheLayout, LayoutError

BF16 = torch.bfloat16


def pages_of(tensors: list[torch.Tensor], block_dim: int) -> tuple[int, int]:
    layout = CacheLayout.from_tensors(tensors, block_dim=block_dim)
    assert {p.num_bytes for p in layout.pages} == {layout.pages[0].num_bytes}
    return layout.num_pages, layout.pages[0].num_bytes


# tokens 16, kv heads 4, head dim 32, bf16: K or V of a layer has 4,096 bytes a block
@pytest.mark.parametrize(
    ("tensors", "block_dim", "pages", "page_bytes"),
    [
        pytest.param([torch.zeros(2, 9, 16, 4, 32, dtype=BF16)] * 1, 1, 2, 4096, id="K and V apart, NHD"),
        pytest.param([torch.zeros(9, 2, 16, 4, 32, dtype=BF16)], 0, 1, 8192, id="K and V of a block together"),
        pytest.param(
            [torch.zeros(2, 9, 4, 16, 32, dtype=BF16).transpose(2, 3)], 1, 2, 4096, id="HND memory seen as NHD"
        ),
        pytest.param([torch.zeros(9, 3, 2, 16, 4, 32, dtype=BF16)], 0, 1, 24576, id="cross-layer: one page a block"),
        pytest.param([torch.zeros(9, 64, 576, dtype=BF16)], 0, 1, 73728, id="MLA"),
        pytest.param([torch.zeros(9, 16, 656, dtype=torch.uint8)], 0, 1, 10496, id="rows of 656 bytes"),
        pytest.param([torch.zeros(2, 9, 20, 4, 32, dtype=BF16)[:, :, :16]], 1, 2, 4096, id="gaps between pages"),
        pytest.param([torch.zeros(9, 2, 16, 4, 32, dtype=BF16).movedim(1, 0)], 1, 1, 8192, id="a permuted view"),
        pytest.param([torch.zeros(2, 9, 1, dtype=torch.uint8)], 1, 2, 1, id="pages of one byte"),
    ],
)
def test_the_pages_that_engines_have_are_found(
    tensors: list[torch.Tensor], block_dim: int, pages: int, page_bytes: int
) -> None:
    """Strides decide what is one page; every byte of a block is in exactly one."""
    assert pages_of(tensors, block_dim) == (pages, page_bytes)


def test_a_page_view_is_the_engines_memory() -> None:
    """Writing a page view writes the tensor, at the right slot and half."""
    tensors = [torch.zeros(2, 5, 4, 2, 8, dtype=BF16) for _ in range(2)]
    layout = CacheLayout.from_tensors(tensors, block_dim=1)
    views = layout.page_views()
    views[3][4] = 0xFF  # page 3 is V of layer 1
    assert (tensors[1][1, 4].view(torch.int16) == -1).all()
    assert not tensors[0].any()
    assert not tensors[1][0].any()
    assert not tensors[1][1, :4].any()


def test_offsets_and_sizes_are_those_of_a_host_block() -> None:
    """Pages lie back to back; a host block is rounded up to 16 bytes."""
    layout = CacheLayout.from_tensors([torch.zeros(2, 5, 7, dtype=torch.uint8) for _ in range(3)], block_dim=1)
    assert [p.host_offset_bytes for p in layout.pages] == [0, 7, 14, 21, 28, 35]
    assert (layout.block_bytes, layout.host_block_bytes, layout.num_slots) == (42, 48, 5)
    assert layout.align_bytes == 1


@pytest.mark.parametrize(("columns", "align"), [(16, 16), (24, 8), (20, 4), (6, 2), (7, 1)])
def test_the_word_follows_from_sizes(columns: int, align: int) -> None:
    """The widest word is the one that every address and size allows."""
    layout = CacheLayout.from_tensors([torch.zeros(2, 4, columns, dtype=torch.uint8)], block_dim=1)
    assert layout.align_bytes == align


@pytest.mark.parametrize(
    ("tensors", "block_dim", "message"),
    [
        pytest.param([], 0, "no tensors", id="nothing"),
        pytest.param(torch.zeros(4, 8), 0, "a sequence of torch tensors is needed, not Tensor", id="one tensor"),
        pytest.param([[0.0]], 0, "a sequence of torch tensors is needed", id="no tensors at all"),
        pytest.param([torch.zeros(4, 8, device="meta")], 0, "on meta; kvmove moves", id="a device without memory"),
        pytest.param([torch.zeros(4, 8), torch.zeros(5, 8)], 0, "tensor 1 has 5 slots", id="different slots"),
        pytest.param([torch.zeros(4, 8)], 2, "no dimension block_dim=2", id="no such dimension"),
        pytest.param([torch.zeros(4, 0)], 0, "is empty", id="empty"),
        pytest.param([torch.zeros(4, 8, 2)[:, :, 0]], 0, "no contiguous page", id="strided elements"),
        pytest.param([torch.zeros(1, 8).expand(4, 8)], 0, "overlap", id="one slot seen four times"),
        pytest.param([torch.zeros(4, 8)] * 2, 0, "page 0 .* and page 1 .* overlap", id="the same tensor twice"),
        pytest.param([torch.zeros(4, 8), torch.zeros(4, 8, device="meta")], 0, "one device", id="two devices"),
    ],
)
def test_what_cannot_be_moved_safely_is_refused(tensors: list[torch.Tensor], block_dim: int, message: str) -> None:
    """The error names the tensor and the reason."""
    with pytest.raises(LayoutError, match=message):
        CacheLayout.from_tensors(tensors, block_dim=block_dim)


def test_views_that_share_one_slot_are_refused_and_interleaved_ones_are_not() -> None:
    """K and V that interleave in memory share no byte; two windows on one buffer that meet do."""
    memory = torch.zeros(12, 2, 64, dtype=torch.uint8)
    interleaved = [memory[:, 0], memory[:, 1]]
    assert CacheLayout.from_tensors(interleaved, block_dim=0).num_pages == 2
    flat = torch.zeros(20, 64, dtype=torch.uint8)
    with pytest.raises(LayoutError, match="overlap"):
        CacheLayout.from_tensors([flat[:10], flat[9:19]], block_dim=0)
    assert CacheLayout.from_tensors([flat[:10], flat[10:]], block_dim=0).num_pages == 2
