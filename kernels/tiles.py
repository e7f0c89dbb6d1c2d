"""Copy host blocks in contiguous tiles, whatever the size of the pages in them.

`kvmove.kernels.pages` walks pages, so a tile holds as many bytes as the pages fill of its rows: with 656-byte pages
rows of 1 KiB are two thirds full, and with 18 KiB pages every other row holds 2 KiB. Here a tile is TILE_BYTES in a row
of a host block; the *row table* says where each row of GRAIN bytes of it belongs in the cache:

    row table, int64 (2, rows)                  GRAIN: the largest power of two that divides every page
      0  address of the row in slot 0, or 0 where the host block has padding
      1  bytes from one slot to the next

A TMA descriptor over the host pool moves a tile at the word of a single thread, and no registers hold what is in
flight: one or two programs saturate the link. It needs a GRAIN of 16 bytes or more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

TILE_BYTES = 16 << 10
NUM_WARPS = 4
NUM_STAGES = 8
# A descriptor's box has at most 256 entries a dimension, and its rows are at least 64 bytes here: a tile is one box.
LEAST_BOX_BYTES = TILE_BYTES // 256
MOST_BOX_BYTES = 1 << 10


@triton.jit
def _cache_words(table_address, num_rows, tile, slot, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Pointers (ROWS, COLUMNS) to the cache's words of a tile, and which rows exist (ROWS, 1)."""
    table = table_address.to(tl.pointer_type(tl.int64)) + tile * ROWS + tl.arange(0, ROWS)
    base = tl.load(table)
    stride = tl.load(table + num_rows)
    start = (base + slot * stride)[:, None].to(tl.pointer_type(tl.int64))
    return tl.multiple_of(start, [1, 16]) + tl.arange(0, COLUMNS)[None, :], (base != 0)[:, None]


@triton.jit
def _pair(t, tiles, blocks_address, slots_address):
    """The tile's number in its block, and the block and slot it belongs to."""
    pair = t // tiles
    block = tl.load(blocks_address.to(tl.pointer_type(tl.int64)) + pair)
    slot = tl.load(slots_address.to(tl.pointer_type(tl.int64)) + pair)
    return t % tiles, block, slot


@triton.jit(do_not_specialize=["blocks_address", "slots_address", "num_blocks"])
def gather_tiles(
    host, blocks_address, slots_address, num_blocks, table_address, tiles,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, BOX: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Load: slot `slots[i]` receives host block `blocks[i]`.

    `host` describes the pool as int64 (positions, box rows of a block, words of a box row).
    """
    for t in tl.range(tl.program_id(0), num_blocks * tiles, tl.num_programs(0), num_stages=STAGES):
        tile, block, slot = _pair(t, tiles, blocks_address, slots_address)
        data = host.load([block.to(tl.int32), tile * BOX, 0])
        words, there = _cache_words(table_address, tiles * ROWS, tile, slot, ROWS, COLUMNS)
        tl.store(words, tl.reshape(data, (ROWS, COLUMNS)), mask=there)


@triton.jit(do_not_specialize=["blocks_address", "slots_address", "num_blocks"])
def scatter_tiles(
    host, blocks_address, slots_address, num_blocks, table_address, tiles,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, BOX: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Store: host block `blocks[i]` receives slot `slots[i]`. Boxes are written whole, past the block's end nothing."""
    for t in tl.range(tl.program_id(0), num_blocks * tiles, tl.num_programs(0), num_stages=STAGES):
        tile, block, slot = _pair(t, tiles, blocks_address, slots_address)
        words, there = _cache_words(table_address, tiles * ROWS, tile, slot, ROWS, COLUMNS)
        data = tl.load(words, mask=there)
        host.store([block.to(tl.int32), tile * BOX, 0], tl.reshape(data, (1, BOX, ROWS * COLUMNS // BOX)))


@dataclass(frozen=True, slots=True)
class TileGrid:
    """How a group's blocks are cut into tiles. Chosen once per layout."""

    grain_bytes: int  # bytes of a row of the row table
    tiles: int  # of a block
    box_bytes: int  # a row of a descriptor's box; 0 where no descriptor can be made
    stages: int  # tiles in flight

    @classmethod
    def of(cls, grain_bytes: int, block_bytes: int, unit_bytes: int) -> TileGrid:
        """The grid for pages that are multiples of `grain_bytes`, a power of two of at least 16.

        Args:
            block_bytes: from a block's first byte to its last, a multiple of 16. `unit_bytes`: see `Group`.
        """
        grain = min(grain_bytes, TILE_BYTES)
        all_three = block_bytes | unit_bytes | MOST_BOX_BYTES
        box = all_three & -all_three  # the largest power of two that divides all three
        # The row table is read in stages as well: 16 KiB of it for a tile in grains of 16 bytes.
        stages = NUM_STAGES if grain >= 64 else 4
        return cls(grain, -(-block_bytes // TILE_BYTES), box if box >= LEAST_BOX_BYTES else 0, stages)

    @property
    def rows(self) -> int:
        return TILE_BYTES // self.grain_bytes

    @property
    def columns(self) -> int:
        return self.grain_bytes // 8


class PoolMemory:
    """What a descriptor asks of a tensor, for memory that torch has no tensor of: the pool by its device alias."""

    def __init__(self, address: int, dtype: Any) -> None:
        self._address, self.dtype = address, dtype

    def data_ptr(self) -> int:
        return self._address


class TileCopy:
    """Launches the kernels above for one group and one host pool. The launch makes the descriptor, on the host."""

    def __init__(
        self, *, host: Any, num_positions: int, unit_bytes: int, block_bytes: int, table_address: int, grid: TileGrid
    ) -> None:  # fmt: skip
        """Keep what stays the same.

        Args:
            host: an int64 tensor or `PoolMemory` that begins at position 0 of the pool.
            num_positions: how many there are; `unit_bytes`: how far the next one is.
            block_bytes: of a block, a multiple of the grid's `box_bytes`.
            table_address: device address of the row table, int64 (2, tiles * rows).
        """
        words, box_rows = grid.box_bytes // 8, TILE_BYTES // grid.box_bytes
        shape, strides = [num_positions, block_bytes // grid.box_bytes, words], [unit_bytes // 8, words, 1]
        self._host = TensorDescriptor(host, shape, strides, [1, box_rows, words])
        self._grid = grid
        self._table = (table_address, grid.tiles)
        self._constants = (grid.rows, grid.columns, box_rows, grid.stages)
        self._compiled: dict[Any, Any] = {}

    def __call__(
        self, kernel: Any, blocks_address: int, slots_address: int, num_blocks: int, *, programs: int, stream: int
    ) -> None:
        """Start `kernel`; as `kvmove.kernels.pages.PageCopy`."""
        most = (1 << 30) // self._grid.tiles  # tiles are counted in 32 bits
        for done in range(0, max(1, num_blocks), most):
            count = min(num_blocks - done, most)
            grid = (max(1, min(programs, count * self._grid.tiles)), 1, 1)
            at = 8 * done
            args = (self._host, blocks_address + at, slots_address + at, count, *self._table, *self._constants)
            compiled = self._compiled.get(kernel)
            if compiled is None:
                self._compiled[kernel] = kernel[grid](*args, num_warps=NUM_WARPS)  # None under the interpreter
            else:
                compiled[grid](*args, stream=stream)
