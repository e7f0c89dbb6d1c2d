"""Host memory for blocks: pinned where a CUDA device reads it, plain elsewhere, of one process or of several."""

from __future__ import annotations

import math
import mmap
from types import TracebackType

import torch

from kvmove.errors import RecordError, Refused
from kvmove.move import hostmemory
from kvmove.move.hostmemory import HostFacts, HostMemory
from kvmove.move.layout import CacheLayout
from kvmove.move.sharedfile import SharedFile

__all__ = ["HostFacts", "HostMemory", "HostPool"]


class HostPool:
    """Host blocks: `num_blocks` runs of `block_bytes`, one after the other.

    1. Built: mapped, and pinned when it serves a CUDA device. Block i is `pool.blocks[i]`. With `background`, only
       the first `ready_blocks` may be used yet.
    2. In use: each mover over it holds it until that mover is closed.
    3. Closed: unpinned. Closing while a mover holds it is refused.

    A pool with a `name` is shared: one process creates it, others `attach`, all see the same bytes, and each pins them
    for its own device. Closing the creator's pool, or the end of its process, removes the name; who has the pool open
    keeps it. After a crash the file stays in /dev/shm until a pool of that name is created again. To leave nothing
    behind whatever happens, call `unlink()` once all have attached. What one process may write while another reads is
    theirs to agree on: movers order their own copies only.

    Attributes:
        blocks: torch uint8 (num_blocks, block_bytes) on the CPU, over the pool's memory.
        address, device_address: where block 0 begins, for the host and for kernels.
        piece_ends: addresses of the ends of its registrations; a copy must not cross one.
        pinned: whether the pool is pinned, at least its ready blocks.
        closed: whether `close()` was called.
    """

    def __init__(
        self,
        num_blocks: int,
        block_bytes: int,
        *,
        device: torch.device | str = "cpu",
        name: str | None = None,
        background: bool = False,
        pageable: bool = False,
    ) -> None:
        """Allocate a pool for blocks of `block_bytes` that a mover on `device` will read and write.

        Args:
            name: create a shared pool, that other processes of this user attach to by this name (letters, digits,
                `.`, `_` and `-`).
            background: return when the first piece (256 MiB, as a rule) is ready, and go on in a thread.
            pageable: do not pin, also for a CUDA device. Kernels cannot read such a pool in place.

        Raises:
            RecordError: a size is not positive, `block_bytes` is no multiple of 16, or the name cannot be one.
            Refused: the name is in use.
            PinningError: there is not enough memory, or it cannot be pinned; nothing is left behind.
        """
        if num_blocks < 1 or block_bytes < 1 or block_bytes % 16:
            raise RecordError(
                f"host pool: {num_blocks} blocks of {block_bytes} bytes; at least one block is needed, "
                "of a multiple of 16 bytes (CacheLayout.host_block_bytes)"
            )
        file = None if name is None else SharedFile.create(name, num_blocks, block_bytes)
        self._set_up(num_blocks, block_bytes, torch.device(device), file, background=background, pageable=pageable)

    @classmethod
    def attach(
        cls,
        name: str,
        *,
        device: torch.device | str = "cpu",
        num_blocks: int | None = None,
        block_bytes: int | None = None,
        timeout_s: float = 0.0,
        background: bool = False,
        pageable: bool = False,
    ) -> HostPool:
        """The shared pool `name` that another process created, with its sizes.

        Args:
            num_blocks, block_bytes: what the sizes have to be, where they are known.
            timeout_s: how long to wait for the creator, seconds.
            background, pageable: as for the constructor, for this process alone.

        Raises:
            RecordError: the name cannot be one.
            Refused: no such pool within `timeout_s`, a crashed run left it, the sizes differ, or the file is no pool.
            PinningError: it cannot be pinned; nothing stays pinned in this process.
        """
        file = SharedFile.attach(name, timeout_s)
        wanted = (num_blocks or file.num_blocks, block_bytes or file.block_bytes)
        if wanted != (file.num_blocks, file.block_bytes):
            file.close()
            raise Refused(
                f"the host pool {file.path} has {file.num_blocks} blocks of {file.block_bytes} bytes, and "
                f"{wanted[0]} of {wanted[1]} are expected; do all processes have the same model and settings?"
            )
        pool = cls.__new__(cls)
        pool._set_up(*wanted, torch.device(device), file, background=background, pageable=pageable)
        return pool

    @classmethod
    def for_layout(
        cls,
        layout: CacheLayout,
        num_blocks: int,
        *,
        name: str | None = None,
        background: bool = False,
        pageable: bool = False,
    ) -> HostPool:
        """A pool of `num_blocks` blocks as `layout` needs them. Takes and raises what the constructor does."""
        return cls(
            num_blocks,
            layout.host_block_bytes,
            device=layout.device,
            name=name,
            background=background,
            pageable=pageable,
        )

    def _set_up(
        self,
        num_blocks: int,
        block_bytes: int,
        device: torch.device,
        file: SharedFile | None,
        *,
        background: bool,
        pageable: bool,
    ) -> None:
        self.num_blocks, self.block_bytes = num_blocks, block_bytes
        self.closed = False
        self.pinned = device.type == "cuda" and not pageable
        self._file = file
        # Pieces end on block boundaries, so that no block lies in two, and on OS pages, which registration owns.
        unit = math.lcm(block_bytes, mmap.PAGESIZE)
        try:
            self._memory = HostMemory(
                num_blocks * block_bytes,
                pinned=self.pinned,
                chunk_bytes=max(1, hostmemory.REGISTER_BYTES // unit) * unit,
                device=device,
                file=file,
                # A shared pool is touched in any case: memory that runs out later would be a signal and not an error.
                touched=device.type == "cuda" or file is not None or background,
                background=background,
            )
            if file is not None:
                file.announce()
        except BaseException:
            if file is not None:
                file.close()
            raise
        self._pieces = self._memory.pieces
        self.address, self.device_address = self._memory.address, self._memory.device_address
        self.piece_ends = self._memory.piece_ends
        self.blocks = torch.from_numpy(self._memory.array).view(num_blocks, block_bytes)

    @property
    def num_bytes(self) -> int:
        return self.num_blocks * self.block_bytes

    @property
    def path(self) -> str | None:
        """The file of a shared pool; None where it is not shared."""
        return None if self._file is None else self._file.path

    @property
    def ready_blocks(self) -> int:
        """How many leading blocks may be used now: all, unless the pool is still being pinned in the background.

        Raises:
            PinningError: pinning failed in the background. Close the movers of the pool, and the pool.
        """
        self._pieces.raise_failure()
        return self._pieces.ready_bytes // self.block_bytes

    def wait_ready(self, timeout_s: float | None = None) -> bool:
        """Block until all blocks are ready; False when `timeout_s` seconds passed before.

        Raises:
            PinningError: pinning failed. What had been pinned is released when no mover holds the pool.
            Refused: the pool was closed.
        """
        done = self._pieces.wait(timeout_s)
        if self.closed:
            raise Refused("this host pool was closed before all its blocks were ready")
        return done

    def facts(self) -> HostFacts:
        """What the pool asked the system for and got: pinning, huge pages, NUMA node, bytes."""
        return self._memory.facts()

    def unlink(self) -> None:
        """Remove a shared pool's name now, so that no crash can leave it behind. Nobody new can attach.

        Raises:
            Refused: the pool is not shared.
        """
        if self._file is None:
            raise Refused("this host pool has no name to remove: it is not shared")
        self._file.unlink()

    def hold(self, holder: object) -> None:
        """Keep the pool open until `holder` releases it.

        Raises:
            Refused: it is closed.
            PinningError: pinning failed in the background.
        """
        if self.closed:
            raise Refused("this host pool is closed; make a new one")
        self._pieces.hold(id(holder))

    def release(self, holder: object) -> None:
        """End a `hold`. Releasing twice is harmless."""
        self._pieces.release(id(holder))

    def close(self) -> None:
        """Stop pinning and unpin the memory; its creator also removes a shared pool's name. Harmless when closed.

        Raises:
            Refused: a mover still uses the pool.
        """
        if self._pieces.num_holders:
            raise Refused(f"{self._pieces.num_holders} open mover(s) use this host pool; close them first")
        self.closed = True
        self._memory.close()
        if self._file is not None:
            self._file.close()

    def __enter__(self) -> HostPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
