"""Where the pages of an engine's KV cache are: `CacheLayout` describes the engine's own tensors, without copying."""

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


@dataclass(frozen=True)
class CacheLayout:
    """The pages of a paged KV cache, in the order in which a host block holds them.

    Keeps the tensors alive. Attributes:
        pages: the pages of a block; a host block holds them back to back in this order.
        num_slots: blocks that the cache has room for.
        block_bytes: bytes of a block's pages together.
        host_block_bytes: `block_bytes` rounded up to a multiple of 16, the distance of two host blocks.
        align_bytes: the largest power of two, at most 16, that divides every address, stride, size and offset.
        device: where the tensors are.
    """

    tensors: tuple[torch.Tensor, ...]
    pages: tuple[Page, ...]
    num_slots: int
    block_bytes: int
    host_block_bytes: int
    align_bytes: int
    device: torch.device

    @property
    def num_pages(self) -> int:
        return len(self.pages)

    @classmethod
    def from_tensors(cls, tensors: Sequence[torch.Tensor], *, block_dim: int) -> CacheLayout:
        """Describe a cache of one or more tensors with one block table.

        Args:
            tensors: the engine's KV tensors, on one device, any dtype. Dimension `block_dim` counts slots and
                has the same size in each. Of the others, those that together are one run of memory are a page;
                the rest count pages. `(2, slots, tokens, heads, dim)` with `block_dim=1` has two pages a tensor
                (K and V), `(slots, 2, tokens, heads, dim)` with `block_dim=0` has one, and a cross-layer
                `(slots, layers, ...)` has one for all layers. Strides decide, so NHD and HND views both work.
            block_dim: the dimension that counts slots.

        Raises:
            LayoutError: the tensors are on several devices, differ in slots, have a page that is not
                contiguous, or have pages that overlap; the message names the tensor.
        """
        if not tensors:
            raise LayoutError("no tensors: a cache has at least one")
        devices = {t.device for t in tensors}
        if len(devices) > 1:
            raise LayoutError(f"the tensors are on {sorted(map(str, devices))}; a layout describes one device")
        for i, t in enumerate(tensors):
            if not 0 <= block_dim < t.dim():
                raise LayoutError(f"tensor {i} of shape {tuple(t.shape)} has no dimension block_dim={block_dim}")
        slots = [t.shape[block_dim] for t in tensors]
        for i, n in enumerate(slots):
            if n != slots[0]:
                raise LayoutError(f"tensor {i} has {n} slots and tensor 0 has {slots[0]}; they share a block table")

        pages: list[Page] = []
        offset = 0
        for i, t in enumerate(tensors):
            starts, num_bytes = _page_starts(t, block_dim, i)
            stride = t.stride(block_dim) * t.element_size()
            for start in starts:
                pages.append(Page(i, t.data_ptr() + start, stride, num_bytes, offset))
                offset += num_bytes
        _refuse_overlap(pages, slots[0])
        host_block_bytes = -(-offset // HOST_ALIGN_BYTES) * HOST_ALIGN_BYTES
        return cls(
            tensors=tuple(tensors),
            pages=tuple(pages),
            num_slots=slots[0],
            block_bytes=offset,
            host_block_bytes=host_block_bytes,
            align_bytes=_common_alignment(pages),
            device=tensors[0].device,
        )

    def page_views(self) -> list[torch.Tensor]:
        """Each page as a uint8 view (slots, page bytes) of the engine's memory, in the order of `pages`."""
        views = []
        for page in self.pages:
            storage = self.tensors[page.tensor].untyped_storage()
            memory = torch.empty(0, dtype=torch.uint8, device=self.device).set_(storage)
            views.append(
                memory.as_strided(
                    (self.num_slots, page.num_bytes),
                    (page.slot_stride_bytes, 1),
                    page.address - storage.data_ptr(),
                )
            )
        return views


def _page_starts(tensor: torch.Tensor, block_dim: int, index: int) -> tuple[list[int], int]:
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


def _refuse_overlap(pages: list[Page], num_slots: int) -> None:
    """Refuse pages that share a byte: a copy of one would change the other."""
    extents = sorted(
        (p.address, p.address + (num_slots - 1) * p.slot_stride_bytes + p.num_bytes, i) for i, p in enumerate(pages)
    )
    for i, page in enumerate(pages):
        if num_slots > 1 and page.slot_stride_bytes < page.num_bytes:
            raise LayoutError(
                f"the slots of tensor {page.tensor} overlap: page {i} has {page.num_bytes} bytes "
                f"and the next slot begins after {page.slot_stride_bytes}"
            )
    # Only pages whose extents meet can overlap. K and V of (slots, 2, ...) interleave without overlapping.
    open_pages: list[tuple[int, int]] = []  # (end of extent, page)
    for start, end, i in extents:
        open_pages = [(e, j) for e, j in open_pages if e > start]
        for _, j in open_pages:
            if _share_a_byte(pages[j], pages[i], num_slots):
                a, b = sorted((i, j))
                raise LayoutError(
                    f"page {a} (tensor {pages[a].tensor}) and page {b} (tensor {pages[b].tensor}) overlap in memory; "
                    "pass each tensor once, and views that do not share bytes"
                )
        open_pages.append((end, i))


def _share_a_byte(first: Page, second: Page, num_slots: int) -> bool:
    """Whether any slot of `second`, which begins no earlier, meets any slot of `first`."""
    slots = np.arange(num_slots, dtype=np.int64)
    starts = second.address + slots * second.slot_stride_bytes - first.address
    # The slot of `first` that begins at or before each start, and the next one: no other can meet it.
    stride = max(first.slot_stride_bytes, 1)
    before = np.clip(starts // stride, 0, num_slots - 1)
    after = np.clip(before + 1, 0, num_slots - 1)
    meets = (starts < before * stride + first.num_bytes) & (starts + second.num_bytes > before * stride)
    meets |= (starts < after * stride + first.num_bytes) & (starts + second.num_bytes > after * stride)
    return bool(meets.any())


def _common_alignment(pages: list[Page]) -> int:
    bits = HOST_ALIGN_BYTES
    for p in pages:
        bits |= p.address | p.slot_stride_bytes | p.num_bytes | p.host_offset_bytes
    return bits & -bits
