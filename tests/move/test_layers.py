"""Loads layer by layer: exact, in a few pieces, and each layer there when its wait is over."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvmove.errors import MoveFailed, Refused
from kvmove.move import CacheLayout, HostPool, Mover, layers, load_batch
from kvmove.move.layers import MOST_PIECES, pieces
from kvmove.records import Lane, Load, Part
from kvmove.testing.caches import GroupSpec, build_cache, group_specs, loads_over
from kvmove.testing.copies import POISON, check_loads, randomize
from kvmove.testing.queues import ManualQueues

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def cache(num_layers: int, device: str = "cpu") -> CacheLayout:
    """A layer is a tensor of K and V, in 6 slots."""
    return CacheLayout.from_tensors(
        [torch.zeros(2, 6, 32, dtype=torch.uint8, device=device) for _ in range(num_layers)], block_dim=1
    )


@pytest.mark.parametrize(
    ("num_layers", "sizes"),
    [(1, [1]), (2, [1, 1]), (7, [1, 2, 4]), (8, [1, 2, 4, 1]), (32, [1, 2, 4, 8, 16, 1]), (61, [1, 2, 4, 8, 16, 30])],
)
def test_pieces_grow_and_are_few(num_layers: int, sizes: list[int]) -> None:
    """Together they are all layers in order, and never more than six."""
    made = pieces(num_layers)
    assert [len(p) for p in made] == sizes
    assert [i for p in made for i in p] == list(range(num_layers))
    assert len(pieces(10_000)) == MOST_PIECES


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("path", ["direct", "engine", "reference"])
def test_a_load_by_layers_is_exact(device: str, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every page of every group arrives whatever tensors it is in, chunks included, and nothing else changes."""
    right = Mover.load
    monkeypatch.setattr(Mover, "load", lambda *a, **k: right(*a, **{**k, "by_layer": True}))

    @settings(max_examples=15)
    @given(group_specs(), st.booleans(), st.integers(1, 9), st.integers(0, 2**16), st.data())
    def run(specs: list[GroupSpec], shared: bool, host_blocks: int, seed: int, data: st.DataObject) -> None:
        layout = build_cache(specs, device, shared=shared)
        with HostPool.for_layout(layout, host_blocks) as pool, Mover(layout, pool, path=path) as mover:
            randomize(layout, pool, seed)
            check_loads(mover, data.draw(loads_over(layout, pool)))

    run()


def run_and_look(seed: int) -> list[int]:
    """Load by layers with every timing that streams allow; returns the layers that were not there after their wait."""
    layout, missing = cache(9), []
    rng = random.Random(seed)
    queues = ManualQueues(rng)
    with HostPool.for_layout(layout, 6) as pool:
        mover = Mover(layout, pool, queues=queues)
        randomize(layout, pool, seed)
        for tensor in layout.tensors:
            tensor.fill_(POISON)
        ticket = load_batch(mover, [Load(1, [4, 2], [1, 5], "expedited"), Load(2, [0], [3], "bulk")], by_layer=True)
        for layer in range(9):
            ticket.wait_layer(layer)

            def look(layer: int = layer) -> None:
                got = layout.tensors[layer][:, [1, 5]].permute(1, 0, 2).reshape(2, 64).numpy()
                if not np.array_equal(got, pool.blocks[[4, 2], 64 * layer : 64 * layer + 64].numpy()):
                    missing.append(layer)

            queues.engine(look)
        queues.drain()
        assert {r.job: r.error for r in mover.finished()} == {1: None, 2: None}
        ticket.wait_layer(8)  # harmless after the end
        mover.close()
    return missing


def test_a_layer_is_there_when_its_wait_is_over() -> None:
    """Whatever runs when, the engine's work after `wait_layer(i)` finds layer i's pages."""
    assert [run_and_look(seed) for seed in range(15)] == [[]] * 15


def test_the_timing_test_finds_a_wait_for_the_piece_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a wait for one piece too few, some timing misses a layer: the test above can fail."""
    right = layers.LayerPieces.piece_of
    monkeypatch.setattr(layers.LayerPieces, "piece_of", lambda self, layer: max(0, right(self, layer) - 1))
    assert any(run_and_look(seed) for seed in range(30))


@pytest.mark.parametrize("whole", [False, True])
def test_a_layer_does_not_wait_for_later_ones(whole: bool) -> None:
    """With some timing the engine goes on with layer 0 before the load has ended; after `wait()` with none."""
    early = 0
    for seed in range(8):
        layout, queues = cache(4), ManualQueues(random.Random(seed))
        with HostPool.for_layout(layout, 6) as pool:
            mover = Mover(layout, pool, queues=queues)
            ticket = load_batch(mover, [Load(1, [4], [1], "expedited")], by_layer=True)
            ticket.wait() if whole else ticket.wait_layer(0)
            reached = queues.engine(lambda: None)
            while not reached.done():
                queues.run(1)
            early += mover.finished() == []
            queues.drain()
            mover.close()
    assert early == 0 if whole else early > 0


def test_a_piece_that_cannot_be_launched_fails_the_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting for any layer raises, the job ends once with an error, and the mover stays usable."""
    layout = cache(4)
    with HostPool.for_layout(layout, 6) as pool, Mover(layout, pool) as mover:
        randomize(layout, pool, 1)
        right = layers.LayerPieces.load

        def refuse_the_second(self: Any, piece: int, *rest: Any) -> None:
            if piece == 1:
                raise RuntimeError("out of resources")
            right(self, piece, *rest)

        with monkeypatch.context() as broken:
            broken.setattr(layers.LayerPieces, "load", refuse_the_second)
            ticket = load_batch(mover, [Load(1, [4], [1], "expedited")], by_layer=True)
        for wait in (ticket.wait, ticket.check, lambda: ticket.wait_layer(0)):
            with pytest.raises(MoveFailed, match="out of resources"):
                wait()
        (result,) = mover.finished()
        assert (result.error, result.bytes) == ("could not be launched (out of resources)", 0)
        check_loads(mover, [Load(1, [4], [1], "expedited")])


def test_the_result_is_of_all_pieces() -> None:
    """One result a job, with the path's name and the time of its pieces together."""
    layout = cache(4)
    with HostPool.for_layout(layout, 6) as pool, Mover(layout, pool) as mover:
        load_batch(mover, [Load(1, [4, 0], [1, 3], "expedited"), Load(2, [1], [2], Lane.BULK)], by_layer=True).check()
        urgent, bulk = sorted(mover.finished(), key=lambda r: r.job)
        assert (urgent.path, urgent.blocks, urgent.bytes) == (mover.path, 2, 2 * layout.block_bytes)
        assert urgent.elapsed_ns is not None
        assert bulk.error is None


def test_what_cannot_go_by_layers_is_refused() -> None:
    """A path that moves whole host blocks, and a layer that there is not; after an ordinary load any layer is there."""
    layout = cache(3)
    with HostPool.for_layout(layout, 6) as pool, Mover(layout, pool) as mover:
        with pytest.raises(Refused, match="the staged path cannot load layer by layer"):
            load_batch(mover, [Load(1, [4], [1], "expedited")], path="staged", by_layer=True)
        ticket = load_batch(mover, [Load(1, [4], [1], "expedited")])
        ticket.wait_layer(2)
        for bad in (3, -1):
            with pytest.raises(Refused, match=f"there is no layer {bad}; the layout has 3 tensors"):
                ticket.wait_layer(bad)


def test_a_group_without_pages_in_a_piece_is_left_out() -> None:
    """Groups whose layers come late launch nothing before."""
    layout = build_cache([GroupSpec("latent", 6, 16, 2, 1), GroupSpec("latent", 4, 24, 3, 1)])
    with HostPool.for_layout(layout, 8) as pool, Mover(layout, pool, path="direct") as mover:
        randomize(layout, pool, 0)
        load = Load.of_parts(1, [Part(0, [1, 2], [3, 4]), Part(1, [5], [1])], "expedited")
        ticket = load_batch(mover, [load], by_layer=True)
        for layer in range(len(layout.tensors)):
            ticket.wait_layer(layer)
        ticket.check()
        assert [r.error for r in mover.finished()] == [None]
