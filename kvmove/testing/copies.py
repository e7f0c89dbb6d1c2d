"""Check that a copy is exact: every byte that was named arrived, and no other byte changed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from kvmove.errors import InternalError
from kvmove.move import CacheLayout, HostPool, Mover, load_batch, store_batch
from kvmove.records import Lane, Load, Store

POISON = 0xA5  # every destination holds it before a copy, so that a byte which was not written shows


def randomize(layout: CacheLayout, pool: HostPool, seed: int) -> None:
    """Fill every page and every host block with random bytes."""
    generator = torch.Generator().manual_seed(seed)
    pool.blocks.copy_(torch.randint(0, 256, pool.blocks.shape, dtype=torch.uint8, generator=generator))
    for page in layout.page_views():
        page.copy_(torch.randint(0, 256, page.shape, dtype=torch.uint8, generator=generator))


def contents(layout: CacheLayout) -> NDArray[np.uint8]:
    """The bytes of all slots as host blocks would hold them: uint8 (slots, block_bytes)."""
    return np.concatenate([page.cpu().numpy() for page in layout.page_views()], axis=1)


def check_load(
    mover: Mover, blocks: Sequence[int], slots: Sequence[int], *, job: int = 0, lane: Lane = Lane.EXPEDITED
) -> None:
    """Load `blocks` into poisoned `slots` and compare the whole cache with what it has to be.

    Raises:
        InternalError: a byte differs; the message names slot and byte.
    """
    layout, pool = mover.layout, mover.pool
    for page in layout.page_views():
        page[torch.as_tensor(slots, device=layout.device)] = POISON
    expected = contents(layout)
    expected[list(slots)] = pool.blocks[list(blocks), : layout.block_bytes].numpy()
    ticket = load_batch(mover, [Load(job, blocks, slots, lane)], strict=True)
    ticket.wait()
    _end(mover, job)
    _compare(contents(layout), expected, "slot")


def check_store(mover: Mover, slots: Sequence[int], blocks: Sequence[int], *, job: int = 0) -> None:
    """Store `slots` into poisoned host `blocks` and compare the whole pool with what it has to be.

    Raises:
        InternalError: a byte differs; the message names host block and byte.
    """
    layout, pool = mover.layout, mover.pool
    pool.blocks[list(blocks)] = POISON
    expected = pool.blocks.numpy().copy()
    expected[list(blocks), : layout.block_bytes] = contents(layout)[list(slots)]
    ticket = store_batch(mover, [Store(job, slots, blocks)])
    ticket.wait()
    ticket.check()
    _end(mover, job)
    _compare(pool.blocks.numpy(), expected, "host block")


def _end(mover: Mover, job: int) -> None:
    while not (results := mover.finished()):
        pass
    (result,) = results
    if result.job != job or result.error is not None:
        raise InternalError(f"job {job} ended as {result}")


def _compare(got: NDArray[np.uint8], expected: NDArray[np.uint8], what: str) -> None:
    if np.array_equal(got, expected):
        return
    wrong = np.argwhere(got != expected)
    place, byte = (int(v) for v in wrong[0])
    raise InternalError(
        f"{what} {place}, byte {byte}: {got[place, byte]:#04x} and not {expected[place, byte]:#04x}; "
        f"{len(wrong)} bytes differ"
    )
