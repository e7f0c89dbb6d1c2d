"""Copies of any cache are exact: several groups, several blocks in a host block, any kind of tensors."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvmove.move import CacheLayout, HostPool, Mover, paths
from kvmove.move.paths.staged import StagedPath
from kvmove.records import JobKind, Lane, Load, Part, Store
from kvmove.testing.caches import KINDS, SIZES, GroupSpec, build_cache, group_specs, loads_over, stores_over
from kvmove.testing.copies import check_loads, check_stores, randomize

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
PATHS = ["reference", "direct", "staged", "engine"]


@pytest.fixture(autouse=True)
def small_ring(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ring of the size that a GPU gets takes longer to make than these copies; this one is used again and again."""
    monkeypatch.setitem(paths._MAKERS, "staged", partial(StagedPath, ring_bytes=1 << 16, section_bytes=1 << 13))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("path", PATHS)
def test_a_copy_of_any_cache_is_exact(device: str, path: str) -> None:
    """Loads and stores of one call, over all groups and from anywhere in a chunk, move what they name and no more."""

    # On a GPU each new shape of a page is a kernel to compile, which takes most of the time.
    @settings(max_examples=15 if device == "cuda" else 60)
    @given(group_specs(), st.booleans(), st.integers(1, 9), st.integers(0, 2**16), st.data())
    def run(specs: list[GroupSpec], shared: bool, host_blocks: int, seed: int, data: st.DataObject) -> None:
        layout = build_cache(specs, device, shared=shared)
        with HostPool.for_layout(layout, host_blocks) as pool, Mover(layout, pool, path=path) as mover:
            randomize(layout, pool, seed)
            mover.set_programs("bulk", data.draw(st.integers(1, 9)))
            check_loads(mover, data.draw(loads_over(layout, pool)))
            check_stores(mover, data.draw(stores_over(layout, pool)))

    run()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", sorted(KINDS))
@pytest.mark.parametrize("per_chunk", [1, 3])
def test_every_kind_of_cache_is_copied_by_every_path(kind: str, per_chunk: int, device: str) -> None:
    """Runs that begin and end inside a chunk, cover whole chunks, and lie within one; every size of row."""
    order = np.random.default_rng(len(kind))
    for size in SIZES[per_chunk::4]:
        specs = [GroupSpec(kind, 11, size, 2, per_chunk), GroupSpec("latent", 7, 576, 1, 2)]
        layout = build_cache(specs, device)
        with HostPool.for_layout(layout, 12) as pool, Mover(layout, pool) as mover:
            randomize(layout, pool, size)
            for path in PATHS:
                for first, count in ((0, 9), (per_chunk - 1, 8), (per_chunk // 2, 1)):
                    chunks = order.permutation(12)[: -(-(first + count) // per_chunk)]
                    slots = order.permutation(11)[:count]
                    parts = [Part(1, [chunks[0]], [5, 2]), Part(0, chunks, slots, first)]
                    check_loads(mover, [Load.of_parts(1, parts, "expedited")], path=path)
                    own = [i for i in range(12) if i not in chunks][-1:]
                    parts = [Part(0, chunks, slots, first), Part(1, own, [3, 3])] if own else parts[1:]
                    check_stores(mover, [Store.of_parts(1, parts)], path=path)


@pytest.mark.parametrize("path", PATHS)
def test_two_jobs_of_a_call_write_places_of_one_host_block(path: str) -> None:
    """What one writes, and what neither does, stays: the chunk is not written as a whole."""
    layout = build_cache([GroupSpec("padded", 6, 31, 3, 4)])
    with HostPool.for_layout(layout, 2) as pool, Mover(layout, pool, path=path) as mover:
        randomize(layout, pool, 3)
        check_stores(
            mover, [Store.of_parts(i, [Part(0, [1], [slot], first)]) for i, slot, first in ((0, 5, 2), (1, 0, 0))]
        )


def test_the_groups_of_a_hybrid_model_are_loaded_by_one_launch_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """All expedited loads of a call share a launch for each group; each bulk load has its own."""
    layout = build_cache([GroupSpec("K and V apart", 6, 8, 2, 1), GroupSpec("states", 4, 16, 1, 2)])
    with HostPool.for_layout(layout, 8) as pool, Mover(layout, pool, path="direct") as mover:
        randomize(layout, pool, 0)
        launched: list[int] = []
        for number, kernels in enumerate(mover._paths.named("direct")._kernels):  # type: ignore[attr-defined]
            right = kernels.gather
            monkeypatch.setattr(kernels, "gather", lambda *a, n=number, right=right: (launched.append(n), right(*a))[1])
        full, states = Part(0, [1, 2], [3, 4]), Part(1, [5, 6], [1, 0, 3], 1)
        loads = [Load.of_parts(1, [full, states], "expedited"), Load(2, [0], [0], "expedited"), Load(3, [3], [1])]
        check_loads(mover, [*loads, Load.of_parts(4, [Part(1, [7], [2])], Lane.BULK)])
    assert launched == [0, 1, 0, 1]


def test_a_launch_that_fails_after_another_ends_its_jobs_and_leaves_the_mover_usable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The groups before it may have been written already; the job has failed as a whole, and says why."""
    layout = build_cache([GroupSpec("latent", 6, 8, 1, 1), GroupSpec("states", 4, 16, 1, 2)])
    with HostPool.for_layout(layout, 8) as pool, Mover(layout, pool, path="direct") as mover:
        randomize(layout, pool, 0)
        kernels = mover._paths.named("direct")._kernels[1]  # type: ignore[attr-defined]

        def refuse(*_: object) -> None:
            raise RuntimeError("out of resources")

        load = Load.of_parts(1, [Part(0, [1], [3]), Part(1, [5], [1])], "expedited")
        with monkeypatch.context() as broken:
            broken.setattr(kernels, "gather", refuse)
            mover.load([load], after=None, path=None, strict=False)
            (result,) = mover.finished()
        assert (result.error, result.bytes) == ("could not be launched (out of resources)", 0)
        check_loads(mover, [load])


def test_the_copy_engine_moves_a_chunk_as_one_run_where_it_can() -> None:
    """Neighbouring places to neighbouring slots merge; the end of a registration and padding part them."""
    layout = build_cache([GroupSpec("cross-layer", 8, 16, 1, 4), GroupSpec("cross-layer", 8, 10, 1, 3)])
    assert [(g.block_bytes, g.sub_bytes) for g in layout.groups] == [(32, 32), (20, 32)]
    with HostPool.for_layout(layout, 8) as pool:
        engine = paths.EnginePath(layout, pool)

        def runs(part: Part) -> list[int]:
            positions = layout.groups[part.group].positions(part)
            sizes: list[int] = engine._runs(paths.Pairs(part.group, positions, part.slots, 0, 0))[2].tolist()
            return sizes

        assert runs(Part(0, [2, 3], [0, 1, 2, 3, 4], 2)) == [160]
        assert runs(Part(0, [2, 5], [0, 1, 2, 3, 4], 2)) == [64, 96]
        assert runs(Part(1, [2], [0, 1, 2])) == [20, 20, 20]
        pool.piece_ends = np.array([pool.address + 3 * pool.block_bytes, pool.address + 8 * pool.block_bytes])
        assert runs(Part(0, [2, 3], [0, 1, 2, 3, 4], 2)) == [64, 96]


def test_the_default_choice_goes_by_bytes_of_all_groups_and_runs_of_the_copy_engine() -> None:
    """Blocks too small to be staged one by one are staged in chunks, and large single pages go to the copy engine."""
    spec = [GroupSpec("latent", 9, 4096, 1, 8), GroupSpec("latent", 9, 4096, 1, 1)]
    layout: CacheLayout = build_cache(spec)
    with HostPool.for_layout(layout, 8) as pool:
        choice = paths.Paths(layout, pool, None)
        choice._always, choice._made = None, {name: name for name in PATHS}  # type: ignore[assignment]
        chunks, blocks = Part(0, [1, 2], range(16)), Part(1, range(8), range(8))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(paths, "STAGED_FROM_BYTES", 16 * 8192)
            patch.setattr(paths, "STAGED_BLOCK_BYTES", 4 * 8192)
            assert choice.choose(JobKind.LOAD, Lane.BULK, [chunks]) == "staged"
            assert choice.choose(JobKind.LOAD, Lane.EXPEDITED, [chunks]) == "direct"
            assert choice.choose(JobKind.LOAD, Lane.BULK, [blocks]) == "direct"
            assert choice.choose(JobKind.LOAD, Lane.BULK, [chunks, blocks]) == "direct"
        choice._of_large_pages = {1}
        assert choice.choose(JobKind.LOAD, Lane.EXPEDITED, [blocks]) == "engine"
        assert choice.choose(JobKind.LOAD, Lane.EXPEDITED, [blocks, chunks]) == "direct"
