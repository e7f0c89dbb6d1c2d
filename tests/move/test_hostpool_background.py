"""Pools that are used while the rest of them is still being pinned."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import pytest
import torch

from kvmove import CacheLayout, HostPool, Mover, PinningError, Refused
from kvmove.move import hostmemory, touching
from kvmove.testing.copies import check_load, check_store
from kvmove.testing.driver import FakeDriver

BLOCK = 48 * 1024
PER_PIECE = 21  # blocks in a piece of at most 1 MiB
PIECES = 5  # of 100 blocks


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Make pieces and slices small, so that small pools have several."""
    if not request.node.get_closest_marker("gpu"):
        monkeypatch.setattr(hostmemory, "REGISTER_BYTES", 1 << 20)
        monkeypatch.setattr(touching, "SLICE_BYTES", 1 << 19)


def until(condition: Callable[[], bool]) -> None:
    """Wait until the condition holds; fail after 10 s."""
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def pinning_threads() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name.startswith(("kvmove-pinning", "kvmove-touch"))]


def test_a_pool_is_ready_block_by_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """The constructor returns with the first piece; `ready_blocks` grows by a piece, and ends at all blocks."""
    driver = FakeDriver(monkeypatch.setattr, allowed=1)
    with HostPool(100, BLOCK, device="cuda", background=True) as pool:
        assert pool.ready_blocks == PER_PIECE
        assert pool.device_address == driver.alias(pool.address)
        assert len(pool.piece_ends) == PIECES  # known from the beginning, since paths keep them
        assert not pool.wait_ready(0.01)
        assert pool.facts().pinning == "in the background"
        for pieces in range(2, PIECES + 1):
            driver.allow()
            until(lambda pieces=pieces: pool.ready_blocks == min(100, pieces * PER_PIECE))  # type: ignore[misc]
        assert pool.wait_ready()
        assert pool.wait_ready(0)
        assert pool.facts().pinning == "pinned"
        assert sum(driver.pinned.values()) == pool.num_bytes
    assert not driver.pinned
    assert not pinning_threads()


def test_a_pool_without_a_device_is_touched_in_the_background() -> None:
    """There is nothing to pin; the pool is ready when it has its memory."""
    with HostPool(100, BLOCK, background=True) as pool:
        assert pool.ready_blocks >= PER_PIECE
        assert pool.wait_ready(10)
        assert pool.ready_blocks == 100


def test_a_first_piece_that_fails_shows_in_the_constructor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing was ready, so nobody gets a pool."""
    driver = FakeDriver(monkeypatch.setattr, fails=0)
    with pytest.raises(PinningError, match="after 0 bytes"):
        HostPool(100, BLOCK, device="cuda", background=True)
    assert not driver.pinned
    assert not pinning_threads()


@pytest.mark.parametrize("fails", range(1, PIECES))
def test_a_later_piece_that_fails_gives_all_back(monkeypatch: pytest.MonkeyPatch, fails: int) -> None:
    """Waiting and every use raise, again and again; nothing stays pinned."""
    driver = FakeDriver(monkeypatch.setattr, fails=fails, allowed=1)
    pool = HostPool(100, BLOCK, device="cuda", background=True)
    driver.allow(PIECES)
    for _ in range(2):
        with pytest.raises(PinningError, match=r"cannot pin 4915200 bytes.*out of memory") as failure:
            pool.wait_ready()
        assert failure.value.pinned_bytes == fails * PER_PIECE * BLOCK
        with pytest.raises(PinningError):
            _ = pool.ready_blocks
        with pytest.raises(PinningError):
            pool.hold(object())
    assert not driver.pinned
    assert pool.facts().pinning.startswith("failed: cannot pin")
    pool.close()


def test_what_is_in_use_stays_pinned_until_it_is_released(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels in flight read what was ready: a later failure waits for their mover."""
    driver = FakeDriver(monkeypatch.setattr, fails=3, allowed=1)
    pool = HostPool(100, BLOCK, device="cuda", background=True)
    first, second = object(), object()
    pool.hold(first)
    pool.hold(second)
    driver.allow(PIECES)
    with pytest.raises(PinningError):
        pool.wait_ready()
    assert len(driver.pinned) == 3
    with pytest.raises(Refused, match=r"2 open mover"):
        pool.close()
    pool.release(first)
    assert len(driver.pinned) == 3
    pool.release(second)
    assert not driver.pinned
    pool.close()


def test_closing_stops_the_pinning(monkeypatch: pytest.MonkeyPatch) -> None:
    """The piece being pinned ends, no other begins, and who waits is told."""
    driver = FakeDriver(monkeypatch.setattr, allowed=1)
    pool = HostPool(100, BLOCK, device="cuda", background=True)
    seen: list[BaseException] = []

    def wait() -> None:
        try:
            pool.wait_ready()
        except Refused as error:
            seen.append(error)

    waiting, closing = threading.Thread(target=wait), threading.Thread(target=pool.close)
    waiting.start()
    closing.start()
    until(lambda: pool.closed)
    driver.allow()  # the one that the driver is working on
    for thread in (closing, waiting):
        thread.join(10)
        assert not thread.is_alive()
    assert "closed before" in str(seen[0])
    assert driver.calls == 2
    assert not driver.pinned
    assert not pinning_threads()


@pytest.mark.parametrize("delay_us", range(0, 3000, 100))
def test_closing_at_any_moment_leaves_nothing(monkeypatch: pytest.MonkeyPatch, delay_us: int) -> None:
    """Wherever the thread is when the pool closes, nothing stays pinned and no thread stays."""
    driver = FakeDriver(monkeypatch.setattr, fails=4 if delay_us % 200 else None)
    with suppress(PinningError):  # the thread may have met the last piece before the constructor returns
        pool = HostPool(100, BLOCK, device="cuda", background=True)
        end = time.perf_counter() + delay_us * 1e-6
        while time.perf_counter() < end:
            pass
        pool.close()
    assert not driver.pinned
    assert not pinning_threads()


def test_a_pool_that_nobody_closed_stops_and_unpins(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread does not keep the pool alive."""
    driver = FakeDriver(monkeypatch.setattr, allowed=1)
    pool = HostPool(100, BLOCK, device="cuda", background=True)
    driver.allow(1)
    until(lambda: len(driver.pinned) == 2)
    threading.Timer(0.05, driver.allow).start()
    del pool
    gc.collect()
    until(lambda: not pinning_threads())
    assert not driver.pinned


def test_memory_that_runs_out_shows_in_the_background(monkeypatch: pytest.MonkeyPatch) -> None:
    """A piece that cannot be touched fails like one that cannot be pinned."""
    driver = FakeDriver(monkeypatch.setattr)
    real = touching.touch

    def touch(mapping: hostmemory.Mapping, begin: int, end: int) -> None:
        if begin >= 3 << 20:
            raise OSError(14, "Bad address")
        real(mapping, begin, end)

    monkeypatch.setattr(touching, "touch", touch)
    with pytest.raises(PinningError, match=r"there is no memory for it after 30\d+ bytes") as failure:
        HostPool(100, BLOCK, device="cuda", background=True).wait_ready()  # the constructor may meet it already
    assert failure.value.pinned_bytes == 3 * PER_PIECE * BLOCK
    assert not driver.pinned


@pytest.mark.gpu
def test_kernels_use_a_real_pool_while_it_is_pinned() -> None:
    """Loads and stores of the first piece are exact at once, and those of all pieces when the pool is ready."""
    block = 1 << 20
    cache = torch.zeros(16, block, dtype=torch.uint8, device="cuda")
    layout = CacheLayout.from_tensors([cache], block_dim=0)
    for path in ("direct", "staged", "engine"):
        with HostPool.for_layout(layout, 600, background=True) as pool, Mover(layout, pool, path=path) as mover:
            first = pool.ready_blocks
            assert first >= 256
            some = [0, 1, 100, 255]
            for i in some:
                pool.blocks[i].fill_(i % 251)
            check_load(mover, some, [3, 2, 9, 15], job=1)
            assert pool.wait_ready(30)
            assert pool.ready_blocks == 600
            last = [254, 255, 256, 257, 511, 512, 599]  # both sides of the pieces' ends
            for i in last:
                pool.blocks[i].fill_(i % 251)
            check_load(mover, last, list(range(4, 11)), job=2)
            assert pool.blocks[599].is_pinned()
            print(path, first, pool.facts())
    with HostPool.for_layout(layout, 24, background=True) as pool, Mover(layout, pool, path="direct") as mover:
        check_store(mover, [4, 5], [0, 23], job=3)


@pytest.mark.gpu
def test_a_real_pool_closes_while_it_is_pinned() -> None:
    """The memory can be pinned again at once, so nothing was left registered."""
    for _ in range(3):
        with HostPool(2048, 1 << 20, device="cuda", background=True) as pool:
            assert pool.ready_blocks < 2048 or pool.wait_ready(0)
