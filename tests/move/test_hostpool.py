"""Host memory: sizes, exact use of memory, pinning in pieces, and letting go of it."""

from __future__ import annotations

import gc
import mmap
import os
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from kvmove import CacheLayout, HostPool, Mover, PinningError, RecordError, Refused
from kvmove.move import hostmemory, mapping, numa, touching
from kvmove.testing.driver import DEVICE_OFFSET, NOT_SUPPORTED, FakeDriver

BLOCK = 48 * 1024


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Make pieces and slices small, so that small pools have several."""
    if not request.node.get_closest_marker("gpu"):
        monkeypatch.setattr(hostmemory, "REGISTER_BYTES", 1 << 20)
        monkeypatch.setattr(touching, "SLICE_BYTES", 1 << 19)


def smaps(address: int, num_bytes: int) -> dict[str, int]:
    """What the kernel says of [address, address + num_bytes): bytes by field, and of all areas that it touches."""
    total = {"Size": 0, "Rss": 0}
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if area := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            begin, end = (int(x, 16) for x in area.groups())
            inside = begin < address + num_bytes and address < end
        elif inside and (field := line.split(":")[0]) in total:
            total[field] += int(line.split()[1]) << 10
    return total


def test_blocks_are_the_pools_memory() -> None:
    """Block i begins at address + i * block_bytes, and no byte more is mapped than the blocks need."""
    with HostPool(5, 48) as pool:
        pool.blocks[3, 7] = 42
        flat = np.frombuffer(pool.blocks.numpy(), dtype=np.uint8)
        assert flat[3 * 48 + 7] == 42
        assert pool.blocks[3].data_ptr() == pool.address + 3 * 48
        assert (pool.num_bytes, pool.pinned, pool.ready_blocks, pool.path) == (240, False, 5, None)
        assert pool.wait_ready(0)


@pytest.mark.parametrize(("blocks", "size"), [(0, 16), (4, 0), (4, 24), (-1, 16)])
def test_impossible_sizes_are_refused(blocks: int, size: int) -> None:
    """At least one block, of a multiple of 16 bytes."""
    with pytest.raises(RecordError, match="multiple of 16"):
        HostPool(blocks, size)


@pytest.mark.parametrize(("blocks", "size"), [(1, 16), (257, 4112), (100, BLOCK), (3, 5 << 20)])
@pytest.mark.parametrize("by_kernel", [True, False])
def test_memory_is_the_blocks_in_whole_pages(
    monkeypatch: pytest.MonkeyPatch, blocks: int, size: int, by_kernel: bool
) -> None:
    """Mapped and occupied are the blocks rounded up to OS pages, not a page more, however pages are touched."""
    FakeDriver(monkeypatch.setattr)
    if not by_kernel:
        monkeypatch.setattr(touching, "kernel_populates", lambda: False)
    with HostPool(blocks, size, device="cuda") as pool:
        pages = -(-blocks * size // mmap.PAGESIZE) * mmap.PAGESIZE
        assert smaps(pool.address, pages) == {"Size": pages, "Rss": pages}
        facts = pool.facts()
        assert (facts.num_bytes, facts.mapped_bytes, facts.header_bytes) == (blocks * size, pages, 0)
        assert pool.num_bytes < mapping.HUGE_BYTES or pool.address % mapping.HUGE_BYTES == 0
        assert ("kernel" in facts.touching) == by_kernel
        assert not pool.blocks.any()


def test_a_pool_of_the_cpu_takes_memory_when_it_is_used() -> None:
    """Without a device nothing is touched in advance."""
    with HostPool(100, BLOCK) as pool:
        assert smaps(pool.address, pool.num_bytes)["Rss"] == 0
        assert pool.facts().touching == "at first use"


def test_memory_goes_with_its_last_view() -> None:
    """A view outlives the pool; after the last one, the addresses are free."""
    pool = HostPool(100, BLOCK)
    address, num_bytes, block = pool.address, pool.num_bytes, pool.blocks[7]
    pool.close()
    del pool
    gc.collect()
    block.fill_(3)
    assert int(block.sum()) == 3 * BLOCK
    del block
    assert smaps(address, num_bytes)["Size"] == 0


def test_touching_changes_nothing() -> None:
    """Memory that somebody has written already keeps what it holds."""
    with HostPool(10, BLOCK) as pool:
        pool.blocks.fill_(9)
        for by_kernel in (True, False):
            with pytest.MonkeyPatch.context() as patch:
                if not by_kernel:
                    patch.setattr(touching, "kernel_populates", lambda: False)
                touching.touch(pool._memory._mapping, 0, pool._memory._mapping.mapped_bytes)
        assert bool((pool.blocks == 9).all())


def test_pinning_goes_in_pieces_that_end_on_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """No block lies in two registrations, and together they are the pool exactly."""
    driver = FakeDriver(monkeypatch.setattr)
    pool = HostPool(100, BLOCK, device="cuda")
    sizes = list(driver.pinned.values())
    assert sum(sizes) == pool.num_bytes
    assert all(size % BLOCK == 0 for size in sizes)
    assert len(sizes) > 2
    assert all(address % mmap.PAGESIZE == 0 for address in driver.pinned)
    assert pool.piece_ends.tolist() == [a + n for a, n in driver.pinned.items()]
    assert pool.device_address == pool.address + DEVICE_OFFSET
    facts = pool.facts()
    assert (facts.pinning, facts.pinned_pieces, facts.ready_bytes) == ("pinned", len(sizes), pool.num_bytes)
    assert facts.ready_s is not None
    pool.close()
    pool.close()
    assert not driver.pinned


@pytest.mark.parametrize("fails", range(5))
def test_pinning_that_fails_at_any_piece_is_rolled_back(monkeypatch: pytest.MonkeyPatch, fails: int) -> None:
    """The error says what was asked and what the limit allows; nothing stays pinned."""
    driver = FakeDriver(monkeypatch.setattr, fails=fails)
    with pytest.raises(PinningError, match=r"cannot pin 4915200 bytes.*out of memory.*ulimit -l") as failure:
        HostPool(100, BLOCK, device="cuda")
    assert failure.value.asked_bytes == 4915200
    assert failure.value.pinned_bytes == 21 * BLOCK * fails  # as many whole blocks as 1 MiB holds, a piece
    assert not driver.pinned


def test_pieces_that_the_device_sees_apart_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels use one base address, so the pieces have to follow each other for the device too."""
    driver = FakeDriver(monkeypatch.setattr)
    monkeypatch.setattr("kvmove.move.cudart.device_alias", lambda a: a + len(driver.pinned) * 4096)
    with pytest.raises(PinningError, match=r"2 pinned pieces at unrelated addresses.*ask for at most 1032192 bytes"):
        HostPool(100, BLOCK, device="cuda")
    assert not driver.pinned


def test_a_driver_that_breaks_is_a_pinning_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the driver raises, the pieces before are released and the cause is kept in the message."""
    driver = FakeDriver(monkeypatch.setattr)

    def broken(address: int) -> int:
        raise RuntimeError("cudaHostGetDevicePointer: unknown error")

    monkeypatch.setattr("kvmove.move.cudart.device_alias", broken)
    with pytest.raises(PinningError, match="cudaHostGetDevicePointer: unknown error"):
        HostPool(100, BLOCK, device="cuda")
    assert not driver.pinned


def test_where_pinning_is_barred_a_pageable_pool_can_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names `pageable=True`; such a pool says that it is not pinned, and kernels do not get it."""
    driver = FakeDriver(monkeypatch.setattr, fails=0, failure=NOT_SUPPORTED)
    with pytest.raises(PinningError, match=r"not supported.*CUDA error 801.*pageable=True"):
        HostPool(100, BLOCK, device="cuda")
    with HostPool(100, BLOCK, device="cuda", pageable=True) as pool:
        assert not pool.pinned
        assert pool.facts().pinning == "pageable"
        assert (driver.calls, len(pool.piece_ends), pool.ready_blocks) == (1, 0, 100)
        pool.blocks.fill_(1)


def test_memory_that_the_system_has_not_is_refused() -> None:
    """A pool beyond the address space is an error of its own kind and not of the operating system's."""
    with pytest.raises(PinningError, match=r"cannot map 18014398509481984 bytes.*ask for a smaller pool"):
        HostPool(1 << 24, 1 << 30)


def test_a_pool_that_nobody_closed_is_unpinned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that goes while the driver still knows it would make the next mapping there fail."""
    driver = FakeDriver(monkeypatch.setattr)
    pool = HostPool(4, 4096, device="cuda")
    assert driver.pinned
    del pool
    gc.collect()
    assert not driver.pinned


def test_a_forked_child_unpins_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The registrations are the parent's; the child sees the same bytes."""
    driver = FakeDriver(monkeypatch.setattr)
    with HostPool(4, 4096, device="cuda") as pool:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                pool.blocks.numpy()[1] = 5
                pool.close()
                status = 0 if driver.pinned else 2
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        assert bool((pool.blocks[1] == 5).all())
    assert not driver.pinned


def test_memory_is_put_on_the_devices_node(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The node is read from where the device hangs on the bus, and reported as unknown where it is not known."""
    FakeDriver(monkeypatch.setattr)
    monkeypatch.setattr(numa, "PCI_DEVICES", str(tmp_path))
    file = tmp_path / "0000:1b:00.0" / "numa_node"
    file.parent.mkdir()
    found = {}
    for text in ("0\n", "-1\n", "?\n", "63\n"):
        file.write_text(text)
        with HostPool(100, BLOCK, device="cuda") as pool:
            facts = pool.facts()
            found[text.strip()] = facts.numa_node, facts.numa.split(" ")[0]
    # Machines may not allow it, or not have so many nodes: reported, and no error.
    assert found["0"] in ((0, "preferred"), (0, "refused"))
    assert (found["-1"], found["?"]) == ((None, "unknown"), (None, "unknown"))
    assert found["63"] in ((63, "preferred"), (63, "refused"))


@pytest.mark.parametrize(
    ("setting", "off"),
    [
        ("always within_size advise [never] deny force", True),
        ("always within_size [advise] never deny force", False),
        ("[always] within_size advise never deny force", False),
        ("always within_size advise never [deny] force", True),
        (None, True),
    ],
)
def test_huge_pages_are_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, setting: str | None, off: bool
) -> None:
    """The pool says whether the system gives huge pages to shared memory at all."""
    FakeDriver(monkeypatch.setattr)
    file = tmp_path / "shmem_enabled"
    if setting is not None:
        file.write_text(setting)
    monkeypatch.setattr(mapping, "SHMEM_ENABLED", str(file))
    with HostPool(100, BLOCK, device="cuda") as pool:
        facts = pool.facts()
        assert facts.huge_pages.startswith(("off", "refused") if off else ("asked", "refused"))
        assert facts.huge_bytes is not None
        assert 0 <= facts.huge_bytes <= pool.num_bytes


@pytest.mark.parametrize(
    ("setting", "options", "why"),
    [
        ("[never]", "rw,nosuid,huge=advise", None),
        ("[always]", "rw,nosuid", "/dev/shm is mounted with huge=never"),
        ("[deny]", "rw,huge=always", "shmem_enabled is deny"),
        ("[force]", "rw", None),
    ],
)
def test_huge_pages_of_files_go_by_their_mount(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, setting: str, options: str, why: str | None
) -> None:
    """/dev/shm has an option of its own, which only the kernel's `deny` and `force` outrank."""
    (tmp_path / "setting").write_text(setting)
    (tmp_path / "mounts").write_text(f"proc /proc proc rw 0 0\ntmpfs /dev/shm tmpfs {options} 0 0\n")
    monkeypatch.setattr(mapping, "SHMEM_ENABLED", str(tmp_path / "setting"))
    monkeypatch.setattr(mapping, "MOUNTS", str(tmp_path / "mounts"))
    assert mapping.why_no_huge_pages(from_file=True) == why


@pytest.mark.gpu
def test_a_real_pool_is_pinned_and_released() -> None:
    """Kernels and copies see the memory, and it can be pinned again at once."""
    for _ in range(3):
        with HostPool(300, 1 << 20, device="cuda") as pool:  # more than one registration
            pool.blocks[299].fill_(7)
            assert pool.blocks.is_pinned()
            assert bool((pool.blocks[299].cuda() == 7).all())
            facts = pool.facts()
            assert (facts.pinning, facts.pinned_pieces, facts.mapped_bytes) == ("pinned", 2, 300 << 20)
            assert smaps(pool.address, pool.num_bytes)["Size"] == 300 << 20
            print(facts)
    assert torch.cuda.is_available()


@pytest.mark.gpu
def test_a_real_pageable_pool_is_not_pinned() -> None:
    """It holds bytes that plain copies reach, and a mover of a CUDA cache does not take it."""
    cache = torch.zeros(8, 64, dtype=torch.uint8, device="cuda")
    layout = CacheLayout.from_tensors([cache], block_dim=0)
    with HostPool.for_layout(layout, 64, pageable=True) as pool:
        assert not pool.blocks.is_pinned()
        pool.blocks.fill_(3)
        assert bool((pool.blocks.cuda() == 3).all())
        with pytest.raises(Refused, match="not pinned"):
            Mover(layout, pool)
