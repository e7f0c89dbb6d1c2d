"""Other techniques for the same loads, written for this comparison from what they are, beside kvmove's.

They stand for techniques, not for anybody's program, which has costs and merits of its own:

    a descriptor a page   the copy engine gets one descriptor for every page of every block, none merged
    listed, 12 programs   addresses of every page are computed on the CPU and uploaded; a kernel of 12 programs walks
                          the list and copies 8 KiB at a time
    a launch a layer      block numbers are uploaded once; each page of the blocks is a launch of 16 programs
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from kvmove.bench import samples
from kvmove.bench.checking import WrongBytes, check_load
from kvmove.bench.plan import Shape
from kvmove.bench.rows import Label, Row, size
from kvmove.bench.samples import Measure
from kvmove.bench.session import Session
from kvmove.bench.workbench import Index, Workbench, device_ns
from kvmove.move.runs import copy_runs
from kvmove.records import Lane

LISTED_PROGRAMS = 12
LAYER_PROGRAMS = 16
_LARGE_BYTES = 32 << 20  # from here on a load is bulk


class Technique(Protocol):
    """One way to load blocks."""

    name: str

    def load(self, blocks: Index, slots: Index, stream: torch.cuda.Stream | None) -> None:
        """Queue everything that the load takes."""


class _Pages:
    """Addresses of every page of chosen blocks, and numbers that kernels on the device read."""

    def __init__(self, bench: Workbench, most_blocks: int) -> None:
        pages = bench.layout.pages
        self._pool = bench.pool
        self._base = np.array([p.address for p in pages], dtype=np.int64)
        self._stride = np.array([p.slot_stride_bytes for p in pages], dtype=np.int64)
        self._offset = np.array([p.host_offset_bytes for p in pages], dtype=np.int64)
        self._bytes = np.array([p.num_bytes for p in pages], dtype=np.int64)
        length = 3 * most_blocks * len(pages)
        where = bench.device.torch_device
        self._staged = torch.empty(length, dtype=torch.int64, pin_memory=where.type == "cuda")
        self._uploaded = torch.empty(length, dtype=torch.int64, device=where)

    def listed(
        self, blocks: Index, slots: Index, host_address: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Host addresses, slot addresses and bytes of every page of every block; the pool begins at `host_address`."""
        host = host_address + blocks[:, None] * self._pool.block_bytes + self._offset
        cache = self._base + slots[:, None] * self._stride
        return host.reshape(-1), cache.reshape(-1), np.tile(self._bytes, len(blocks))

    def upload(self, arrays: tuple[Index, ...]) -> list[int]:
        """Copy the arrays to the device in one go, on the current stream. Returns where each is."""
        length = sum(len(a) for a in arrays)
        np.concatenate(arrays, out=self._staged.numpy()[:length])
        self._uploaded[:length].copy_(self._staged[:length], non_blocking=True)
        starts = np.cumsum([0, *(len(a) for a in arrays[:-1])])
        return [self._uploaded.data_ptr() + 8 * int(s) for s in starts]


class DescriptorAPage:
    """The copy engine, one descriptor a page."""

    name = "a descriptor a page"

    def __init__(self, bench: Workbench, most_blocks: int) -> None:
        self._address, self._pages = bench.pool.address, _Pages(bench, most_blocks)

    def load(self, blocks: Index, slots: Index, stream: torch.cuda.Stream | None) -> None:
        host, cache, sizes = self._pages.listed(blocks, slots, self._address)
        copy_runs(cache, host, sizes, stream)


class Listed:
    """A kernel of few programs over an uploaded list of addresses."""

    name = "listed, 12 programs"

    def __init__(self, bench: Workbench, most_blocks: int) -> None:
        from kvmove.bench import peer_kernels

        self._address, self._pages = bench.pool.device_address, _Pages(bench, most_blocks)
        self._launch = peer_kernels.Launcher(peer_kernels.copy_listed)

    def load(self, blocks: Index, slots: Index, stream: torch.cuda.Stream | None) -> None:
        host, cache, sizes = self._pages.listed(blocks, slots, self._address)
        at = self._pages.upload((host, cache, sizes // 8))
        self._launch(LISTED_PROGRAMS, _handle(stream), *at, len(sizes))


class LaunchALayer:
    """A launch for each page of the blocks."""

    name = "a launch a layer"

    def __init__(self, bench: Workbench, most_blocks: int) -> None:
        from kvmove.bench import peer_kernels

        self._pool, self._pages, self._layout = bench.pool, _Pages(bench, most_blocks), bench.layout
        self._launch = peer_kernels.Launcher(peer_kernels.copy_layer)

    def load(self, blocks: Index, slots: Index, stream: torch.cuda.Stream | None) -> None:
        blocks_at, slots_at = self._pages.upload((blocks, slots))
        handle = _handle(stream)
        for page in self._layout.pages:
            self._launch(
                LAYER_PROGRAMS,
                handle,
                self._pool.device_address + page.host_offset_bytes,
                self._pool.block_bytes,
                page.address,
                page.slot_stride_bytes,
                blocks_at,
                slots_at,
                len(blocks),
                page.num_bytes // 8,
            )


TECHNIQUES = (DescriptorAPage, Listed, LaunchALayer)


def measure(session: Session) -> Iterator[Row]:
    """GB/s of contiguous DMA, of kvmove's own choice and of each technique, by device time."""
    for shape, num_bytes in session.plan.peers:
        session.tell(f"peers: {size(num_bytes)} of {size(shape.page_bytes)} pages")
        yield from _measure_load(session, shape, max(1, num_bytes // shape.block_bytes), num_bytes)


def _measure_load(session: Session, shape: Shape, count: int, num_bytes: int) -> Iterator[Row]:
    label = f"{size(num_bytes)} of {size(shape.page_bytes)} pages"
    moved = count * shape.block_bytes
    lane = Lane.BULK if moved >= _LARGE_BYTES else Lane.EXPEDITED
    ceiling = session.ceiling(moved)
    with Workbench(session.device, shape, count + max(1, count // 4)) as bench:
        measures: dict[str, Measure] = {"dma": partial(ceiling.load_ns, moved)}
        usual = bench.load(count, lane).path
        if session.right_paths(bench, [usual], count, f"peers, {label}"):
            measures["kvmove"] = lambda: device_ns(bench.load(count, lane))
        for technique in (make(bench, count) for make in TECHNIQUES):
            try:
                check_load(bench, technique.name, count, partial(_load_and_wait, bench, technique))
            except WrongBytes as e:
                session.failures.append(f"peers, {label}: not measured: {e}")
            else:
                measures[technique.name] = partial(_load_ns, bench, technique, count)
        taken = samples.in_turn(session.plan.small_pairs // 4, measures)
    for name, times in taken.items():
        shown = {"dma": "contiguous DMA", "kvmove": f"kvmove ({usual})"}.get(name, name)
        labels: dict[str, Label] = {
            "kind": "peer", "path": name, "bytes": num_bytes, "page_bytes": shape.page_bytes,
        }  # fmt: skip
        yield Row.of(f"load, {label}, {shown}", [moved / t for t in times], "GB/s", labels=labels)


def _load_and_wait(bench: Workbench, technique: Technique, blocks: Index, slots: Index) -> None:
    bench.device.start("copy", partial(technique.load, blocks, slots)).wait()


def _load_ns(bench: Workbench, technique: Technique, count: int) -> float:
    """Device time of one load of random blocks, with what it takes to queue it."""
    blocks, slots = bench.indices(count)
    bench.device.synchronize()
    return bench.device.start("copy", partial(technique.load, blocks, slots)).wait()


def _handle(stream: torch.cuda.Stream | None) -> int:
    return 0 if stream is None else stream.cuda_stream
