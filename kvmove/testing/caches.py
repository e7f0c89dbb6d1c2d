"""Hypothesis strategies for caches as engines have them, with several groups and chunks, and for calls over them.

A cache is drawn as plain numbers and built on the device that a test wants.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from hypothesis import strategies as st

from kvmove.move import CacheLayout, Group, HostPool
from kvmove.records import Lane, Load, Part, Store

# Bytes of a row or page that engines have, powers of two, and sizes that leave every narrow word to be used.
SIZES = [1, 2, 3, 6, 16, 20, 31, 64, 576, 656, 1152, 4096, 18432]


@dataclass(frozen=True)
class GroupSpec:
    """How to make the tensors of one group: see `KINDS`."""

    kind: str
    slots: int
    size: int  # bytes of a row, or elements of one: small, so that kernels can be interpreted
    layers: int
    blocks_per_chunk: int


T = TypeVar("T")
Made = tuple[list[torch.Tensor], int]  # tensors, and the dimension of each that counts slots


def _k_and_v_apart(s: GroupSpec, device: str) -> Made:
    shape = (2, s.slots, 2, 2, min(s.size, 64))
    return [torch.zeros(shape, dtype=torch.bfloat16, device=device) for _ in range(s.layers)], 1


def _k_and_v_together(s: GroupSpec, device: str) -> Made:
    shape = (s.slots, 2, 2, 2, min(s.size, 64))
    return [torch.zeros(shape, dtype=torch.float16, device=device) for _ in range(s.layers)], 0


def _heads_outermost(s: GroupSpec, device: str) -> Made:
    tensors, dim = _k_and_v_apart(s, device)
    return [t.transpose(2, 3) for t in tensors], dim


def _cross_layer(s: GroupSpec, device: str) -> Made:
    return [torch.zeros(s.slots, s.layers, 2, s.size, dtype=torch.uint8, device=device)], 0


def _latent(s: GroupSpec, device: str) -> Made:
    return [torch.zeros(s.slots, 2, s.size, dtype=torch.uint8, device=device) for _ in range(s.layers)], 0


def _states(s: GroupSpec, device: str) -> Made:
    """A recurrent layer: a short window in one type and a larger state in another."""
    made = []
    for _ in range(s.layers):
        made.append(torch.zeros(s.slots, 3, 7, dtype=torch.bfloat16, device=device))
        made.append(torch.zeros(s.slots, min(s.size, 600), 2, dtype=torch.float32, device=device))
    return made, 0


def _padded(s: GroupSpec, device: str) -> Made:
    """Pages that leave out the end of their slot, of other sizes in every second layer."""
    sizes = [s.size if i % 2 else max(1, s.size // 2) for i in range(s.layers)]
    return [torch.zeros(2, s.slots, n + 5, dtype=torch.uint8, device=device)[:, :, :n] for n in sizes], 1


def _interleaved(s: GroupSpec, device: str) -> Made:
    """All layers in one buffer, side by side in every slot."""
    memory = torch.zeros(s.slots, s.layers, s.size + 3, dtype=torch.uint8, device=device)
    return [memory[:, i, : s.size] for i in range(s.layers)], 0


KINDS: dict[str, Callable[[GroupSpec, str], Made]] = {
    "K and V apart": _k_and_v_apart,
    "K and V together": _k_and_v_together,
    "heads outermost": _heads_outermost,
    "cross-layer": _cross_layer,
    "latent": _latent,
    "states": _states,
    "padded": _padded,
    "interleaved": _interleaved,
}


def build_cache(specs: Sequence[GroupSpec], device: str = "cpu", *, shared: bool = False) -> CacheLayout:
    """The cache of these groups. With `shared`, one more group lies in the first one's memory."""
    tensors: list[torch.Tensor] = []
    dims: list[int] = []
    groups: list[list[int]] = []
    for spec in specs:
        made, dim = KINDS[spec.kind](spec, device)
        groups.append(list(range(len(tensors), len(tensors) + len(made))))
        tensors += made
        dims += [dim] * len(made)
    per_chunk = [s.blocks_per_chunk for s in specs]
    if shared:
        groups.append(groups[0][-1:])
        per_chunk.append(specs[0].blocks_per_chunk + 1)
    return CacheLayout.from_tensors(tensors, block_dim=dims, groups=groups, blocks_per_chunk=per_chunk)


@st.composite
def group_specs(draw: st.DrawFn) -> list[GroupSpec]:
    """Draw one to three groups."""
    return [
        GroupSpec(
            kind=draw(st.sampled_from(sorted(KINDS))),
            slots=draw(st.integers(1, 9)),
            size=draw(st.sampled_from(SIZES)),
            layers=draw(st.integers(1, 3)),
            blocks_per_chunk=draw(st.sampled_from([1, 1, 2, 3, 4])),
        )
        for _ in range(draw(st.integers(1, 3)))
    ]


@st.composite
def loads_over(draw: st.DrawFn, layout: CacheLayout, pool: HostPool, *, first_job: int = 0) -> list[Load]:
    """Draw the loads of one call: of any groups and lanes, to distinct slots, from and to anywhere in a chunk."""
    taken: set[int] = set()  # slots of groups in the same memory may be named once
    parts = []
    for group in layout.groups:
        free = [s for s in range(group.num_slots) if s + group.first_slot not in taken]
        slots = draw(st.permutations(free))[: draw(st.integers(0, len(free)))]
        taken.update(s + group.first_slot for s in slots)
        for own in _cut(draw, slots):
            first = draw(st.integers(0, group.blocks_per_chunk - 1))
            count = -(-(first + len(own)) // group.blocks_per_chunk)
            blocks = draw(st.lists(st.integers(0, pool.num_blocks - 1), min_size=count, max_size=count))
            parts.append(Part(group.index, blocks, own, first))
    lanes = st.sampled_from(list(Lane))
    return [Load.of_parts(first_job + i, own, draw(lanes)) for i, own in enumerate(_cut(draw, parts))]


@st.composite
def stores_over(draw: st.DrawFn, layout: CacheLayout, pool: HostPool, *, first_job: int = 0) -> list[Store]:
    """Draw the stores of one call: to distinct places, several of which may be in one host block."""
    free = list(draw(st.permutations(range(pool.num_blocks))))
    parts: list[Part] = []
    for group in layout.groups:
        chunks = [free.pop() for _ in range(draw(st.integers(0, len(free))))]
        first = draw(st.integers(0, group.blocks_per_chunk - 1))
        room = len(chunks) * group.blocks_per_chunk - first
        if room < 1:
            continue
        count = draw(st.integers(1, room))
        slots = draw(st.lists(st.integers(0, group.num_slots - 1), min_size=count, max_size=count))
        begin = 0
        for own in _cut(draw, slots):
            parts.append(_part_at(group, chunks, own, first + begin))
            begin += len(own)
    return [Store.of_parts(first_job + i, own) for i, own in enumerate(_cut(draw, draw(st.permutations(parts))))]


def _part_at(group: Group, chunks: Sequence[int], slots: Sequence[int], begin: int) -> Part:
    """The part that holds `slots` from place `begin` on, counted over all of `chunks`."""
    k = group.blocks_per_chunk
    return Part(group.index, chunks[begin // k : -(-(begin + len(slots)) // k)], slots, begin % k)


def _cut(draw: st.DrawFn, items: Sequence[T]) -> list[Sequence[T]]:
    """The items in one to three runs, none of them empty."""
    if not items:
        return []
    cuts = sorted(draw(st.sets(st.integers(1, len(items) - 1), max_size=2))) if len(items) > 1 else []
    ends = [*cuts, len(items)]
    return [items[a:b] for a, b in zip([0, *cuts], ends, strict=True)]
