"""Host memory for blocks: pinned where a CUDA device reads it, plain elsewhere."""

from __future__ import annotations

import math
import mmap
import resource
import weakref
from types import TracebackType

import numpy as np
import torch
from numpy.typing import NDArray

from kvmove.errors import PinningError, RecordError, Refused
from kvmove.move import cudart
from kvmove.move.layout import CacheLayout

# One registration of a large range stalls every other CUDA call of the process while it runs.
REGISTER_BYTES = 256 << 20


class HostMemory:
    """Anonymous memory of exactly the pages that `num_bytes` needs, pinned for a CUDA device on request.

    torch's own pinned allocator rounds to powers of two (65 GiB becomes 128), so this maps and registers itself.

    Attributes:
        array: the memory, uint8 (num_bytes,).
        address: where it begins; `device_address` is the same place as kernels see it.
        piece_ends: where each registration ends, ascending, int64 (registrations,); empty where nothing is pinned.
    """

    def __init__(self, num_bytes: int, *, pinned: bool, chunk_bytes: int = REGISTER_BYTES) -> None:
        """Map the memory and pin it in pieces of `chunk_bytes`.

        Raises:
            PinningError: the driver refused; everything is released again.
        """
        self.num_bytes = num_bytes
        # Shared, not private: after a fork, writes to private memory would go to copies that no device sees.
        self._map = mmap.mmap(-1, num_bytes, flags=mmap.MAP_SHARED | mmap.MAP_ANONYMOUS)
        self.array: NDArray[np.uint8] = np.frombuffer(self._map, dtype=np.uint8)
        self.address = self.array.ctypes.data
        self.device_address = self.address
        self.piece_ends: NDArray[np.int64] = np.empty(0, dtype=np.int64)
        self._registered: list[int] = []
        # The map goes with its last view. Were it unmapped while registered, the driver would refuse whatever is
        # mapped there next; so an object that nobody closed unpins first.
        weakref.finalize(self, _unpin, self._registered, self._map).atexit = False
        if pinned:
            self._pin(chunk_bytes)

    def _pin(self, chunk_bytes: int) -> None:
        for offset in range(0, self.num_bytes, chunk_bytes):
            size = min(chunk_bytes, self.num_bytes - offset)
            error = cudart.host_register(self.address + offset, size)
            if error is None:
                self._registered.append(self.address + offset)
                continue
            pinned = offset
            self.close()
            limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
            allows = "unlimited" if limit == resource.RLIM_INFINITY else f"{limit} bytes"
            raise PinningError(
                f"cannot pin {self.num_bytes} bytes of host memory: {error} after {pinned} bytes; "
                f"the locked-memory limit is {allows}; raise it (ulimit -l) or ask for a smaller pool",
                asked_bytes=self.num_bytes,
                pinned_bytes=pinned,
            )
        self.piece_ends = np.array([*self._registered[1:], self.address + self.num_bytes], dtype=np.int64)
        self.device_address = cudart.device_alias(self.address)
        last = self._registered[-1]
        if cudart.device_alias(last) - self.device_address != last - self.address:
            self.close()
            raise PinningError(
                f"the device sees the {len(self._registered)} pinned pieces at unrelated addresses; "
                f"ask for at most {chunk_bytes} bytes",
                asked_bytes=self.num_bytes,
                pinned_bytes=self.num_bytes,
            )

    def close(self) -> None:
        """Unpin. The memory itself goes when the last view of it does."""
        _unpin(self._registered)


def _unpin(registered: list[int], *_kept_until_then: object) -> None:
    while registered:
        cudart.host_unregister(registered.pop())


class HostPool:
    """Host blocks: `num_blocks` runs of `block_bytes`, one after the other.

    1. Built: mapped, and pinned when it serves a CUDA device. Block i is `pool.blocks[i]`.
    2. In use: each mover over it holds it until that mover is closed.
    3. Closed: unpinned. Closing while a mover holds it is refused.

    Attributes:
        blocks: torch uint8 (num_blocks, block_bytes) on the CPU, over the pool's memory.
        address, device_address: where block 0 begins, for the host and for kernels.
        piece_ends: addresses of the ends of its registrations; a copy must not cross one.
    """

    def __init__(self, num_blocks: int, block_bytes: int, *, device: torch.device | str = "cpu") -> None:
        """Allocate a pool for blocks of `block_bytes` that a mover on `device` will read and write.

        Raises:
            RecordError: a size is not positive, or `block_bytes` is no multiple of 16.
            PinningError: host memory cannot be pinned.
        """
        if num_blocks < 1 or block_bytes < 1 or block_bytes % 16:
            raise RecordError(
                f"host pool: {num_blocks} blocks of {block_bytes} bytes; at least one block is needed, "
                "of a multiple of 16 bytes (CacheLayout.host_block_bytes)"
            )
        self.num_blocks, self.block_bytes = num_blocks, block_bytes
        pinned = torch.device(device).type == "cuda"
        # Pieces end on block boundaries, so that no block lies in two, and on OS pages, which registration owns.
        unit = math.lcm(block_bytes, mmap.PAGESIZE)
        chunk_bytes = max(1, REGISTER_BYTES // unit) * unit
        self._memory = HostMemory(num_blocks * block_bytes, pinned=pinned, chunk_bytes=chunk_bytes)
        self.pinned = pinned
        self.address, self.device_address = self._memory.address, self._memory.device_address
        self.piece_ends = self._memory.piece_ends
        self.blocks = torch.from_numpy(self._memory.array).view(num_blocks, block_bytes)
        self._holders: set[int] = set()
        self.closed = False

    @classmethod
    def for_layout(cls, layout: CacheLayout, num_blocks: int) -> HostPool:
        """A pool of `num_blocks` blocks as `layout` needs them. Raises as the constructor does."""
        return cls(num_blocks, layout.host_block_bytes, device=layout.device)

    @property
    def num_bytes(self) -> int:
        return self.num_blocks * self.block_bytes

    def hold(self, holder: object) -> None:
        """Keep the pool open until `holder` releases it."""
        if self.closed:
            raise Refused("this host pool is closed; make a new one")
        self._holders.add(id(holder))

    def release(self, holder: object) -> None:
        """End a `hold`. Releasing twice is harmless."""
        self._holders.discard(id(holder))

    def close(self) -> None:
        """Unpin the memory; harmless when closed already.

        Raises:
            Refused: a mover still uses the pool.
        """
        if self._holders:
            raise Refused(f"{len(self._holders)} open mover(s) use this host pool; close them first")
        self.closed = True
        self._memory.close()

    def __enter__(self) -> HostPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
