"""The moving half: blocks between pinned host memory and an engine's GPU slots. Imports torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kvmove.move.hostpool import HostPool
from kvmove.move.layout import CacheLayout, Group
from kvmove.move.mover import Mover
from kvmove.move.pages import Page
from kvmove.move.ticket import Ticket
from kvmove.records import Load, Store

if TYPE_CHECKING:
    import torch

__all__ = ["CacheLayout", "Group", "HostPool", "Mover", "Page", "Ticket", "load_batch", "store_batch"]


def load_batch(
    mover: Mover,
    loads: Sequence[Load],
    *,
    after: torch.cuda.Event | None = None,
    path: str | None = None,
    strict: bool = False,
    by_layer: bool = False,
) -> Ticket:
    """Start bringing host blocks into GPU slots, and return at once.

    A load's host block `src_blocks[i]` goes to slot `dst_slots[i]`, every page of it; with several groups or chunks,
    its parts say what goes where. All expedited loads of the call share one launch for each group. A load starts
    after what the current stream holds at the time of the call, after stores that still read its slots, and after
    stores that still write its host blocks.

    Args:
        loads: any number of loads; index arrays are int64, on the host.
        after: start after this event instead of after the current stream, to overlap the previous step. The
            caller then vouches that nothing else on its stream touches the slots.
        path: `direct`, `tma`, `staged`, `engine` or `reference` for this call; None leaves the choice to the mover.
        by_layer: bring the expedited loads in a few pieces of layers, so that `ticket.wait_layer(i)` returns before the
            whole load is there; by the direct path, unless `path` names `direct`, `engine` or `reference`. The first
            such call of a mover prepares the pieces: make it before serving.
        strict: let `ticket.wait()` block the host and raise if a load failed.

    Returns:
        A ticket: call `wait()` before the step's kernels are launched, and `check()` at its output sync.

    Raises:
        Refused: a group, block, slot or place in a chunk is out of range, a part has not the host blocks that its
            slots need, a slot is written twice, a job id is in use, or the named path does not work here or not
            layer by layer; nothing moved.
        MoverBusy: too much is in flight; nothing moved, try again after `mover.finished()`.
        MoverClosed: the mover is closed.
    """
    return mover.load(loads, after=after, path=path, strict=strict, by_layer=by_layer)


def store_batch(
    mover: Mover, stores: Sequence[Store], *, after: torch.cuda.Event | None = None, path: str | None = None
) -> Ticket:
    """Start keeping GPU slots in host blocks, and return at once.

    A store starts after what the current stream holds at the time of the call (the step's writes), after loads
    that still write its slots, and after loads and stores that still use its host blocks.

    Args:
        stores: any number of stores; index arrays are int64, on the host.
        after: start after this event instead of after the current stream.
        path: as for `load_batch`.

    Returns:
        A ticket: `wait()` lets the current stream wait, before it overwrites the slots.
            `mover.wait_for_slots(slots, group)` does the same for chosen slots.

    Raises:
        Refused: as for `load_batch`, where a host block (with chunks: a place in it) may be written once.
        MoverBusy: too much is in flight; nothing moved, try again after `mover.finished()`.
        MoverClosed: the mover is closed.
    """
    return mover.store(stores, after=after, path=path)
