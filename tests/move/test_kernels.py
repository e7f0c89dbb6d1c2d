"""The kernels and the reference path give the same bytes, on any cache: interpreted here, compiled with -m gpu."""

from __future__ import annotations

import os

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvmove.move import CacheLayout, HostPool, Mover
from kvmove.records import Lane
from kvmove.testing.copies import check_load, check_store, randomize

ON_GPU = pytest.param("cuda", marks=pytest.mark.gpu)
DEVICES = ["cpu", ON_GPU]


@st.composite
def kv_caches(draw: st.DrawFn) -> dict[str, int]:
    """Draw the shape of a per-layer K and V cache; a page has `words` words, odd counts included."""
    return {
        "layers": draw(st.integers(1, 4)),
        "slots": draw(st.integers(1, 12)),
        "words": draw(st.sampled_from([1, 3, 31, 33, 64, 129, 257, 2048, 2049, 5000])),
        "word_bytes": draw(st.sampled_from([1, 2, 4, 8, 8, 8, 16])),
        "gap": draw(st.sampled_from([0, 0, 1, 3])),
        "host_blocks": draw(st.integers(1, 12)),
        "seed": draw(st.integers(0, 2**16)),
    }


def build(shape: dict[str, int], device: str) -> tuple[CacheLayout, HostPool]:
    """Tensors (2, slots, words + gap) of which each page leaves out the last `gap` words."""
    dtype, width = {1: (torch.int8, 1), 2: (torch.int16, 1), 4: (torch.int32, 1)}.get(
        shape["word_bytes"], (torch.int64, shape["word_bytes"] // 8)
    )
    columns, gap = shape["words"] * width, shape["gap"] * width
    tensors = [
        torch.zeros(2, shape["slots"], columns + gap, dtype=dtype, device=device)[:, :, :columns]
        for _ in range(shape["layers"])
    ]
    layout = CacheLayout.from_tensors(tensors, block_dim=1)
    pool = HostPool.for_layout(layout, shape["host_blocks"])
    randomize(layout, pool, shape["seed"])
    return layout, pool


def run_both_directions(shape: dict[str, int], device: str, path: str, data: st.DataObject) -> None:
    layout, pool = build(shape, device)
    count = data.draw(st.integers(1, layout.num_slots))
    slots = data.draw(st.permutations(range(layout.num_slots)))[:count]
    sources = data.draw(st.lists(st.integers(0, pool.num_blocks - 1), min_size=count, max_size=count))
    stored = data.draw(st.integers(1, pool.num_blocks))
    blocks = data.draw(st.permutations(range(pool.num_blocks)))[:stored]
    kept = data.draw(st.lists(st.integers(0, layout.num_slots - 1), min_size=stored, max_size=stored))
    with pool, Mover(layout, pool, path=path) as mover:
        for lane in Lane:
            mover.set_programs(lane, data.draw(st.integers(1, 9)))
            check_load(mover, sources, slots, lane=lane)
        check_store(mover, kept, blocks)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("path", ["reference", "direct", "staged", "engine"])
def test_a_copy_is_exact_for_any_page_size_and_block_order(device: str, path: str) -> None:
    """Loads and stores move every named byte and leave every other byte alone."""

    @settings(max_examples=60 if device == "cuda" else 40)
    @given(kv_caches(), st.data())
    def run(shape: dict[str, int], data: st.DataObject) -> None:
        run_both_directions(shape, device, path, data)

    run()


@pytest.mark.gpu
@pytest.mark.parametrize("path", ["direct", "staged", "engine"])
def test_a_large_load_and_store_are_exact(path: str) -> None:
    """Addresses beyond 2**31 and thousands of blocks work: 3 GiB of slots, 16 KiB pages, many turns of the ring."""
    tensors = [torch.zeros(2, 8192, 16384, dtype=torch.uint8, device="cuda") for _ in range(12)]
    layout = CacheLayout.from_tensors(tensors, block_dim=1)
    order = torch.Generator().manual_seed(5)
    with HostPool.for_layout(layout, 8192) as pool, Mover(layout, pool, path=path) as mover:
        # 3.2 GB of words that say where they belong: cheaper than random bytes, and as hard to get wrong unnoticed.
        host = torch.arange(pool.num_bytes // 8, dtype=torch.int64).view(pool.num_blocks, -1)
        pool.blocks.view(torch.int64).copy_(host)
        count = 5000
        blocks = torch.randperm(8192, generator=order)[:count]
        slots = torch.randperm(8192, generator=order)[:count]
        from kvmove import Load, Store, load_batch, store_batch

        load_batch(mover, [Load(1, blocks.numpy(), slots.numpy(), "bulk")])
        mover.wait_for_slots(slots.numpy())
        words = layout.pages[0].num_bytes // 8
        for i, page in enumerate(layout.page_views()):
            got = page.view(torch.int64)[slots.cuda()].cpu()
            assert torch.equal(got, host[blocks, i * words : (i + 1) * words])
        pool.blocks.fill_(0)
        ticket = store_batch(mover, [Store(2, slots.numpy(), blocks.numpy())])
        ticket.wait()
        ticket.check()
        kept = pool.blocks.view(torch.int64)
        assert torch.equal(kept[blocks], host[blocks])
        untouched = torch.ones(8192, dtype=torch.bool)
        untouched[blocks] = False
        assert not kept[untouched].any()


def test_the_interpreter_is_on_unless_a_gpu_is_asked_for(request: pytest.FixtureRequest) -> None:
    """The comparison above is of kernels, not of the reference path with itself."""
    from kvmove.kernels import pages

    gpu_run = request.config.option.markexpr == "gpu"
    assert pages.INTERPRETED is not gpu_run
    assert (os.environ.get("TRITON_INTERPRET") == "1") is not gpu_run
