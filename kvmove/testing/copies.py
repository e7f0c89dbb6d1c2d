"""Check that a copy is exact: every byte that was named arrived, and no other byte changed.

What a copy has to do is spelled out here a second time, block by block and page by page, from the definition of
`kvmove.Part`. Compared is all memory of the cache and the pool: gaps and padding too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from kvmove.errors import InternalError
from kvmove.move import CacheLayout, Group, HostPool, Mover, load_batch, store_batch
from kvmove.records import Lane, Load, Part, Store

POISON = 0xA5  # every destination holds it before a copy, so that a byte which was not written shows

Bytes = NDArray[np.uint8]


def randomize(layout: CacheLayout, pool: HostPool, seed: int) -> None:
    """Fill every page and every host block with random bytes."""
    generator = torch.Generator().manual_seed(seed)
    pool.blocks.copy_(torch.randint(0, 256, pool.blocks.shape, dtype=torch.uint8, generator=generator))
    for group in layout.groups:
        for page in group.page_views():
            page.copy_(torch.randint(0, 256, page.shape, dtype=torch.uint8, generator=generator))


def contents(layout: CacheLayout, group: int = 0) -> Bytes:
    """The bytes of all slots of a group as host blocks would hold them: uint8 (slots, block_bytes)."""
    return np.concatenate([page.cpu().numpy() for page in layout.groups[group].page_views()], axis=1)


def check_load(
    mover: Mover, blocks: Sequence[int], slots: Sequence[int], *, job: int = 0, lane: Lane = Lane.EXPEDITED
) -> None:
    """Check the load of `blocks` to `slots` of a cache of one group. Raises as `check_loads`."""
    check_loads(mover, [Load(job, blocks, slots, lane)])


def check_store(mover: Mover, slots: Sequence[int], blocks: Sequence[int], *, job: int = 0) -> None:
    """Check the store of `slots` to `blocks` of a cache of one group. Raises as `check_stores`."""
    check_stores(mover, [Store(job, slots, blocks)])


def check_loads(mover: Mover, loads: Sequence[Load], *, path: str | None = None) -> None:
    """Load into poisoned slots, in one call, and compare the whole cache and pool with what they have to be.

    Raises:
        InternalError: a byte differs, or a job did not end well; the message names tensor and byte, or job.
    """
    layout, pool = mover.layout, mover.pool
    for x in loads:
        for part in x.parts:
            for page in layout.groups[part.group].page_views():
                page[torch.as_tensor(part.slots.copy(), device=layout.device)] = POISON
    cache, kept = _memory(layout), pool.blocks.numpy().copy()
    for x in loads:
        for part in x.parts:
            group = layout.groups[part.group]
            for slot, held in _blocks(group, kept, part):
                for there, p in zip(_pages(layout, cache, group, slot), group.pages, strict=True):
                    there[:] = held[p.host_offset_bytes : p.host_offset_bytes + p.num_bytes]
    ticket = load_batch(mover, loads, path=path, strict=True)
    ticket.wait()
    _end(mover, loads)
    _compare_all(mover, cache, kept)


def check_stores(mover: Mover, stores: Sequence[Store], *, path: str | None = None) -> None:
    """Store to poisoned places of host blocks, in one call, and compare the whole cache and pool.

    Raises:
        InternalError: a byte differs, or a job did not end well; the message names host block and byte, or job.
    """
    layout, pool = mover.layout, mover.pool
    kept = pool.blocks.numpy().copy()
    for x in stores:
        for part in x.parts:
            for _, held in _blocks(layout.groups[part.group], kept, part):
                held[:] = POISON
    pool.blocks.copy_(torch.from_numpy(kept))
    cache = _memory(layout)
    for x in stores:
        for part in x.parts:
            group = layout.groups[part.group]
            for slot, held in _blocks(group, kept, part):
                held[:] = np.concatenate(list(_pages(layout, cache, group, slot)))
    ticket = store_batch(mover, stores, path=path)
    ticket.wait()
    ticket.check()
    _end(mover, stores)
    _compare_all(mover, cache, kept)


def _blocks(group: Group, kept: Bytes, part: Part) -> Iterator[tuple[int, Bytes]]:
    """Each slot of a part with the bytes of its block in a copy of the pool, uint8 (block_bytes,)."""
    for i, slot in enumerate(part.slots.tolist()):
        chunk, place = divmod(part.first + i, group.blocks_per_chunk)
        begin = place * group.sub_bytes
        yield slot, kept[part.blocks[chunk], begin : begin + group.block_bytes]


def _memory(layout: CacheLayout) -> dict[int, Bytes]:
    """A copy of all memory under the tensors, by the address where it begins."""
    storages = {s.data_ptr(): s for s in (t.untyped_storage() for t in layout.tensors)}
    return {
        address: torch.empty(0, dtype=torch.uint8, device=layout.device).set_(s).cpu().numpy().copy()
        for address, s in storages.items()
    }


def _pages(layout: CacheLayout, memory: dict[int, Bytes], group: Group, slot: int) -> Iterator[Bytes]:
    """The pages of a slot in a copy of the cache's memory."""
    for page in group.pages:
        storage = layout.tensors[page.tensor].untyped_storage().data_ptr()
        begin = page.address + slot * page.slot_stride_bytes - storage
        yield memory[storage][begin : begin + page.num_bytes]


def _end(mover: Mover, jobs: Iterable[Load | Store]) -> None:
    """Wait for the results and compare their counts."""
    left = {x.job: x for x in jobs}
    while left:
        for result in mover.finished():
            parts = left.pop(result.job).parts
            blocks = sum(len(p.slots) for p in parts)
            num_bytes = sum(len(p.slots) * mover.layout.groups[p.group].block_bytes for p in parts)
            if result.error is not None or (result.blocks, result.bytes) != (blocks, num_bytes):
                raise InternalError(f"job {result.job} of {blocks} blocks, {num_bytes} bytes ended as {result}")


def _compare_all(mover: Mover, cache: dict[int, Bytes], kept: Bytes) -> None:
    layout = mover.layout
    for address, got in _memory(layout).items():
        tensor = next(i for i, t in enumerate(layout.tensors) if t.untyped_storage().data_ptr() == address)
        _compare(got[None], cache[address][None], f"memory of tensor {tensor}, row")
    _compare(mover.pool.blocks.numpy(), kept, "host block")


def _compare(got: Bytes, expected: Bytes, what: str) -> None:
    if np.array_equal(got, expected):
        return
    wrong = np.argwhere(got != expected)
    row, byte = (int(v) for v in wrong[0])
    raise InternalError(
        f"{what} {row}, byte {byte}: {got[row, byte]:#04x} and not {expected[row, byte]:#04x}; "
        f"{len(wrong)} bytes differ"
    )
