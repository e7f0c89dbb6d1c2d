"""Whatever goes wrong with the bytes shows as a mismatch: the replay is only as good as what it would find."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from kvmove.kvpol import Policy
from kvmove.move import Mover, Ticket, load_batch, store_batch
from kvmove.records import Load, Store
from kvmove.replay import replica, worker
from kvmove.replay.contents import POISON
from kvmove.replay.engine import replay
from kvmove.replay.report import PolicyReport
from kvmove.replay.settings import Settings
from kvmove.replay.trace import Request

SETTINGS = Settings(num_slots=8, num_host_blocks=32, budget_bytes=1 << 40)
# Three prompts of four blocks in a cache for two of them: when the first one comes back, the host has it.
REQUESTS = [
    Request(f"r{i}", 10_000 * i, 4 * 512 + 1, 1, tuple(range(first, first + 5)))
    for i, first in enumerate((10, 20, 30, 10))
]
POLICIES = {"in the step": Policy.parse("sync"), "in the background": Policy.parse("async")}


@pytest.fixture(params=POLICIES)
def policy(request: pytest.FixtureRequest) -> Policy:
    return POLICIES[request.param]


def _replayed(policy: Policy) -> PolicyReport:
    report = replay(policy, REQUESTS, SETTINGS, device="cpu")
    assert report.finished == len(REQUESTS)
    return report


def _break_loads(patch: pytest.MonkeyPatch, broken: Callable[[Load], Load]) -> None:
    def load(mover: Mover, loads: Sequence[Load]) -> Ticket:
        return load_batch(mover, [broken(x) for x in loads])

    patch.setattr(worker, "load_batch", load)


def test_the_trace_loads_and_finds_nothing_wrong(policy: Policy):
    """Without a planted mistake there are loads and no mismatches: what the other tests rest on."""
    report = _replayed(policy)
    assert report.loaded_blocks == 4
    assert report.mismatches == 0


def test_two_swapped_blocks_are_found(policy: Policy, monkeypatch: pytest.MonkeyPatch):
    """Every page of both is named with its request and block."""

    def swapped(load: Load) -> Load:
        order = [1, 0, *range(2, len(load.src_blocks))]
        return Load(load.job, load.src_blocks[order], load.dst_slots, load.lane)

    _break_loads(monkeypatch, swapped)
    report = _replayed(policy)
    assert report.mismatches == 2 * SETTINGS.replica_pages
    assert {(m.request, m.block) for m in report.first_mismatches} == {("r3", 10), ("r3", 11)}


def test_slots_are_poisoned_before_they_are_loaded(policy: Policy, monkeypatch: pytest.MonkeyPatch):
    """A load that moves nothing cannot pass because its slots still had the right blocks from before."""
    poisoned = []

    def load(mover: Mover, loads: Sequence[Load]) -> Ticket:
        for x in loads:
            words = [view.numpy()[x.dst_slots].view(np.uint64) for view in mover.layout.page_views()]
            poisoned.append(all((page == POISON).all() for page in words))
        return load_batch(mover, loads)

    monkeypatch.setattr(worker, "load_batch", load)
    _replayed(policy)
    assert poisoned == [True]


def test_a_block_that_does_not_arrive_is_found(policy: Policy, monkeypatch: pytest.MonkeyPatch):
    """The poison in its slot shows."""
    _break_loads(monkeypatch, lambda x: Load(x.job, x.src_blocks[:-1], x.dst_slots[:-1], x.lane))
    assert _replayed(policy).mismatches == SETTINGS.replica_pages


def test_the_right_block_in_the_wrong_slot_is_found(policy: Policy, monkeypatch: pytest.MonkeyPatch):
    """The slot that it should be in keeps its poison, and the one that it is in has another block to hold."""

    def misplaced(load: Load) -> Load:
        return Load(load.job, load.src_blocks[:1], load.dst_slots[-1:], load.lane)

    _break_loads(monkeypatch, misplaced)
    assert _replayed(policy).mismatches == 4 * SETTINGS.replica_pages


def test_another_block_of_the_host_is_found(policy: Policy, monkeypatch: pytest.MonkeyPatch):
    """A stale index would give the blocks of another prompt."""
    _break_loads(monkeypatch, lambda x: Load(x.job, (x.src_blocks + 4) % 32, x.dst_slots, x.lane))
    assert _replayed(policy).mismatches == 4 * SETTINGS.replica_pages


def test_a_store_of_the_wrong_slots_is_found_when_it_is_loaded(policy: Policy, monkeypatch: pytest.MonkeyPatch):
    """The host tier is compared through its loads."""

    def store(mover: Mover, stores: Sequence[Store]) -> Ticket:
        return store_batch(mover, [Store(x.job, np.roll(x.src_slots, 1), x.dst_blocks) for x in stores])

    monkeypatch.setattr(worker, "store_batch", store)
    assert _replayed(policy).mismatches == 4 * SETTINGS.replica_pages


@pytest.mark.parametrize("page", range(SETTINGS.replica_pages))
def test_one_flipped_bit_in_one_page_is_found(page: int, policy: Policy, monkeypatch: pytest.MonkeyPatch):
    """The page is named."""

    def load(mover: Mover, loads: Sequence[Load]) -> Ticket:
        for x in loads:
            where = mover.layout.pages[page]
            mover.pool.blocks[int(x.src_blocks[2]), where.host_offset_bytes + where.num_bytes - 1] ^= 0x80
        return load_batch(mover, loads)

    monkeypatch.setattr(worker, "load_batch", load)
    report = _replayed(policy)
    assert report.mismatches == 1
    assert (report.first_mismatches[0].block, report.first_mismatches[0].page) == (12, page)


def test_a_damaged_block_of_the_gpu_cache_is_found(monkeypatch: pytest.MonkeyPatch):
    """Blocks that a request reuses without a load are compared too."""
    requests = [REQUESTS[0], Request("again", 10_000, 4 * 512 + 1, 1, REQUESTS[0].hash_ids)]
    plain = worker.Worker.run_step

    def run_step(self: worker.Worker, plan: object, **placed: Sequence[worker.Placed]) -> None:
        if placed["cached"]:
            self._replica.poison(placed["cached"][0].slots[:1])
        plain(self, plan, **placed)  # type: ignore[arg-type]

    monkeypatch.setattr(worker.Worker, "run_step", run_step)
    report = replay(POLICIES["in the step"], requests, SETTINGS, device="cpu")
    assert report.cached_pages > 0
    assert report.mismatches == SETTINGS.replica_pages
    assert report.first_mismatches[0].block == 10


def test_a_mistake_in_a_later_pass_of_a_comparison_is_named(policy: Policy, monkeypatch: pytest.MonkeyPatch):
    """Many blocks are compared in several passes; the position of a wrong one is not that within its pass."""
    monkeypatch.setattr(replica, "_PASS_BYTES", SETTINGS.replica_block_bytes)
    _break_loads(monkeypatch, lambda x: Load(x.job, x.src_blocks[:-1], x.dst_slots[:-1], x.lane))
    assert {m.block for m in _replayed(policy).first_mismatches} == {13}
