"""The tma path: exact on every cache that it takes, and clear where it takes none. Interpreted here, compiled with
-m gpu."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvmove.errors import Refused
from kvmove.move import CacheLayout, HostPool, Mover
from kvmove.records import Lane, Load, Part, Store
from kvmove.testing.copies import check_load, check_loads, check_store, check_stores, randomize

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@st.composite
def page_sizes(draw: st.DrawFn) -> list[int]:
    """Draw the pages of a block, in multiples of 16 bytes, so that a block is a multiple of 64."""
    odd = st.sampled_from([576, 656, 1152, 18432, 16384, 1024, 64, 4096, 12288, 20480 + 128])
    pages = draw(st.lists(odd, min_size=1, max_size=5))
    rest = -sum(pages) % 64
    return [*pages, rest] if rest else pages


@pytest.mark.parametrize("device", DEVICES)
def test_a_copy_by_descriptors_is_exact(device: str) -> None:
    """Tiles that end in a page, in a block and past it; pages of several sizes; odd numbers of programs."""

    @settings(max_examples=15 if device == "cpu" else 40)
    @given(page_sizes(), st.data())
    def run(pages: list[int], data: st.DataObject) -> None:
        slots, blocks = data.draw(st.integers(1, 7)), data.draw(st.integers(1, 7))
        tensors = [torch.zeros(slots, n, dtype=torch.uint8, device=device) for n in pages]
        layout = CacheLayout.from_tensors(tensors, block_dim=0)
        with HostPool.for_layout(layout, blocks) as pool, Mover(layout, pool, path="tma") as mover:
            randomize(layout, pool, sum(pages))
            count = data.draw(st.integers(1, min(slots, blocks)))
            there = data.draw(st.permutations(range(slots)))[:count]
            here = data.draw(st.permutations(range(blocks)))[:count]
            for lane in Lane:
                mover.set_programs(lane, data.draw(st.integers(1, 3)))
                check_load(mover, here, there, lane=lane)
            check_store(mover, there, here)

    run()


@pytest.mark.parametrize("device", DEVICES)
def test_chunks_and_groups_go_by_descriptors_too(device: str) -> None:
    """A block is a part of a host block, and groups have blocks of different sizes."""
    tensors = [torch.zeros(11, n, dtype=torch.uint8, device=device) for n in (1152, 1152, 2048, 640)]
    layout = CacheLayout.from_tensors(tensors, block_dim=0, groups=[[0, 1], [2, 3]], blocks_per_chunk=[3, 1])
    with HostPool.for_layout(layout, 9) as pool, Mover(layout, pool, path="tma") as mover:
        randomize(layout, pool, 7)
        parts = [Part(0, [3, 1], [10, 2, 5, 0], 1), Part(1, [0, 7, 4], [6, 2, 1])]
        check_loads(mover, [Load.of_parts(1, parts)])
        check_stores(mover, [Store.of_parts(2, [Part(0, [8, 0], [4, 9, 1, 3], 2), Part(1, [5, 2], [3, 8])])])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("page_bytes", "says"), [(1000, "aligned to 8 bytes"), (80, "blocks of 80 bytes every 80 bytes")]
)
def test_a_cache_that_descriptors_cannot_name_is_refused(device: str, page_bytes: int, says: str) -> None:
    """Naming the path never falls back; the message says what to take."""
    layout = CacheLayout.from_tensors([torch.zeros(5, page_bytes, dtype=torch.uint8, device=device)], block_dim=0)
    with HostPool.for_layout(layout, 3) as pool, pytest.raises(Refused, match=says) as refused:
        Mover(layout, pool, path="tma")
    assert "take the direct path" in str(refused.value).lower()
