"""vLLM's way to say which blocks a transfer moves, as `Part`s. Runs without vLLM."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from kvmove.errors import Refused
from kvmove.integrations.vllm.caches import DescribedCaches
from kvmove.records import Part

# vLLM's block of nobody: it stands where a block table has no block, nothing reads it, and it may stand there often.
NULL_BLOCK = 0


class GpuBlocks(Protocol):
    """GPU blocks of a transfer: group by group one after the other, a run of each request's logical blocks a group.

    `block_indices[g]` is the logical number of group g's first block, which says where in a chunk it is.
    """

    @property
    def block_ids(self) -> NDArray[np.int32]: ...

    @property
    def group_sizes(self) -> Sequence[int]: ...

    @property
    def block_indices(self) -> Sequence[int]: ...


def parts_of(
    who: str, gpu: GpuBlocks, chunk_ids: NDArray[np.int32], caches: DescribedCaches, *, written: bool
) -> list[Part]:
    """What a transfer moves, a part or more a group; none where there is nothing to move.

    Args:
        written: whether the GPU blocks are written; where the block of nobody then stands more than once, it is left
            out, because a `Load` writes a slot once.
        who: the transfer, for messages.
        chunk_ids: host chunks, group by group; the first and the last of a group may be used in part.

    Raises:
        Refused: the numbers of groups, blocks and chunks do not fit together.
        RecordError: a number is negative.
    """
    counts = {len(gpu.group_sizes), len(gpu.block_indices), len(caches.groups)}
    if len(counts) > 1:
        raise Refused(
            f"{who}: {len(gpu.group_sizes)} group sizes and {len(gpu.block_indices)} block indices for a cache with "
            f"{len(caches.groups)} groups"
        )
    per_chunk = caches.blocks_per_chunk
    parts: list[Part] = []
    slot = chunk = 0
    for group, size, index in zip(caches.groups, gpu.group_sizes, gpu.block_indices, strict=True):
        if not size:
            continue
        first = index % per_chunk
        last_chunk = chunk - (-(first + size) // per_chunk)
        slots, chunks = gpu.block_ids[slot : slot + size], chunk_ids[chunk:last_chunk]
        if len(slots) < size or last_chunk > len(chunk_ids):
            break
        if group is not None:
            parts += _parts(group, chunks, slots, first, per_chunk) if written else [Part(group, chunks, slots, first)]
        slot, chunk = slot + size, last_chunk
    if slot != len(gpu.block_ids) or chunk != len(chunk_ids):
        raise Refused(
            f"{who}: {len(gpu.block_ids)} blocks in groups of {list(gpu.group_sizes)}, with {per_chunk} to a chunk, "
            f"and {len(chunk_ids)} chunks do not fit together"
        )
    return parts


def _parts(group: int, chunks: NDArray[np.int32], slots: NDArray[np.int32], first: int, per_chunk: int) -> list[Part]:
    """One part; or without the block of nobody, where it stands there more than once, one for each run between."""
    nobody = slots == NULL_BLOCK
    if np.count_nonzero(nobody) < 2:
        return [Part(group, chunks, slots, first)]
    # Runs of real blocks begin where `nobody` falls and end where it rises.
    borders = np.flatnonzero(np.diff(np.concatenate(([True], nobody, [True])).astype(np.int8)))
    parts = []
    for begin, end in zip(borders[::2].tolist(), borders[1::2].tolist(), strict=True):
        at = first + begin
        own = chunks[at // per_chunk : -(-(first + end) // per_chunk)]
        parts.append(Part(group, own, slots[begin:end], at % per_chunk))
    return parts
