"""The reference path: plain torch indexing, on any device."""

from __future__ import annotations

import torch

from kvmove.move.hostpool import HostPool
from kvmove.move.indices import Span
from kvmove.move.layout import CacheLayout


class ReferencePath:
    """Written for reading: it defines what a copy is.

    On a CUDA device it blocks the host until its copies are done.
    """

    name = "reference"
    in_pieces = False

    def __init__(self, layout: CacheLayout, pool: HostPool) -> None:
        self._device = layout.device
        self._pages = [
            (view, pool.blocks[:, page.host_offset_bytes : page.host_offset_bytes + page.num_bytes])
            for view, page in zip(layout.page_views(), layout.pages, strict=True)
        ]

    def load(self, span: Span, count: int, programs: int, stream: torch.cuda.Stream | None) -> None:
        blocks, slots = _as_tensors(span, count)
        with torch.cuda.stream(stream):
            for page, host in self._pages:
                page[slots.to(self._device)] = host[blocks].to(self._device)

    def store(self, span: Span, count: int, programs: int, stream: torch.cuda.Stream | None) -> None:
        blocks, slots = _as_tensors(span, count)
        with torch.cuda.stream(stream):
            for page, host in self._pages:
                host[blocks] = page[slots.to(self._device)].cpu()


def _as_tensors(span: Span, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    indices = torch.from_numpy(span.array)
    return indices[:count], indices[count:]
