"""What is particular to a path: the ring, runs of memory, and which path serves which job."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvmove import CacheLayout, HostPool, Lane, Load, Mover, Store, load_batch, store_batch
from kvmove.move import paths
from kvmove.move.indices import Pairs
from kvmove.move.paths.staged import StagedPath
from kvmove.move.runs import copy_runs, merge_runs
from kvmove.testing.copies import check_load, check_store, randomize


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize(("columns", "section_blocks", "sections"), [(64, 1, 2), (64, 3, 2), (41, 2, 3)])
def test_a_copy_through_many_turns_of_a_small_ring_is_exact(
    columns: int, section_blocks: int, sections: int, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sections are used again only when they are free, the last one is part full, and padding is not touched."""
    tensors = [torch.zeros(2, 23, columns, dtype=torch.uint8, device=device) for _ in range(3)]
    layout = CacheLayout.from_tensors(tensors, block_dim=1)
    section_bytes = section_blocks * layout.host_block_bytes
    small = partial(StagedPath, ring_bytes=sections * section_bytes, section_bytes=section_bytes)
    monkeypatch.setitem(paths._MAKERS, "staged", small)
    with HostPool.for_layout(layout, 29) as pool, Mover(layout, pool, path="staged") as mover:
        randomize(layout, pool, columns)
        order = np.random.default_rng(columns)
        for lane in Lane:
            check_load(mover, order.permutation(29)[:22].tolist(), order.permutation(23)[:22].tolist(), lane=lane)
        check_load(mover, list(range(5, 25)), list(range(20)))  # neighbours: merged runs
        check_store(mover, order.permutation(23)[:22].tolist(), order.permutation(29)[:22].tolist())
        check_store(mover, list(range(20)), list(range(3, 23)))


@st.composite
def run_lists(draw: st.DrawFn) -> tuple[list[int], list[int], list[int], list[int]]:
    """Draw runs that often continue each other, within two buffers of 1,000 bytes, and borders on the first."""
    first, second, sizes = [], [], []
    for _ in range(draw(st.integers(1, 12))):
        size = draw(st.integers(1, 20))
        follow = bool(first) and draw(st.booleans())
        first.append(first[-1] + sizes[-1] if follow else draw(st.integers(0, 700)))
        second.append(second[-1] + sizes[-1] if follow else draw(st.integers(0, 700)))
        sizes.append(size)
    borders = draw(st.sets(st.sampled_from(first), max_size=3))
    inside = {b for b in borders for begin, size in zip(first, sizes, strict=True) if begin < b < begin + size}
    return first, second, sizes, sorted(borders - inside)


@settings(max_examples=200)
@given(run_lists())
def test_merged_runs_are_the_same_bytes_in_fewer_runs(lists: tuple[list[int], ...]) -> None:
    """Nothing is lost, doubled or put in another order, and no run crosses a border."""
    first, second, sizes, borders = (np.array(x, dtype=np.int64) for x in lists)

    def spelled_out(a: np.ndarray, b: np.ndarray, n: np.ndarray) -> list[tuple[int, int]]:
        return [(x + i, y + i) for x, y, k in zip(a.tolist(), b.tolist(), n.tolist(), strict=True) for i in range(k)]

    merged = merge_runs(first, second, sizes, borders)
    assert spelled_out(*merged) == spelled_out(first, second, sizes)
    assert len(merged[0]) <= len(first)
    for begin, size in zip(merged[0], merged[2], strict=True):
        assert not ((borders > begin) & (borders < begin + size)).any()


def test_runs_are_copied() -> None:
    """On the CPU, runs are copied at once, in order."""
    source, target = np.arange(100, dtype=np.uint8), np.zeros(100, dtype=np.uint8)
    at = np.array([10, 50]), np.array([0, 20]), np.array([5, 7])
    copy_runs(target.ctypes.data + at[1], source.ctypes.data + at[0], at[2], None)
    assert target[:5].tolist() == [10, 11, 12, 13, 14]
    assert target[20:27].tolist() == list(range(50, 57))
    assert int(target.sum()) == int(source[10:15].sum()) + int(source[50:57].sum())


def test_neighbouring_blocks_of_a_one_page_cache_are_one_run() -> None:
    """A cross-layer cache moves contiguous blocks as one copy, and never across the end of a registration."""
    layout = CacheLayout.from_tensors([torch.zeros(8, 64, dtype=torch.uint8)], block_dim=0)
    with HostPool.for_layout(layout, 8) as pool:
        engine = paths.EnginePath(layout, pool)
        blocks, slots = np.array([2, 3, 4, 6]), np.array([0, 1, 2, 3])
        pairs = Pairs(0, blocks, slots, 0, 0)
        assert engine._runs(pairs)[2].tolist() == [192, 64]
        pool.piece_ends = np.array([pool.address + 3 * 64, pool.address + 8 * 64])
        assert engine._runs(pairs)[2].tolist() == [64, 128, 64]


def test_a_call_may_name_its_path_and_the_result_says_which_it_was() -> None:
    """Naming a path for one call leaves the others to the mover's choice."""
    layout = CacheLayout.from_tensors([torch.zeros(2, 8, 64, dtype=torch.uint8)], block_dim=1)
    with HostPool.for_layout(layout, 8) as pool, Mover(layout, pool) as mover:
        for path in ("engine", "staged", "reference", None):
            load_batch(mover, [Load(1, [0], [0])], path=path)
            assert [r.path for r in mover.finished()] == [path or "direct"]


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("lane", "count", "path"), [("expedited", 200, "direct"), ("bulk", 2, "direct"), ("bulk", 200, "staged")]
)
def test_large_bulk_loads_are_staged_and_small_or_expedited_ones_direct(lane: str, count: int, path: str) -> None:
    """The default choice goes by bytes and lane."""
    layout = CacheLayout.from_tensors([torch.zeros(2, 256, 1 << 19, dtype=torch.uint8, device="cuda")], block_dim=1)
    with HostPool.for_layout(layout, 256) as pool, Mover(layout, pool) as mover:
        assert mover.path == "auto"
        load_batch(mover, [Load(1, range(count), range(count), lane)])
        mover.close()
        assert [r.path for r in mover.finished()] == [path]


@pytest.mark.parametrize("path", ["staged", "engine"])
def test_host_blocks_are_read_early_only_when_no_store_to_them_is_in_flight(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy engine may fetch ahead of its stream; a load behind a store must not."""
    early: list[bool] = []

    def spy(*args: object, source_rests: bool = False) -> None:
        early.append(source_rests)
        copy_runs(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(f"kvmove.move.paths.{path}.copy_runs", spy)
    layout = CacheLayout.from_tensors([torch.zeros(2, 4, 64, dtype=torch.uint8)], block_dim=1)
    with HostPool.for_layout(layout, 4) as pool, Mover(layout, pool, path=path) as mover:
        store_batch(mover, [Store(1, [0], [3])])
        load_batch(mover, [Load(2, [3], [1])])  # the store has not been seen to end
        assert mover.finished()
        load_batch(mover, [Load(3, [3], [2])])
    assert early == [False, False, True]
