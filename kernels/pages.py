"""Copy pages between host blocks and GPU slots, every page of every block in one launch.

A cache's pages are cut into *segments* of at most one tile row. The segment table says for each where it
is; the kernels walk the pairs (block, segment) in tiles of ROWS segments x COLUMNS words, so that a tile
holds many small pages or a part of a large one, and a program has about the same number of bytes in
flight for any page size.

    segment table, int64 (4, segments)          example: 2 pages of 20 KiB, tile rows of 16 KiB
      0  address of the segment in slot 0       page 0: [0, 16 KiB) and [16 KiB, 20 KiB)
      1  bytes from one slot to the next        page 1: the same, 4 segments in all
      2  offset in the host block, bytes
      3  words (of the layout's word size)      2048, 512, 2048, 512 words of 8 bytes

All addresses are int64 numbers: the host pool is passed by its device alias, which need not be its host
address, and indices are read in place from pinned memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import triton
import triton.language as tl

from kvmove.errors import Refused

# A program keeps NUM_STAGES tiles in flight. With 8 x 16 KiB, two programs saturate PCIe Gen5 x16 on an H200 with pages
# of 16 KiB and more, and four with pages of 4 KiB (0.91 of contiguous DMA; one tile at a time: 0.6 with four). One tile
# of 64 KiB needs four, and leaves a small load too few tiles to keep many programs busy. Four warps do what eight do.
# docs/benchmarking.md has the sweep.
TILE_BYTES = 16 << 10
ROW_BYTES = 16 << 10
NUM_WARPS = 4
NUM_STAGES = 8


@triton.jit
def _tile_addresses(
    first,
    total,
    host_address,
    host_block_bytes,
    blocks_address,
    slots_address,
    table_address,
    num_segments,
    ROWS: tl.constexpr,
    ALIGN: tl.constexpr,
):
    """Host and slot addresses of the ROWS pairs from `first`, and how many words each has (0 past the end).

    Pairs are counted in 32 bits: a 64-bit division takes some hundred instructions, and every thread does them.
    """
    row = first + tl.arange(0, ROWS)
    live = row < total
    pair = row // num_segments
    segment = row % num_segments
    table = table_address.to(tl.pointer_type(tl.int64)) + segment
    block = tl.load(blocks_address.to(tl.pointer_type(tl.int64)) + pair, mask=live, other=0)
    slot = tl.load(slots_address.to(tl.pointer_type(tl.int64)) + pair, mask=live, other=0)
    slot_base = tl.load(table, mask=live, other=0)
    slot_stride = tl.load(table + num_segments, mask=live, other=0)
    host_offset = tl.load(table + 2 * num_segments, mask=live, other=0)
    words = tl.load(table + 3 * num_segments, mask=live, other=0)
    return host_address + block * host_block_bytes + host_offset, slot_base + slot * slot_stride, words


@triton.jit
def _words(address, WORD: tl.constexpr, ALIGN: tl.constexpr, COLUMNS: tl.constexpr):
    """Pointers (ROWS, COLUMNS) to the words from `address` (ROWS,), with what the compiler needs to widen accesses."""
    start = tl.multiple_of(address[:, None].to(tl.pointer_type(WORD)), [1, ALIGN])
    return start + tl.arange(0, COLUMNS)[None, :]


@triton.jit
def _mask(words, WORD: tl.constexpr, ALIGN: tl.constexpr, COLUMNS: tl.constexpr, FULL: tl.constexpr):
    """Which words of a tile exist. Where every row is full, no column has to be compared."""
    if FULL:
        mask = (words > 0)[:, None]
    else:
        limit = tl.multiple_of(words[:, None], [1, ALIGN // (WORD.primitive_bitwidth // 8)])
        mask = tl.arange(0, COLUMNS)[None, :] < limit
    return mask


@triton.jit(do_not_specialize=["blocks_address", "slots_address", "num_blocks"])
def gather_pages(
    host_address,
    host_block_bytes,
    blocks_address,
    slots_address,
    num_blocks,
    table_address,
    num_segments,
    WORD: tl.constexpr,
    ALIGN: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    FULL: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Load: slot `slots[i]` receives host block `blocks[i]`. FULL says that every segment fills its row."""
    total = num_blocks * num_segments
    for first in tl.range(tl.program_id(0) * ROWS, total, tl.num_programs(0) * ROWS, num_stages=STAGES):
        host, slots, words = _tile_addresses(
            first, total, host_address, host_block_bytes, blocks_address, slots_address, table_address,
            num_segments, ROWS, ALIGN,
        )  # fmt: skip
        mask = _mask(words, WORD, ALIGN, COLUMNS, FULL)
        data = tl.load(_words(host, WORD, ALIGN, COLUMNS), mask=mask)
        tl.store(_words(slots, WORD, ALIGN, COLUMNS), data, mask=mask)


@triton.jit(do_not_specialize=["blocks_address", "slots_address", "num_blocks"])
def scatter_pages(
    host_address,
    host_block_bytes,
    blocks_address,
    slots_address,
    num_blocks,
    table_address,
    num_segments,
    WORD: tl.constexpr,
    ALIGN: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    FULL: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Store: host block `blocks[i]` receives slot `slots[i]`."""
    total = num_blocks * num_segments
    for first in tl.range(tl.program_id(0) * ROWS, total, tl.num_programs(0) * ROWS, num_stages=STAGES):
        host, slots, words = _tile_addresses(
            first, total, host_address, host_block_bytes, blocks_address, slots_address, table_address,
            num_segments, ROWS, ALIGN,
        )  # fmt: skip
        mask = _mask(words, WORD, ALIGN, COLUMNS, FULL)
        data = tl.load(_words(slots, WORD, ALIGN, COLUMNS), mask=mask)
        tl.store(_words(host, WORD, ALIGN, COLUMNS), data, mask=mask)


INTERPRETED = not isinstance(gather_pages, triton.JITFunction)


def refuse_device(device_type: str) -> None:
    """Raise Refused where kernels cannot run on a device of this type (`cpu` or `cuda`) in this process."""
    if device_type == "cpu" and not INTERPRETED:
        raise Refused("kernels need a CUDA device, or TRITON_INTERPRET=1 set before kvmove is imported")
    if device_type == "cuda" and INTERPRETED:
        raise Refused("TRITON_INTERPRET=1 is set: interpreted kernels cannot reach CUDA memory; unset it")


@dataclass(frozen=True, slots=True)
class TileShape:
    """How a kernel walks a cache: the element type it moves and the tile. Chosen once per layout."""

    word_bytes: int  # 8, 4, 2 or 1: the widest element that every address and size allows
    align_bytes: int  # what every address and size is a multiple of; 16 lets a thread move 16 bytes at once
    rows: int
    columns: int  # words in a row
    stages: int  # tiles in flight

    @classmethod
    def for_pages(cls, align_bytes: int, largest_page_bytes: int) -> TileShape:
        """The tile for pages whose addresses and sizes are multiples of `align_bytes` (a power of two, <= 16)."""
        word_bytes = min(align_bytes, 8)
        columns = triton.next_power_of_2(min(largest_page_bytes, ROW_BYTES) // word_bytes)
        # Words below 8 bytes keep the number of words in the tile, not its bytes: registers hold words.
        rows = max(1, TILE_BYTES // 8 // columns)
        # A stage also holds five numbers a row in shared memory; with tiny pages those alone would overflow it.
        stages = NUM_STAGES if rows <= 128 else 1
        return cls(word_bytes, align_bytes, rows, columns, stages)

    @property
    def row_bytes(self) -> int:
        return self.columns * self.word_bytes

    def num_tiles(self, num_blocks: int, num_segments: int) -> int:
        """Tiles of a copy; more programs than that would have nothing to do."""
        return -(-num_blocks * num_segments // self.rows)


_WORDS = {8: tl.int64, 4: tl.int32, 2: tl.int16, 1: tl.int8}

# Pairs of a launch stay below this, with room for the last step of a program's loop in 32 bits.
MAX_PAIRS = 1 << 30


class PageCopy:
    """Launches `gather_pages` or `scatter_pages` for one cache and one host pool.

    After the first launch of a kernel, later ones go straight to its compiled form: Triton's own lookup of it costs
    more than the rest of a launch. That is sound because nothing that Triton specialises on changes: addresses of
    indices and the number of blocks, which do change, are excluded above.
    """

    def __init__(
        self, *, host_address: int, host_block_bytes: int, table_address: int, num_segments: int, tile: TileShape,
        full: bool,
    ) -> None:  # fmt: skip
        """Keep what stays the same.

        Args:
            host_address: device address of host block 0.
            table_address: device address of the segment table, int64 (4, num_segments).
            full: every segment has `tile.columns` words, so that columns need no mask.
        """
        self._fixed = (host_address, host_block_bytes)
        self._table = (table_address, num_segments)
        self._constants = (_WORDS[tile.word_bytes], tile.align_bytes, tile.rows, tile.columns, full, tile.stages)
        self._tile = tile
        self._compiled: dict[Any, Any] = {}

    def __call__(
        self, kernel: Any, blocks_address: int, slots_address: int, num_blocks: int, *, programs: int, stream: int
    ) -> None:
        """Start `kernel` on a CUDA stream (its handle; ignored by the interpreter). The caller checked every index.

        Args:
            blocks_address: device address of int64 (num_blocks,), host block of pair i; must not change until
                the kernel has ended. `slots_address`: the same for the slots.
            programs: how many may run at once; fewer are launched when there is less work.
        """
        num_segments = self._table[1]
        most = MAX_PAIRS // num_segments
        for done in range(0, max(1, num_blocks), most):
            count = min(num_blocks - done, most)
            grid = (max(1, min(programs, self._tile.num_tiles(count, num_segments))), 1, 1)
            at = 8 * done
            args = (*self._fixed, blocks_address + at, slots_address + at, count, *self._table, *self._constants)
            compiled = self._compiled.get(kernel)
            if compiled is None:
                self._compiled[kernel] = kernel[grid](*args, num_warps=NUM_WARPS)  # None under the interpreter
            else:
                compiled[grid](*args, stream=stream)
