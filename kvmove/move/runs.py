"""Copies of many runs of memory by the copy engine: fewer and longer runs, and one call for all of them."""

from __future__ import annotations

import ctypes

import numpy as np
import torch
from numpy.typing import NDArray

from kvmove.move import cudart

Addresses = NDArray[np.int64]


def merge_runs(
    first: Addresses, second: Addresses, sizes: Addresses, borders: Addresses
) -> tuple[Addresses, Addresses, Addresses]:
    """Join neighbours that continue each other on both sides.

    Args:
        first, second: addresses of the runs on either side, int64 (runs,); `sizes`: their bytes.
        borders: addresses on the `first` side that no run may cross (ends of registrations), ascending.

    Returns:
        The same bytes in the same order as fewer runs, contiguous arrays.
    """
    starts = np.ones(len(sizes), dtype=bool)
    starts[1:] = (first[1:] != first[:-1] + sizes[:-1]) | (second[1:] != second[:-1] + sizes[:-1])
    if len(borders):
        piece = np.searchsorted(borders, first, side="right")
        starts[1:] |= piece[1:] != piece[:-1]
    if starts.all():
        return first, second, np.ascontiguousarray(sizes)
    at = np.flatnonzero(starts)
    return first[at], second[at], np.add.reduceat(sizes, at)


def copy_runs(
    destination: Addresses, source: Addresses, sizes: Addresses, stream: torch.cuda.Stream | None, *,
    source_rests: bool = False,
) -> None:  # fmt: skip
    """Start copying `sizes[i]` bytes from `source[i]` to `destination[i]` on the stream; at once where it is None.

    `source_rests` says that nothing that is still queued anywhere writes the source, so that it may be read early.

    Raises:
        RuntimeError: the driver refused.
    """
    if stream is not None:
        cudart.memcpy_batch(destination, source, sizes, stream.cuda_stream, source_rests=source_rests)
        return
    for to, origin, size in zip(destination.tolist(), source.tolist(), sizes.tolist(), strict=True):
        ctypes.memmove(to, origin, size)
