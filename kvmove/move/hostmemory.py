"""Memory that a CUDA device reads in place: mapped, put near the device, touched and pinned, and what was got of it."""

from __future__ import annotations

import weakref
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from kvmove.errors import PinningError
from kvmove.move import cudart, numa, touching
from kvmove.move.mapping import Mapping
from kvmove.move.pieces import Pieces
from kvmove.move.sharedfile import SharedFile

# One registration of a large range stalls every other CUDA call of the process while it runs.
REGISTER_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class HostFacts:
    """What a pool asked the system for and what it got, at one moment. Texts are for people."""

    num_bytes: int  # of the blocks
    mapped_bytes: int  # of the blocks, in whole OS pages
    header_bytes: int  # beside them, in a shared pool's file
    path: str | None  # of that file
    ready_bytes: int  # from the beginning
    ready_s: float | None  # from the start until all was ready; None before
    pinning: str
    pinned_pieces: int  # registrations
    touching: str
    huge_pages: str
    huge_bytes: int | None  # of the mapped bytes, in huge pages; None where the system does not say
    numa: str
    numa_node: int | None  # of the device; None where it is unknown


class HostMemory:
    """Memory of exactly the OS pages that `num_bytes` needs, pinned for a CUDA device on request.

    torch's own pinned allocator rounds to powers of two (65 GiB becomes 128), so this maps and registers itself.

    Attributes:
        array: the memory, uint8 (num_bytes,).
        address: where it begins; `device_address` is the same place as kernels see it.
        piece_ends: where each registration ends, ascending, int64 (registrations,); empty where nothing is pinned.
        pieces: how much of it is ready.
    """

    def __init__(
        self,
        num_bytes: int,
        *,
        pinned: bool,
        chunk_bytes: int = REGISTER_BYTES,
        device: torch.device | None = None,
        file: SharedFile | None = None,
        touched: bool = False,
        background: bool = False,
    ) -> None:
        """Map the memory and pin it in pieces of `chunk_bytes`.

        Args:
            pinned: whether to pin it for `device`, by default the current CUDA device.
            file: map this file's blocks instead of memory of this process alone.
            touched: give it its pages now, by several threads; else when they are first used or pinned.
            background: return when the first piece is ready.

        Raises:
            PinningError: the system or the driver refused; everything is released again.
        """
        self.num_bytes = num_bytes
        try:
            self._mapping = Mapping(num_bytes, None if file is None else file.fd)
        except OSError as error:
            raise PinningError(
                f"cannot map {num_bytes} bytes of host memory: {error.strerror}; ask for a smaller pool, "
                "or raise the limit of address space (ulimit -v) or of committed memory (vm.overcommit_memory)",
                asked_bytes=num_bytes,
                pinned_bytes=0,
            ) from error
        self.array, self.address = self._mapping.array, self._mapping.address
        self._pinned, self._touched, self._file = pinned, touched, file
        gpu = cudart.index_of(device or torch.device("cuda")) if pinned else None
        self._huge_pages = self._mapping.ask_for_huge_pages() if touched else "not asked"
        self._numa_node, self._numa = self._place(gpu)
        path = None if file is None else file.path
        self.pieces = Pieces(self._mapping, chunk_bytes, gpu=gpu, touched=touched, file=path)
        # The mapping goes with its last view. Were it unmapped while registered, the driver would refuse whatever is
        # mapped there next; so memory that nobody closed unpins first. A process that ends only stops pinning: its
        # kernels may still run.
        weakref.finalize(self, _close, self.pieces, self._mapping.buffer).atexit = False
        weakref.finalize(self, Pieces.stop, self.pieces)
        try:
            self.pieces.start(background=background)
        except BaseException:
            self.close()
            if file is None or file.created:
                self._mapping.empty()
            raise
        ends = self.pieces.ends if pinned else []
        self.piece_ends: NDArray[np.int64] = np.array(ends, dtype=np.int64) + self.address
        self.device_address = self.pieces.device_address

    def _place(self, gpu: int | None) -> tuple[int | None, str]:
        if gpu is None or not self._touched:
            return None, "not asked"
        bus_id = cudart.pci_bus_id(gpu)
        node = None if bus_id is None else numa.node_of(bus_id)
        if node is None:
            return None, "unknown"
        if self._file is not None and not self._file.created:
            return node, "the creator's choice"  # one choice a file, whoever touches it
        return node, numa.prefer(self._mapping, node)

    def facts(self) -> HostFacts:
        """What was asked for and got. Where huge pages are on, may take seconds for hundreds of GiB."""
        pieces, file = self.pieces, self._file
        if pieces.failure is not None:
            pinning = f"failed: {pieces.failure}"
        elif not self._pinned:
            pinning = "pageable"
        else:
            pinning = "pinned" if pieces.all_ready else "in the background"
        how = "by the kernel" if touching.kernel_populates() else "by reading"
        threads = touching.num_threads(self.num_bytes)
        return HostFacts(
            num_bytes=self.num_bytes,
            mapped_bytes=self._mapping.mapped_bytes,
            header_bytes=0 if file is None else file.header_bytes,
            path=None if file is None else file.path,
            ready_bytes=pieces.ready_bytes,
            ready_s=pieces.ready_s,
            pinning=pinning,
            pinned_pieces=pieces.pinned_pieces,
            touching=f"{how}, {threads} threads" if self._touched else "at first use",
            huge_pages=self._huge_pages,
            huge_bytes=self._mapping.huge_bytes(),
            numa=self._numa,
            numa_node=self._numa_node,
        )

    def close(self) -> None:
        """Stop pinning, and unpin. The memory itself goes when the last view of it does."""
        self.pieces.close()


def _close(pieces: Pieces, _kept_until_then: object) -> None:
    pieces.close()
