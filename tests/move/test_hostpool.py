"""Host memory: sizes, pinning in pieces, and letting go of it."""

from __future__ import annotations

import gc
import mmap

import numpy as np
import pytest
import torch

from kvmove import HostPool, PinningError, RecordError
from kvmove.move import cudart, hostpool


def test_blocks_are_the_pools_memory() -> None:
    """Block i begins at address + i * block_bytes, and no byte more is mapped than the blocks need."""
    with HostPool(5, 48) as pool:
        pool.blocks[3, 7] = 42
        flat = np.frombuffer(pool.blocks.numpy(), dtype=np.uint8)
        assert flat[3 * 48 + 7] == 42
        assert pool.blocks[3].data_ptr() == pool.address + 3 * 48
        assert (pool.num_bytes, pool.pinned) == (240, False)


@pytest.mark.parametrize(("blocks", "size"), [(0, 16), (4, 0), (4, 24), (-1, 16)])
def test_impossible_sizes_are_refused(blocks: int, size: int) -> None:
    """At least one block, of a multiple of 16 bytes."""
    with pytest.raises(RecordError, match="multiple of 16"):
        HostPool(blocks, size)


class Driver:
    """Stands in for the CUDA driver: remembers what is pinned, refuses the piece number `fails`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, fails: int | None = None) -> None:
        self.pinned: dict[int, int] = {}
        self.calls = 0
        self.fails = fails
        monkeypatch.setattr(cudart, "host_register", self.register)
        monkeypatch.setattr(cudart, "host_unregister", self.pinned.pop)
        monkeypatch.setattr(cudart, "device_alias", lambda address: address + (1 << 40))

    def register(self, address: int, num_bytes: int) -> str | None:
        self.calls += 1
        if self.calls - 1 == self.fails:
            return "out of memory (CUDA error 2)"
        self.pinned[address] = num_bytes
        return None


def test_pinning_goes_in_pieces_that_end_on_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """No block lies in two registrations, and together they are the pool exactly."""
    monkeypatch.setattr(hostpool, "REGISTER_BYTES", 1 << 20)
    driver = Driver(monkeypatch)
    block = 48 * 1024
    pool = HostPool(100, block, device="cuda")
    sizes = list(driver.pinned.values())
    assert sum(sizes) == pool.num_bytes
    assert all(size % block == 0 for size in sizes)
    assert len(sizes) > 2
    assert all(address % mmap.PAGESIZE == 0 for address in driver.pinned)
    assert pool.device_address == pool.address + (1 << 40)
    pool.close()
    pool.close()
    assert not driver.pinned


def test_pinning_that_fails_half_way_is_rolled_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says what was asked and what the limit allows; nothing stays pinned."""
    monkeypatch.setattr(hostpool, "REGISTER_BYTES", 1 << 20)
    driver = Driver(monkeypatch, fails=2)
    with pytest.raises(PinningError, match=r"cannot pin 4915200 bytes.*out of memory.*ulimit -l") as failure:
        HostPool(100, 48 * 1024, device="cuda")
    assert failure.value.asked_bytes == 4915200
    assert 0 < failure.value.pinned_bytes < 4915200
    assert not driver.pinned


def test_a_pool_that_nobody_closed_is_unpinned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that goes while the driver still knows it would make the next mapping there fail."""
    driver = Driver(monkeypatch)
    pool = HostPool(4, 4096, device="cuda")
    assert driver.pinned
    del pool
    gc.collect()
    assert not driver.pinned


@pytest.mark.gpu
def test_a_real_pool_is_pinned_and_released() -> None:
    """Kernels and copies see the memory, and it can be pinned again at once."""
    for _ in range(3):
        with HostPool(300, 1 << 20, device="cuda") as pool:  # more than one registration
            pool.blocks[299].fill_(7)
            assert pool.blocks.is_pinned()
            assert bool((pool.blocks[299].cuda() == 7).all())
    assert torch.cuda.is_available()
