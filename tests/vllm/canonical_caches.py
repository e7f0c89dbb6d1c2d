"""KV caches as vLLM hands them to a worker, drawn by hypothesis, and histories of transfers over them. No test.

The records are vLLM's, written down again as plain dataclasses, so that all of this runs without vLLM; where vLLM is
there, its own classes are made from the same numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from hypothesis import strategies as st


@dataclass
class CanonicalKVCacheTensor:
    tensor: torch.Tensor
    page_size_bytes: int


@dataclass
class CanonicalKVCacheRef:
    tensor_idx: int
    page_size_bytes: int
    mapping: None = None


@dataclass
class CanonicalKVCaches:
    tensors: list[CanonicalKVCacheTensor]
    group_data_refs: list[list[CanonicalKVCacheRef]]


class GpuBlocks:
    """vLLM's `GPULoadStoreSpec`."""

    def __init__(self, block_ids: Sequence[int], group_sizes: Sequence[int], block_indices: Sequence[int]) -> None:
        self.block_ids = np.array(block_ids, dtype=np.int32)
        self.group_sizes, self.block_indices = group_sizes, block_indices


@dataclass(frozen=True)
class TensorPlan:
    """A tensor of the cache: how its rows lie in memory. `gap` bytes follow each; `offset` bytes precede the first."""

    page_bytes: int
    gap: int = 0
    offset: int = 0
    dtype: torch.dtype = torch.int8


@dataclass(frozen=True)
class CachePlan:
    """A cache as numbers.

    Attributes:
        refs: for each group, (tensor, bytes of a row that it uses).
    """

    num_blocks: int
    num_chunks: int
    blocks_per_chunk: int
    tensors: tuple[TensorPlan, ...]
    refs: tuple[tuple[tuple[int, int], ...], ...]
    seed: int

    def build(self, device: str = "cpu") -> CanonicalKVCaches:
        """The cache with random bytes everywhere, in gaps and padding too: the same for the same plan."""
        generator = torch.Generator().manual_seed(self.seed)
        tensors = []
        for t in self.tensors:
            stride = t.page_bytes + t.gap
            memory = torch.randint(
                -128, 128, (t.offset + self.num_blocks * stride,), dtype=torch.int8, generator=generator
            ).to(device)
            rows = memory[t.offset :].as_strided((self.num_blocks, t.page_bytes), (stride, 1), t.offset)
            if t.dtype is not torch.int8:
                rows = rows.view(t.dtype)
            tensors.append(CanonicalKVCacheTensor(rows, t.page_bytes))
        return CanonicalKVCaches(tensors, [[CanonicalKVCacheRef(i, n) for i, n in own] for own in self.refs])


def memory(caches: CanonicalKVCaches) -> list[np.ndarray]:
    """All memory under the tensors, as uint8 copies."""
    return [
        torch.empty(0, dtype=torch.uint8, device=t.tensor.device).set_(t.tensor.untyped_storage()).cpu().numpy().copy()
        for t in caches.tensors
    ]


@st.composite
def cache_plans(draw: st.DrawFn) -> CachePlan:
    """Draw a cache: a dense model's layers, a hybrid's whose groups overlay, or one packed tensor for all groups."""
    num_blocks, num_chunks = draw(st.integers(2, 7)), draw(st.integers(1, 6))
    per_chunk = draw(st.sampled_from([1, 1, 2, 3, 4]))
    num_groups = draw(st.integers(1, 3))
    sizes = st.sampled_from([1, 3, 8, 16, 20, 64, 576, 656])
    if draw(st.booleans()) and num_groups > 1:  # packed
        page = draw(sizes)
        tensors = (TensorPlan(page),)
        refs = tuple(((0, page),) for _ in range(num_groups))
    else:
        made, own_refs = [], []
        for group in range(num_groups):
            own: list[tuple[int, int]] = []
            for _ in range(draw(st.integers(0 if group else 1, 3))):
                if made and draw(st.integers(0, 2)) == 0:
                    index = draw(st.integers(0, len(made) - 1))  # layers in the same memory
                else:
                    page = draw(sizes)
                    dtype = draw(st.sampled_from([torch.int8, torch.bfloat16])) if page % 2 == 0 else torch.int8
                    step = 2 if dtype is torch.bfloat16 else 1
                    made.append(TensorPlan(page, step * draw(st.integers(0, 3)), step * draw(st.integers(0, 2)), dtype))
                    index = len(made) - 1
                own.append((index, draw(st.integers(1, made[index].page_bytes))))
            own_refs.append(tuple(own))
        tensors, refs = tuple(made), tuple(own_refs)
    return CachePlan(num_blocks, num_chunks, per_chunk, tensors, refs, draw(st.integers(0, 99)))


@dataclass(frozen=True)
class Transfer:
    """A transfer of vLLM: blocks group by group, where each group's run begins, and the chunks."""

    is_store: bool
    block_ids: tuple[int, ...]
    group_sizes: tuple[int, ...]
    block_indices: tuple[int, ...]
    chunk_ids: tuple[int, ...]
    expedited: bool = False


@dataclass
class _Held:
    """What host chunks hold: the group of each, and the places of it that were written since."""

    group: dict[int, int] = field(default_factory=dict)
    places: dict[int, set[int]] = field(default_factory=dict)


@st.composite
def histories(draw: st.DrawFn, plan: CachePlan) -> list[Transfer]:
    """Draw transfers that make sense: a load reads only places that a store of the same group has written."""
    held = _Held()
    made: list[Transfer] = []
    for _ in range(draw(st.integers(1, 8))):
        draw_one = _draw_store if not held.group or draw(st.booleans()) else _draw_load
        transfer = draw_one(draw, plan, held)
        if transfer is not None:
            made.append(transfer)
    return made


def _draw_store(draw: st.DrawFn, plan: CachePlan, held: _Held) -> Transfer | None:
    k = plan.blocks_per_chunk
    free = list(draw(st.permutations(range(plan.num_chunks))))
    blocks: list[int] = []
    sizes, indices, chunks = [], [], []
    for group in range(len(plan.refs)):
        count = draw(st.integers(0, min(3, len(free))))
        first = draw(st.integers(0, k - 1))
        size = draw(st.integers(max(1, (count - 1) * k - first + 1), count * k - first)) if count else 0
        own = [free.pop() for _ in range(count)]
        for place in range(first, first + size):
            chunk = own[place // k]
            if held.group.get(chunk) != group:
                held.group[chunk], held.places[chunk] = group, set()
            held.places[chunk].add(place % k)
        blocks += draw(st.lists(st.integers(0, plan.num_blocks - 1), min_size=size, max_size=size))
        sizes.append(size)
        indices.append(first + k * draw(st.integers(0, 2)))
        chunks += own
    return Transfer(True, tuple(blocks), tuple(sizes), tuple(indices), tuple(chunks)) if chunks else None


def _draw_load(draw: st.DrawFn, plan: CachePlan, held: _Held) -> Transfer | None:
    k = plan.blocks_per_chunk
    taken: set[int] = set()  # groups of one engine take their blocks from one free list
    blocks: list[int] = []
    sizes, indices, chunks = [], [], []
    for group in range(len(plan.refs)):
        own: list[int] = []
        runs: list[int] = []  # places, counted over the chunks of this group
        first = 0
        for chunk in draw(st.permutations(sorted(c for c, g in held.group.items() if g == group))):
            places = sorted(held.places[chunk])
            full = len(places) == k
            if not own:
                # The first chunk: from any place on whose successors were written, to its end.
                start = draw(st.sampled_from(places))
                end = start
                while end + 1 in held.places[chunk]:
                    end += 1
                own, first = [chunk], start
                runs = list(range(start, end + 1))
                if end != k - 1:
                    break
            elif places[0] == 0:
                run = 0
                while run in held.places[chunk]:
                    run += 1
                own.append(chunk)
                runs += list(range((len(own) - 1) * k, (len(own) - 1) * k + run))
                if not full:
                    break
        free = [b for b in draw(st.permutations(range(plan.num_blocks))) if b not in taken]
        size = draw(st.integers(0, min(len(runs), len(free))))
        own = own[: -(-(first + size) // k)] if size else []
        taken.update(free[:size])
        blocks += free[:size]
        sizes.append(size)
        indices.append(first + k * draw(st.integers(0, 2)))
        chunks += own
    if not blocks:
        return None
    return Transfer(False, tuple(blocks), tuple(sizes), tuple(indices), tuple(chunks), draw(st.booleans()))
