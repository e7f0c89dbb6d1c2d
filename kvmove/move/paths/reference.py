"""The reference path: plain torch indexing, on any device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from kvmove.move.hostpool import HostPool
from kvmove.move.indices import Pairs
from kvmove.move.layout import CacheLayout


class ReferencePath:
    """Written for reading: it defines what a copy is.

    On a CUDA device it blocks the host until its copies are done.
    """

    name = "reference"

    def __init__(self, layout: CacheLayout, pool: HostPool) -> None:
        self._groups, self._device = layout.groups, layout.device
        # Host blocks as places: uint8 (host blocks, places, bytes of a block), for each group.
        self._places = [
            pool.blocks[:, : g.blocks_per_chunk * g.sub_bytes].unflatten(1, (g.blocks_per_chunk, g.sub_bytes))
            for g in layout.groups
        ]

    def load(self, pairs: Sequence[Pairs], programs: int, stream: torch.cuda.Stream | None) -> None:
        with torch.cuda.stream(stream):
            for page, slots, host, chunks, places in self._pages(pairs):
                page[slots] = host[chunks, places].to(self._device)

    def store(self, pairs: Sequence[Pairs], programs: int, stream: torch.cuda.Stream | None) -> None:
        with torch.cuda.stream(stream):
            for page, slots, host, chunks, places in self._pages(pairs):
                host[chunks, places] = page[slots].cpu()

    def _pages(self, pairs: Sequence[Pairs]) -> Iterator[tuple[torch.Tensor, ...]]:
        """Each page of each group as (slots, bytes), with its slots; as (host blocks, places, bytes), with those."""
        for p in pairs:
            group, host = self._groups[p.group], self._places[p.group]
            chunks, places = (torch.from_numpy(x) for x in group.chunks_and_places(p.positions))
            slots = torch.from_numpy(p.slots).to(self._device)
            for view, page in zip(group.page_views(), group.pages, strict=True):
                begin = page.host_offset_bytes
                yield view, slots, host[:, :, begin : begin + page.num_bytes], chunks, places
