"""Whether a path copies right, byte by byte, before anything of it is measured."""

from __future__ import annotations

from collections.abc import Callable

import torch

from kvmove.bench.workbench import POISON, Index, Workbench
from kvmove.errors import KVMoveError
from kvmove.move import load_batch, store_batch
from kvmove.records import Lane, Load, Store


class WrongBytes(KVMoveError):
    """A copy left something else in memory than it should have."""


Copy = Callable[[Index, Index], None]  # of these host blocks and slots, pair by pair; returns when it is done


def check_path(bench: Workbench, path: str, count: int) -> None:
    """Load and store `count` random blocks by a path, and compare every byte on both sides.

    Raises:
        WrongBytes: one differs. `MoveFailed` and what the device raises pass through.
    """

    def load(blocks: Index, slots: Index) -> None:
        job = bench.new_job()
        load_batch(bench.mover, [Load(job, blocks, slots, Lane.BULK)], path=path)
        bench.await_end(job)

    def store(blocks: Index, slots: Index) -> None:
        job = bench.new_job()
        store_batch(bench.mover, [Store(job, slots, blocks)], path=path)
        bench.await_end(job)

    check_load(bench, path, count, load)
    check_store(bench, path, count, store)


def check_load(bench: Workbench, name: str, count: int, copy: Copy) -> None:
    """Poison every slot, load by `copy`, and compare: loaded slots with the pool, the others with the poison."""
    blocks, slots = bench.indices(count)
    views = bench.layout.page_views()
    for view in views:
        view.fill_(POISON)
    bench.device.synchronize()
    copy(blocks, slots)
    at, origin = _on_device(bench, slots), _on_device(bench, blocks)
    others = _complement(bench, at, bench.layout.num_slots)
    for number, (page, view) in enumerate(zip(bench.layout.pages, views, strict=True)):
        wanted = bench.image[:, page.host_offset_bytes : page.host_offset_bytes + page.num_bytes]
        _require(torch.equal(view[at], wanted[origin]), name, f"page {number} of a loaded block differs")
        _require(bool((view[others] == POISON).all()), name, f"page {number} of a slot that was not loaded changed")


def check_store(bench: Workbench, name: str, count: int, copy: Copy) -> None:
    """Fill every slot with new bytes, store by `copy`, and compare: stored blocks with the slots, others as before."""
    blocks, slots = bench.indices(count)
    views = bench.layout.page_views()
    for view in views:
        view.random_(0, 256)
    bench.device.synchronize()
    copy(blocks, slots)
    now = bench.pool_contents()
    at, origin = _on_device(bench, blocks), _on_device(bench, slots)
    others = _complement(bench, at, bench.pool.num_blocks)
    for number, (page, view) in enumerate(zip(bench.layout.pages, views, strict=True)):
        stored = now[:, page.host_offset_bytes : page.host_offset_bytes + page.num_bytes]
        _require(torch.equal(stored[at], view[origin]), name, f"page {number} of a stored block differs")
    _require(torch.equal(now[others], bench.image[others]), name, "a host block that was not stored changed")
    bench.image = now


def _on_device(bench: Workbench, indices: Index) -> torch.Tensor:
    return torch.from_numpy(indices).to(bench.device.torch_device)


def _complement(bench: Workbench, indices: torch.Tensor, size: int) -> torch.Tensor:
    rest = torch.ones(size, dtype=torch.bool, device=bench.device.torch_device)
    rest[indices] = False
    return rest.nonzero().view(-1)


def _require(right: bool, name: str, what: str) -> None:
    if not right:
        raise WrongBytes(f"{name}: {what}")
