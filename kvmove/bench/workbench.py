"""A cache, a host pool and a mover between them, with contents that are known and can be compared."""

from __future__ import annotations

import time
from collections.abc import Iterable
from types import TracebackType
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray

from kvmove.bench.device import Device
from kvmove.bench.plan import Shape
from kvmove.errors import InternalError, MoveFailed, Refused
from kvmove.move import CacheLayout, HostPool, Mover, Ticket, load_batch, store_batch
from kvmove.records import Lane, Load, Result, Store

Index = NDArray[np.int64]

POISON = 0xA5
_PATIENCE_S = 60.0  # the slowest copy measured takes a second


class Workbench:
    """Random blocks of one shape on both sides.

    Attributes:
        image: what the host pool held when it was filled or last checked, uint8 (blocks, host block bytes) on the
            device. Stores that are measured change the pool and leave it behind, so checks come first.
        job: the last job id that was used.
    """

    def __init__(self, device: Device, shape: Shape, num_blocks: int, *, path: str | None = None) -> None:
        """Allocate `num_blocks` host blocks and as many slots.

        Args:
            path: as for `Mover`.
        """
        self.device, self.shape = device, shape
        where = device.torch_device
        tensors = [
            torch.zeros(num_blocks, shape.page_bytes, dtype=torch.uint8, device=where) for _ in range(shape.num_pages)
        ]
        self.layout = CacheLayout.from_tensors(tensors, block_dim=0)
        self.pool = HostPool.for_layout(self.layout, num_blocks)
        self.image = torch.empty(num_blocks, self.pool.block_bytes, dtype=torch.uint8, device=where).random_(0, 256)
        for host, pattern in self._pieces():
            host.copy_(pattern)
        self.mover = Mover(self.layout, self.pool, path=path)
        self._order = np.random.default_rng(2)
        self.job = 0
        self._ended: dict[int, Result] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Wait for what is in flight, and unpin."""
        self.mover.close()
        self.pool.close()

    def _pieces(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """The pool and `image`, cut where the pool's registrations end: no DMA may cross two."""
        ends = [int(end) - self.pool.address for end in self.pool.piece_ends] or [self.pool.num_bytes]
        host, pattern = self.pool.blocks.view(-1), self.image.view(-1)
        return [(host[a:b], pattern[a:b]) for a, b in zip([0, *ends[:-1]], ends, strict=True)]

    def offered(self, paths: Iterable[str]) -> list[str]:
        """Those of the paths that take this cache on this device."""
        taken = []
        for path in paths:
            try:
                self.load(1, Lane.BULK, path)
            except Refused:
                continue
            taken.append(path)
        return taken

    def pool_contents(self) -> torch.Tensor:
        """What the host pool holds now, like `image`."""
        now = torch.empty_like(self.image)
        begin = 0
        for host, _ in self._pieces():
            now.view(-1)[begin : begin + host.numel()].copy_(host)
            begin += host.numel()
        return now

    def indices(self, count: int, begin: int = 0, end: int | None = None) -> tuple[Index, Index]:
        """`count` blocks of [begin, end), and as many slots, both in an order of their own that is new every time."""
        last = self.pool.num_blocks if end is None else end
        blocks, slots = (begin + self._order.permutation(last - begin)[:count] for _ in range(2))
        return blocks, slots

    def new_job(self) -> int:
        """A job id that is not in use."""
        self.job += 1
        return self.job

    def next_load(self, count: int, lane: Lane | str, begin: int = 0, end: int | None = None) -> Load:
        """A load of random blocks, not yet submitted."""
        return Load(self.new_job(), *self.indices(count, begin, end), Lane(lane))

    def submit(self, load: Load, path: str | None = None, *, by_layer: bool = False) -> Ticket:
        """Start a load."""
        return load_batch(self.mover, [load], path=path, by_layer=by_layer)

    def ended(self, job: int) -> Result | None:
        """How a job ended, or None while it is in flight. Does not block."""
        for result in self.mover.finished():
            self._ended[result.job] = result
        return self._ended.get(job)

    def await_end(self, job: int) -> Result:
        """Block until a job has ended.

        Raises:
            MoveFailed: it failed.
        """
        give_up = time.monotonic() + _PATIENCE_S
        while (result := self.ended(job)) is None:
            if time.monotonic() > give_up:
                raise InternalError(f"job {job} was not reported within {_PATIENCE_S:.0f} s")
        del self._ended[job]
        if result.error is not None:
            raise MoveFailed(f"job {job} failed: {result.error}", job=job)
        return result

    def load(self, count: int, lane: Lane | str, path: str | None = None) -> Result:
        """Load random blocks, and wait for the end."""
        load = self.next_load(count, lane)
        self.submit(load, path)
        self.device.synchronize()
        return self.await_end(load.job)

    def store(self, count: int, path: str | None = None) -> Result:
        """Store random slots, and wait for the end."""
        blocks, slots = self.indices(count)
        job = self.new_job()
        store_batch(self.mover, [Store(job, slots, blocks)], path=path)
        self.device.synchronize()
        return self.await_end(job)


def device_ns(result: Result) -> float:
    """The device time of a job, which has to have been measured."""
    if result.elapsed_ns is None:
        raise InternalError(f"job {result.job} has no device time")
    return float(max(1, result.elapsed_ns))
