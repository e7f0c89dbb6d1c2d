"""The host memory of one vLLM worker: its own; or one copy for all, where every rank holds the same bytes."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from kvmove.errors import Refused
from kvmove.move import CacheLayout, HostPool

# The creator touches all of it before others may attach: some GB/s.
ATTACH_TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True)
class SharedBy:
    """Ranks of one node that share a pool.

    Attributes:
        name: the same on all ranks, and of no other engine on the node.
        rank: rank 0 creates the pool.
        barrier: returns once all ranks have called it.
    """

    name: str
    rank: int
    barrier: Callable[[], None]


def make_pool(layout: CacheLayout, num_chunks: int, shared_by: SharedBy | None = None) -> HostPool:
    """A pool of `num_chunks` host blocks, each one of vLLM's chunks.

    Raises:
        Refused: not one chunk fits.
        PinningError: there is not enough memory, or it cannot be pinned; nothing is left behind.
    """
    if num_chunks < 1:
        raise Refused(
            f"cpu_bytes_to_use has no room for one chunk of {layout.host_block_bytes} bytes; "
            "raise it in kv_connector_extra_config"
        )
    if shared_by is None:
        return HostPool.for_layout(layout, num_chunks)
    name = re.sub(r"[^A-Za-z0-9._-]", "_", f"vllm.{shared_by.name}")
    try:
        if shared_by.rank == 0:
            pool = HostPool.for_layout(layout, num_chunks, name=name)
        else:
            pool = HostPool.attach(
                name,
                device=layout.device,
                num_blocks=num_chunks,
                block_bytes=layout.host_block_bytes,
                timeout_s=ATTACH_TIMEOUT_S,
            )
    finally:
        shared_by.barrier()  # also after a failure: the others must not wait for a rank that has given up
    if shared_by.rank == 0:
        pool.unlink()  # from now on no crash can leave it behind
    return pool
