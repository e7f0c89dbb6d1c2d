"""Pools that several processes map: who creates, attaches and removes, and what a crash leaves."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from kvmove import CacheLayout, HostPool, Mover, PinningError, RecordError, Refused
from kvmove.move import hostmemory, mapping, sharedfile, shmdir, touching
from kvmove.testing.copies import check_load
from kvmove.testing.driver import FakeDriver

BLOCK = 48 * 1024


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Make pieces and slices small, so that small pools have several."""
    if not request.node.get_closest_marker("gpu"):
        monkeypatch.setattr(hostmemory, "REGISTER_BYTES", 1 << 20)
        monkeypatch.setattr(touching, "SLICE_BYTES", 1 << 19)


@pytest.fixture
def name() -> Iterator[str]:
    """A name that nobody uses; its file must be gone at the end."""
    name = f"test-{uuid.uuid4().hex}"
    yield name
    left = Path(shmdir.path_of(name))
    exists = left.exists()
    left.unlink(missing_ok=True)
    assert not exists


class Process:
    """Another Python process that runs `lines`, tells `ready`, and goes on when it is told to."""

    def __init__(self, *lines: str) -> None:
        text = "\n".join(["import sys, os", "from kvmove import HostPool", *lines])
        text = text.replace("PAUSE", "print('ready', flush=True); sys.stdin.readline()")
        self._process = subprocess.Popen(
            [sys.executable, "-c", text], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __enter__(self) -> Process:
        return self

    def ready(self) -> None:
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"

    def go_on(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate()


def test_processes_see_each_others_bytes(name: str) -> None:
    """What one process writes, the other reads, in both directions; the creator's closing removes the name."""
    with Process(
        f"pool = HostPool.attach({name!r}, timeout_s=60, block_bytes={BLOCK})",
        "assert int(pool.blocks[99].sum()) == 7 * pool.block_bytes",
        "pool.blocks[3].fill_(5)",
        "PAUSE",
        "assert int(pool.blocks[4, 0]) == 6",
        "pool.close()",
        "PAUSE",
    ) as other:
        with HostPool(100, BLOCK, name=name) as pool:
            pool.blocks[99].fill_(7)
            other.ready()
            assert bool((pool.blocks[3] == 5).all())
            pool.blocks[4].fill_(6)
            other.go_on()
            other.ready()
            assert os.path.exists(str(pool.path))
        assert not os.path.exists(str(pool.path))


def test_a_creator_that_is_killed_takes_nothing_from_the_others(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """Who is attached keeps the bytes, others can attach; when the last has closed, the name can be created again."""
    with Process(f"pool = HostPool(10, {BLOCK}, name={name!r})", "pool.blocks.fill_(8)", "PAUSE") as creator:
        creator.ready()
        pool = HostPool.attach(name)
        creator.kill()
    assert bool((pool.blocks == 8).all())
    with HostPool.attach(name) as second:
        second.blocks[0].fill_(1)
        assert bool((pool.blocks[0] == 1).all())
    with pytest.raises(Refused, match=rf"{name} exists \(made by process \d+\) and is in use.*HostPool.attach"):
        HostPool(10, BLOCK, name=name)
    pool.close()
    with pytest.raises(Refused, match=r"was left by process \d+, which ended without closing it.*create it again"):
        HostPool.attach(name)
    with caplog.at_level(logging.WARNING), HostPool(4, 16, name=name) as again:
        assert "removed the host pool" in caplog.text
        assert (again.num_blocks, int(again.blocks.sum())) == (4, 0)


def test_a_process_that_ends_without_closing_removes_its_name(name: str) -> None:
    """The interpreter's exit closes what the program forgot."""
    with Process(f"pool = HostPool(10, {BLOCK}, name={name!r}, background=True)", "PAUSE") as creator:
        creator.ready()
        assert os.path.exists(shmdir.path_of(name))
        creator.go_on()
        creator._process.wait(60)
        assert creator._process.returncode == 0
    assert not os.path.exists(shmdir.path_of(name))


def test_of_creators_that_race_one_wins(name: str) -> None:
    """All others are refused, and its file is the one that the name leads to; also over a file that a crash left."""
    for round_number in range(20):
        if round_number % 2:  # what a crash leaves: a file, and no lock
            left = sharedfile.SharedFile.create(name, 1, 16)
            left._finalizer.detach()
            os.close(left.fd)
        start, results = threading.Barrier(6), []

        def create(start: threading.Barrier = start, results: list[object] = results) -> None:
            start.wait()
            try:
                results.append(HostPool(3, 16, name=name))
            except Refused as error:
                results.append(str(error))

        threads = [threading.Thread(target=create) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        pools = [x for x in results if isinstance(x, HostPool)]
        assert len(pools) == 1
        with HostPool.attach(name) as attached:
            attached.blocks[2].fill_(4)
            assert bool((pools[0].blocks[2] == 4).all())
        pools[0].close()


def test_closing_does_not_remove_a_newer_pool_of_the_name(name: str) -> None:
    """A creator that had removed its own name early leaves the next one's alone."""
    first = HostPool(2, 16, name=name)
    first.unlink()
    with HostPool(3, 16, name=name):
        first.close()
        first.unlink()
        with HostPool.attach(name) as attached:
            assert attached.num_blocks == 3


def test_after_unlinking_nothing_can_be_left_behind(name: str) -> None:
    """Who is attached goes on; nobody else can attach."""
    with HostPool(2, 16, name=name) as pool, HostPool.attach(name) as attached:
        attached.unlink()
        pool.blocks[1].fill_(2)
        assert bool((attached.blocks[1] == 2).all())
        with pytest.raises(Refused, match=r"there is no host pool /dev/shm/kvmove\."):
            HostPool.attach(name)
    with HostPool(2, 16) as private, pytest.raises(Refused, match="not shared"):
        private.unlink()


def test_sizes_have_to_agree(name: str) -> None:
    """A process that expects other blocks is refused, with both sizes in the message."""
    with HostPool(10, 4096, name=name):
        with pytest.raises(Refused, match=r"10 blocks of 4096 bytes, and 10 of 8192 are expected"):
            HostPool.attach(name, block_bytes=8192)
        with pytest.raises(Refused, match=r"and 11 of 4096 are expected"):
            HostPool.attach(name, num_blocks=11)


@pytest.mark.parametrize("bad", ["", "a/b", "..", "-x", "x" * 201, "a b"])
def test_names_that_are_no_file_names_are_refused(bad: str) -> None:
    """A name is one file of one directory."""
    for use in (lambda: HostPool(1, 16, name=bad), lambda: HostPool.attach(bad)):
        with pytest.raises(RecordError, match="host pool name"):
            use()


def test_what_is_no_pool_is_left_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither attaching nor creating touches a file that kvmove did not make, or an attached one of another format."""
    path = Path(shmdir.path_of(name))
    path.write_bytes(b"something else" * 1000)
    for use in (lambda: HostPool(1, 16, name=name), lambda: HostPool.attach(name)):
        with pytest.raises(Refused, match="is not a host pool, or was cut short"):
            use()
    assert path.read_bytes() == b"something else" * 1000
    path.unlink()
    path.symlink_to("/etc/passwd")
    with pytest.raises(Refused, match="cannot be opened"):
        HostPool(1, 16, name=name)
    path.unlink()
    with HostPool(1, 16, name=name):
        os.truncate(path, os.path.getsize(path) - 4096)
        with pytest.raises(Refused, match="cut short"):
            HostPool.attach(name)
    with HostPool(1, 16, name=name), monkeypatch.context() as patch:
        patch.setattr(sharedfile, "_VERSION", 2)
        with pytest.raises(Refused, match=r"format 1, this one reads 2"):
            HostPool.attach(name)
    path.touch()  # a creator that was killed before it wrote the header
    HostPool(1, 16, name=name).close()


def test_a_pool_is_attached_to_once_it_is_announced(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the creator pins, others wait; then they get the whole pool."""
    driver = FakeDriver(monkeypatch.setattr, allowed=0)
    made: list[HostPool] = []
    creating = threading.Thread(target=lambda: made.append(HostPool(100, BLOCK, device="cuda", name=name)))
    creating.start()
    with pytest.raises(Refused, match=r"is still being made by process \d+|there is no host pool"):
        HostPool.attach(name)
    with pytest.raises(Refused, match=rf"still being made by process {os.getpid()}; give attach a longer timeout_s"):
        HostPool.attach(name, timeout_s=0.3)
    driver.allow(5)
    with HostPool.attach(name, timeout_s=10) as attached:
        creating.join()
        made[0].blocks[99].fill_(3)
        assert bool((attached.blocks[99] == 3).all())
    made[0].close()


def test_each_process_pins_for_itself(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Creator and attached pool have registrations of their own, and release only those."""
    driver = FakeDriver(monkeypatch.setattr)
    with HostPool(100, BLOCK, device="cuda", name=name) as pool:
        with HostPool.attach(name, device="cuda", background=True) as attached:
            assert attached.wait_ready(10)
            assert sum(driver.pinned.values()) == 2 * pool.num_bytes
            assert "kernel" in attached.facts().touching
        assert sum(driver.pinned.values()) == pool.num_bytes
    assert not driver.pinned


@pytest.mark.parametrize("fails", range(5))
def test_pinning_that_fails_removes_the_file(name: str, monkeypatch: pytest.MonkeyPatch, fails: int) -> None:
    """The message tells the directory's room too; the name is free at once."""
    driver = FakeDriver(monkeypatch.setattr, fails=fails)
    with pytest.raises(
        PinningError, match=r"out of memory .*after \d+ bytes; /dev/shm has \d+ bytes.*locked-memory limit"
    ):
        HostPool(100, BLOCK, device="cuda", name=name)
    assert not driver.pinned
    assert not os.path.exists(shmdir.path_of(name))
    with HostPool(100, BLOCK, device="cuda", name=name) as pool:
        # One process that cannot pin does not take the pool from the others.
        driver._fails = driver.calls + fails
        with pytest.raises(PinningError):
            HostPool.attach(name, device="cuda")
        assert sum(driver.pinned.values()) == pool.num_bytes
        assert os.path.exists(str(pool.path))


def test_the_file_is_the_blocks_and_one_page(name: str) -> None:
    """Blocks rounded up to OS pages, one page of header behind them, all of it really there."""
    with HostPool(100, 4112, name=name) as pool:
        about = os.stat(str(pool.path))
        pages = -(-100 * 4112 // 4096) * 4096
        assert about.st_size == pages + 4096
        assert about.st_blocks * 512 == pages + 4096
        assert about.st_mode & 0o777 == 0o600
        facts = pool.facts()
        assert (facts.mapped_bytes, facts.header_bytes, facts.path) == (pages, 4096, pool.path)


def test_a_pool_beyond_the_free_space_is_refused_before_it_is_touched(name: str) -> None:
    """No signal, no file, and the message says what is free and how to get more."""
    with pytest.raises(PinningError, match=r"/dev/shm has \d+ bytes free; enlarge it.*--shm-size") as failure:
        HostPool(1 << 20, 1 << 30, name=name)
    assert failure.value.asked_bytes == (1 << 50) + 4096


@pytest.fixture
def own_shm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A directory of shared memory of its own, mounted with the parameter's options, which claims to have much room."""
    mount = ["mount", "-t", "tmpfs", "-o", request.param, "kvmove-test", str(tmp_path)]
    try:
        mounted = subprocess.run(mount, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        mounted = False
    if not mounted:
        pytest.skip("file systems cannot be mounted here")
    monkeypatch.setattr(shmdir, "SHM_DIR", str(tmp_path))
    monkeypatch.setattr(shmdir, "free_bytes", lambda: 1 << 40)
    yield tmp_path
    monkeypatch.undo()
    subprocess.run(["umount", "-l", str(tmp_path)], check=True)


@pytest.mark.parametrize("own_shm", ["size=64m,huge=advise"], indirect=True)
def test_huge_pages_are_used_where_the_mount_allows_them(own_shm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All whole 2 MiB can be huge, and the file is still no larger than its blocks and one page."""
    if mapping.why_no_huge_pages(from_file=True) is not None:
        pytest.skip("this system has no huge pages for files")
    with HostPool(401, BLOCK, name="huge") as pool:
        facts = pool.facts()
        assert facts.huge_pages == "asked"
        assert facts.huge_bytes is not None  # how many, depends on the memory's fragmentation
        assert facts.huge_bytes in range(0, pool.num_bytes, mapping.HUGE_BYTES)
        assert os.stat(str(pool.path)).st_blocks * 512 == facts.mapped_bytes + 4096


@pytest.mark.parametrize("own_shm", ["size=1m"], indirect=True)
@pytest.mark.parametrize("by_kernel", [True, False])
def test_space_that_another_process_took_meanwhile_is_an_error(
    own_shm: Path, monkeypatch: pytest.MonkeyPatch, by_kernel: bool
) -> None:
    """What runs out after the check is an error too, and no signal that ends the process."""
    if not by_kernel:
        for module in (touching, sharedfile):
            monkeypatch.setattr(module, "kernel_populates", lambda: False)
    with pytest.raises(PinningError, match="no memory for it" if by_kernel else "cannot make the host pool"):
        HostPool(100, BLOCK, name="full")
    assert not list(own_shm.iterdir())
    with HostPool(10, BLOCK, name="fits") as pool:
        pool.blocks.fill_(1)


@pytest.mark.gpu
def test_two_processes_pin_a_real_pool(name: str) -> None:
    """Each registers the same memory with its own context; the device of each reads what the other wrote."""
    block = 1 << 20
    cache = torch.zeros(16, block, dtype=torch.uint8, device="cuda")
    layout = CacheLayout.from_tensors([cache], block_dim=0)
    with (
        Process(
            f"pool = HostPool.attach({name!r}, device='cuda', timeout_s=60)",
            "assert pool.blocks.is_pinned()",
            "assert bool((pool.blocks[299].cuda() == 7).all())",
            "pool.blocks[5].copy_(pool.blocks[299].cuda() + 1)",
            "print(pool.facts(), file=sys.stderr)",
            "PAUSE",
            "pool.close()",
        ) as other,
        HostPool.for_layout(layout, 300, name=name) as pool,
    ):
        pool.blocks[299].fill_(7)
        for path in ("direct", "staged", "engine"):
            with Mover(layout, pool, path=path) as mover:
                check_load(mover, [299, 255, 256, 0], [1, 15, 3, 8])
        print(pool.facts())
        other.ready()
        with Mover(layout, pool, path="direct") as mover:
            check_load(mover, [5, 4], [0, 15])
        assert bool((cache[0] == 8).all())
        other.go_on()
