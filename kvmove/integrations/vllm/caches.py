"""vLLM's canonical KV caches as a `CacheLayout`. Runs without vLLM: it needs the shape of its records, not the classes.

vLLM hands a worker tensors of one row a block, and for every group of layers which tensors its block table points
into, with the bytes of a row that the group uses. Layers that lie in the same memory come as one tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from kvmove.errors import LayoutError
from kvmove.move import CacheLayout


class CacheTensor(Protocol):
    """A tensor whose first dimension counts blocks, and the bytes from a row's beginning to the end of its page."""

    @property
    def tensor(self) -> torch.Tensor: ...

    @property
    def page_size_bytes(self) -> int: ...


class CacheRef(Protocol):
    """The tensor of a layer, and how many bytes of each row are the layer's."""

    @property
    def tensor_idx(self) -> int: ...

    @property
    def page_size_bytes(self) -> int: ...


class Caches(Protocol):
    """All tensors, and for each group of layers the refs into them."""

    @property
    def tensors(self) -> Sequence[CacheTensor]: ...

    @property
    def group_data_refs(self) -> Sequence[Sequence[CacheRef]]: ...


@dataclass(frozen=True, eq=False)
class DescribedCaches:
    """A layout of the groups that hold anything.

    Attributes:
        groups: the layout's group of each of vLLM's groups; None for one without layers here.
    """

    layout: CacheLayout
    groups: tuple[int | None, ...]
    blocks_per_chunk: int


def describe(caches: Caches, blocks_per_chunk: int) -> DescribedCaches:
    """The layout of vLLM's canonical caches. Nothing is copied; the tensors are kept alive.

    Raises:
        LayoutError: kvmove cannot describe these tensors; the message says why, and what to use instead.
    """
    rows = [_rows(t, i) for i, t in enumerate(caches.tensors)]
    views: list[torch.Tensor] = []
    members: list[list[int]] = []
    groups: list[int | None] = []
    for refs in caches.group_data_refs:
        # Layers of a group that share a tensor share its bytes: one copy of the longest serves them all.
        sizes: dict[int, int] = {}
        for ref in refs:
            sizes[ref.tensor_idx] = max(ref.page_size_bytes, sizes.get(ref.tensor_idx, 0))
        sizes = {i: n for i, n in sizes.items() if n}
        if not sizes:
            groups.append(None)
            continue
        for i, num_bytes in sizes.items():
            if num_bytes > rows[i].shape[1]:
                raise LayoutError(f"a layer has pages of {num_bytes} bytes in tensor {i}, of {rows[i].shape[1]} a row")
        groups.append(len(members))
        members.append(list(range(len(views), len(views) + len(sizes))))
        views += [rows[i][:, :num_bytes] for i, num_bytes in sizes.items()]
    try:
        layout = CacheLayout.from_tensors(views, block_dim=0, groups=members, blocks_per_chunk=blocks_per_chunk)
    except LayoutError as error:
        raise LayoutError(
            f"kvmove cannot move the KV cache of this model: {error}. Take vLLM's own worker (leave spec_name and "
            "spec_module_path out of kv_connector_extra_config); KVMoveConnector works with it too"
        ) from error
    return DescribedCaches(layout, tuple(groups), blocks_per_chunk)


def _rows(cache: CacheTensor, index: int) -> torch.Tensor:
    """The tensor as int8 (blocks, page bytes); rows may have gaps between them."""
    try:
        return cache.tensor.view(torch.int8).view(-1, cache.page_size_bytes)
    except RuntimeError as error:
        shape, strides = tuple(cache.tensor.shape), cache.tensor.stride()
        raise LayoutError(
            f"tensor {index} of shape {shape} and strides {strides} is not made of pages of {cache.page_size_bytes} "
            f"bytes: {error}"
        ) from error
