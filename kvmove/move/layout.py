"""Where an engine's KV cache is: `CacheLayout` describes the engine's own tensors, without copying."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from kvmove.errors import LayoutError
from kvmove.move.pages import HOST_ALIGN_BYTES, Page, common_alignment, groups_that_share, page_starts
from kvmove.transfers import Part

Index = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """Tensors with one block table.

    A host block of the group holds a chunk: `blocks_per_chunk` blocks, each with its pages back to back in the order
    of `pages`, beginning every `sub_bytes`. Positions in the host pool are counted in units of `unit_bytes`, so that
    one number says where a block is: without chunks that is the number of its host block.

    Attributes:
        index: the group's number in the layout.
        pages: the pages of a block.
        num_slots: blocks of the group that the cache has room for.
        block_bytes: bytes of a block's pages together; `sub_bytes` is that rounded up to a multiple of 16.
        align_bytes: the largest power of two, at most 16, that divides every address, stride, size and offset.
        first_slot: where the group's slots begin when the slots of all groups are counted together. Groups that lie
            in the same memory, slot by slot, have the same.
    """

    index: int
    pages: tuple[Page, ...]
    num_slots: int
    block_bytes: int
    sub_bytes: int
    blocks_per_chunk: int
    unit_bytes: int
    align_bytes: int
    first_slot: int
    tensors: tuple[torch.Tensor, ...] = field(repr=False)  # all of the layout's
    _units: tuple[int, int] = field(repr=False)  # from a host block to the next, from a place in it to the next

    def page_views(self) -> list[torch.Tensor]:
        """Each page as a uint8 view (slots, page bytes) of the engine's memory, in the order of `pages`."""
        views = []
        for page in self.pages:
            tensor = self.tensors[page.tensor]
            storage = tensor.untyped_storage()
            memory = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage)
            views.append(
                memory.as_strided(
                    (self.num_slots, page.num_bytes),
                    (page.slot_stride_bytes, 1),
                    page.address - storage.data_ptr(),
                )
            )
        return views

    def positions(self, part: Part) -> Index:
        """Where the part's blocks are in the pool, in units of `unit_bytes`: int64 (slots,)."""
        if self.blocks_per_chunk == 1:
            return part.blocks
        chunk, place = np.divmod(part.first + np.arange(len(part.slots)), self.blocks_per_chunk)
        chunk_units, place_units = self._units
        positions: Index = part.blocks[chunk] * chunk_units + place * place_units
        return positions

    def chunks_and_places(self, positions: Index) -> tuple[Index, Index]:
        """Host blocks and places in them, from positions."""
        chunk, rest = np.divmod(positions, self._units[0])
        return chunk, rest // self._units[1]


@dataclass(frozen=True, eq=False)
class CacheLayout:
    """A paged KV cache: one group of tensors for each of the engine's block tables.

    Keeps the tensors alive. Attributes:
        groups: the groups, in the order given. A layout of one group has that group's `pages`, `num_pages`,
            `num_slots`, `block_bytes`, `align_bytes` and `page_views()` as its own; with several, these raise.
        host_block_bytes: the largest chunk of a group, a multiple of 16: the distance of two host blocks.
        slots_together: the slots of all groups, those of groups in the same memory counted once.
        device: where the tensors are.
    """

    tensors: tuple[torch.Tensor, ...] = field(repr=False)  # gigabytes of numbers
    groups: tuple[Group, ...]
    host_block_bytes: int
    slots_together: int
    device: torch.device

    @classmethod
    def from_tensors(
        cls,
        tensors: Sequence[torch.Tensor],
        *,
        block_dim: int | Sequence[int],
        groups: Sequence[Sequence[int]] | None = None,
        blocks_per_chunk: int | Sequence[int] = 1,
    ) -> CacheLayout:
        """Describe the tensors of a cache.

        Args:
            tensors: the engine's KV tensors, on one device, any dtype. Dimension `block_dim` counts slots. Of the
                others, those that together are one run of memory are a page; the rest count pages.
                `(2, slots, tokens, heads, dim)` with `block_dim=1` has two pages a tensor (K and V),
                `(slots, 2, tokens, heads, dim)` with `block_dim=0` has one, and a cross-layer
                `(slots, layers, ...)` has one for all layers. Strides decide, so NHD and HND views both work.
            block_dim: the dimension that counts slots, in every tensor or one for each.
            groups: for each block table, the indices of its tensors, which have the same number of slots; every
                tensor is in a group. None: one group of all. Groups may lie in the same memory, with the same tensor
                or with views of it, where a slot's bytes are the same in each: engines with one free list of
                blocks do that. Such groups count as one wherever an order is kept or a slot may be written once.
            blocks_per_chunk: how many blocks a host block holds, in every group or one number for each.

        Raises:
            LayoutError: the tensors are on several devices, differ in slots within a group, are in no group, have
                a page that is not contiguous, or have pages that overlap; the message names the tensor.
        """
        given: object = tensors  # whatever callers in fact pass
        if isinstance(given, torch.Tensor) or not all(isinstance(t, torch.Tensor) for t in tensors):
            raise LayoutError(f"a sequence of torch tensors is needed, not {type(given).__name__}")
        if not tensors:
            raise LayoutError("no tensors: a cache has at least one")
        devices = {t.device for t in tensors}
        if len(devices) > 1:
            raise LayoutError(f"the tensors are on {sorted(map(str, devices))}; a layout describes one device")
        if tensors[0].device.type not in ("cpu", "cuda"):
            raise LayoutError(f"the tensors are on {tensors[0].device}; kvmove moves blocks of cpu and cuda tensors")
        members = _members(groups, len(tensors))
        dims = _one_each(block_dim, len(tensors), "block_dim", "tensors")
        per_chunk = _one_each(blocks_per_chunk, len(members), "blocks_per_chunk", "groups")
        for i, t in enumerate(tensors):
            if not 0 <= dims[i] < t.dim():
                raise LayoutError(f"tensor {i} of shape {tuple(t.shape)} has no dimension block_dim={dims[i]}")
        for g, k in enumerate(per_chunk):
            if k < 1:
                raise LayoutError(f"blocks_per_chunk is {k} for group {g}; a host block holds at least one block")

        pages = [_pages_of(tensors, dims, own) for own in members]
        num_slots = [tensors[own[0]].shape[dims[own[0]]] for own in members]
        first_slots, slots_together = _slots_side_by_side(num_slots, groups_that_share(pages, num_slots))
        block_bytes = [sum(p.num_bytes for p in own) for own in pages]
        sub_bytes = [-(-n // HOST_ALIGN_BYTES) * HOST_ALIGN_BYTES for n in block_bytes]
        host_block_bytes = max(n * k for n, k in zip(sub_bytes, per_chunk, strict=True))
        made = []
        for g, own in enumerate(pages):
            # Without chunks every position is a host block. With them, the largest unit that divides both distances.
            unit = host_block_bytes if per_chunk[g] == 1 else int(np.gcd(host_block_bytes, sub_bytes[g]))
            made.append(
                Group(
                    index=g,
                    pages=tuple(own),
                    num_slots=num_slots[g],
                    block_bytes=block_bytes[g],
                    sub_bytes=sub_bytes[g],
                    blocks_per_chunk=per_chunk[g],
                    unit_bytes=unit,
                    align_bytes=common_alignment(own),
                    first_slot=first_slots[g],
                    tensors=tuple(tensors),
                    _units=(host_block_bytes // unit, max(1, sub_bytes[g] // unit)),
                )
            )
        return cls(tuple(tensors), tuple(made), host_block_bytes, slots_together, tensors[0].device)

    @property
    def pages(self) -> tuple[Page, ...]:
        return self._only_group("pages").pages

    @property
    def num_pages(self) -> int:
        return len(self._only_group("num_pages").pages)

    @property
    def num_slots(self) -> int:
        return self._only_group("num_slots").num_slots

    @property
    def block_bytes(self) -> int:
        return self._only_group("block_bytes").block_bytes

    @property
    def align_bytes(self) -> int:
        return self._only_group("align_bytes").align_bytes

    def page_views(self) -> list[torch.Tensor]:
        """`Group.page_views` of the only group."""
        return self._only_group("page_views()").page_views()

    def _only_group(self, name: str) -> Group:
        if len(self.groups) > 1:
            raise LayoutError(f"this layout has {len(self.groups)} groups; say which: layout.groups[i].{name}")
        return self.groups[0]


def _members(groups: Sequence[Sequence[int]] | None, num_tensors: int) -> list[list[int]]:
    """The tensors of each group."""
    if groups is None:
        return [list(range(num_tensors))]
    members = [[int(i) for i in own] for own in groups]
    if not members:
        raise LayoutError("no groups: a cache has at least one")
    for g, own in enumerate(members):
        if not own:
            raise LayoutError(f"group {g} has no tensors; leave it out")
        for i in own:
            if not 0 <= i < num_tensors:
                raise LayoutError(f"group {g} names tensor {i}, outside [0, {num_tensors})")
    for i in sorted(set(range(num_tensors)).difference(*members)):
        raise LayoutError(f"tensor {i} is in no group, so it would never be moved; leave it out, or put it into one")
    return members


def _one_each(value: int | Sequence[int], count: int, name: str, what: str) -> list[int]:
    """`value` for each of `count` things, whether it was given once or for each."""
    if isinstance(value, int):
        return [value] * count
    values = [int(v) for v in value]
    if len(values) != count:
        raise LayoutError(f"{len(values)} values of {name} for {count} {what}; give one, or one for each")
    return values


def _pages_of(tensors: Sequence[torch.Tensor], dims: Sequence[int], own: Sequence[int]) -> list[Page]:
    """The pages of a group's tensors, in the order in which a host block holds them."""
    pages: list[Page] = []
    offset, first = 0, own[0]
    for i in own:
        t, dim = tensors[i], dims[i]
        if t.shape[dim] != tensors[first].shape[dims[first]]:
            raise LayoutError(
                f"tensor {i} has {t.shape[dim]} slots and tensor {first} has {tensors[first].shape[dims[first]]}; "
                "they share a block table"
            )
        starts, num_bytes = page_starts(t, dim, i)
        stride = t.stride(dim) * t.element_size()
        for start in starts:
            pages.append(Page(i, t.data_ptr() + start, stride, num_bytes, offset))
            offset += num_bytes
    return pages


def _slots_side_by_side(num_slots: Sequence[int], shared: set[tuple[int, int]]) -> tuple[list[int], int]:
    """Where each group's slots begin when all are counted together, and how many there are then."""
    home = list(range(len(num_slots)))  # the first of the groups in the same memory
    for a, b in sorted(shared):
        low, high = sorted((home[a], home[b]))
        home = [low if h == high else h for h in home]
    begins: dict[int, int] = {}
    total = 0
    for group, count in enumerate(num_slots):
        if home[group] == group:
            begins[group] = total
            total += count
    return [begins[h] for h in home], total
