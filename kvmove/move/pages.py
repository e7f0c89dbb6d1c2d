"""Where pages are: found in a tensor's shape and strides, and checked for bytes that two of them share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from kvmove.errors import LayoutError

# Host blocks start on multiples of this, so that a block's first page can be moved in the widest words.
HOST_ALIGN_BYTES = 16


@dataclass(frozen=True, slots=True)
class Page:
    """One contiguous run of bytes of every block, in one tensor.

    Slot s is at [address + s * slot_stride_bytes, ... + num_bytes); in a host block the page is at
    [host_offset_bytes, host_offset_bytes + num_bytes).
    """

    tensor: int  # index in the list that `from_tensors` was given
    address: int  # of slot 0
    slot_stride_bytes: int
    num_bytes: int
    host_offset_bytes: int


def page_starts(tensor: torch.Tensor, block_dim: int, index: int) -> tuple[list[int], int]:
    """Byte offsets of slot 0's pages in the tensor, in the order of its dimensions, and the size of a page."""
    dims = [(tensor.stride(d), d, tensor.shape[d]) for d in range(tensor.dim()) if d != block_dim]
    if any(size == 0 for _, _, size in dims) or tensor.shape[block_dim] == 0:
        raise LayoutError(f"tensor {index} of shape {tuple(tensor.shape)} is empty")
    # From the innermost dimension outwards: a dimension belongs to the page while it continues the run.
    run, outer = 1, []
    for stride, dim, size in sorted(d for d in dims if d[2] > 1):
        if stride == run:
            run *= size
        else:
            outer.append(dim)
    if run == 1 and any(dim > block_dim for dim in outer):
        raise LayoutError(
            f"tensor {index} of shape {tuple(tensor.shape)} and strides {tensor.stride()} has no contiguous page: "
            f"no dimension after block_dim={block_dim} has stride 1; pass the tensor as the engine allocated it"
        )
    starts = np.zeros(1, dtype=np.int64)
    for dim in sorted(outer):
        starts = (starts[:, None] + np.arange(tensor.shape[dim]) * tensor.stride(dim)).reshape(-1)
    item = tensor.element_size()
    return [int(s) * item for s in starts], run * item


@dataclass(frozen=True, slots=True)
class _Extent:
    """All slots of a page, as one range of memory that other pages may interleave with."""

    begin: int
    end: int
    group: int
    index: int  # of the page in its group
    page: Page
    num_slots: int

    def __str__(self) -> str:
        return f"page {self.index} (tensor {self.page.tensor})"


def groups_that_share(pages: Sequence[Sequence[Page]], num_slots: Sequence[int]) -> set[tuple[int, int]]:
    """Pairs of groups that lie in the same memory, slot by slot: engines take their blocks from one free list.

    Args:
        pages: of each group. `num_slots`: of each group.

    Raises:
        LayoutError: pages of one group share a byte, so that a copy of one would change the other; or slots of
            different groups do that have not the same number.
    """
    extents = []
    for group, (own, count) in enumerate(zip(pages, num_slots, strict=True)):
        for i, p in enumerate(own):
            if count > 1 and p.slot_stride_bytes < p.num_bytes:
                raise LayoutError(
                    f"the slots of tensor {p.tensor} overlap: page {i} has {p.num_bytes} bytes "
                    f"and the next slot begins after {p.slot_stride_bytes}"
                )
            end = p.address + (count - 1) * p.slot_stride_bytes + p.num_bytes
            extents.append(_Extent(p.address, end, group, i, p, count))
    extents.sort(key=lambda e: (e.begin, e.end, e.group, e.index))
    shared: set[tuple[int, int]] = set()
    # Only pages whose extents meet can overlap. K and V of (slots, 2, ...) interleave without overlapping.
    open_extents: list[_Extent] = []
    for e in extents:
        open_extents = [o for o in open_extents if o.end > e.begin]
        for o in open_extents:
            if not _share_a_byte(o, e):
                continue
            a, b = sorted((o, e), key=lambda x: (x.group, x.index))
            if a.group == b.group:
                raise LayoutError(
                    f"{a} and {b} overlap in memory; pass each tensor once, and views that do not share bytes"
                )
            if not _slot_by_slot(o, e) or o.num_slots != e.num_slots:
                raise LayoutError(
                    f"{a} of group {a.group} and {b} of group {b.group} overlap in memory, and not slot by slot; "
                    "groups that share memory need the same slots, equally far apart"
                )
            shared.add((a.group, b.group))
        open_extents.append(e)
    return shared


def _slot_by_slot(first: _Extent, second: _Extent) -> bool:
    """Whether only slots of the same number can meet: both pages are inside windows that follow each other."""
    if first.num_slots == second.num_slots == 1:
        return True
    end = max(first.begin + first.page.num_bytes, second.begin + second.page.num_bytes)
    stride = first.page.slot_stride_bytes
    return stride == second.page.slot_stride_bytes and end - min(first.begin, second.begin) <= stride


def _share_a_byte(first: _Extent, second: _Extent) -> bool:
    """Whether any slot of `second`, which begins no earlier, meets any slot of `first`."""
    if _slot_by_slot(first, second):  # the usual case of interleaved pages needs no look at every slot
        return second.begin < first.begin + first.page.num_bytes
    starts = second.begin + np.arange(second.num_slots, dtype=np.int64) * second.page.slot_stride_bytes - first.begin
    # The slot of `first` that begins at or before each start, and the next one: no other can meet it.
    stride, num_bytes = max(first.page.slot_stride_bytes, 1), first.page.num_bytes
    before = np.clip(starts // stride, 0, first.num_slots - 1)
    after = np.clip(before + 1, 0, first.num_slots - 1)
    meets = (starts < before * stride + num_bytes) & (starts + second.page.num_bytes > before * stride)
    meets |= (starts < after * stride + num_bytes) & (starts + second.page.num_bytes > after * stride)
    return bool(meets.any())


def common_alignment(pages: Sequence[Page]) -> int:
    """The largest power of two, at most 16, that divides every address, stride, size and offset."""
    bits = HOST_ALIGN_BYTES
    for p in pages:
        bits |= p.address | p.slot_stride_bytes | p.num_bytes | p.host_offset_bytes
    return bits & -bits
