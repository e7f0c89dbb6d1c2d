"""How much is measured. Imports no torch, so that the command line can look at it first."""

from __future__ import annotations

from dataclasses import dataclass, replace

MIB = 1 << 20
KIB = 1 << 10


@dataclass(frozen=True, slots=True)
class Shape:
    """A cache's blocks: `num_pages` pages of `page_bytes` each, every page in a tensor of its own."""

    page_bytes: int
    num_pages: int

    @property
    def block_bytes(self) -> int:
        return self.page_bytes * self.num_pages

    @classmethod
    def for_page(cls, page_bytes: int) -> Shape:
        """A block as models have them: K and V of 48 layers; 61 latent pages where the size is one of those; and
        64 pages where blocks would otherwise be very large or very small."""
        if page_bytes % 1152 == 0 and page_bytes > 1152:
            return cls(page_bytes, 61)
        return cls(page_bytes, 64 if page_bytes < 4 * KIB or page_bytes >= 64 * KIB else 96)


@dataclass(frozen=True, slots=True)
class Gemms:
    """A stretch of equal matrix products, (m, k) x (k, n) in bf16, one after the other."""

    name: str
    m: int
    k: int
    n: int
    count: int
    most_points: float  # M8: percentage points that a bulk load may slow them down beyond contiguous DMA


@dataclass(frozen=True, slots=True)
class Plan:
    """Sizes and repetitions.

    Attributes:
        shapes, sizes_bytes: what `bandwidth` loads and stores.
        pairs: repetitions of a large copy in a run; small ones have `small_pairs`.
        runs: of each promised figure.
        small_loads: M3 and M4: name, shape, blocks, most times the DMA's wall time.
        caller_blocks: M9: blocks, most microseconds; of `caller_shape`.
        bulk_shape, bulk_blocks: the bulk load of `interference`; `urgent_blocks` more are loaded meanwhile.
        traffic_blocks: blocks of each of the bulk loads that follow each other beside matrix products.
        overlap_shape, overlap_blocks: the load of `overlap`, a layer a page; `overlap_bulk_blocks` are loaded beside;
            `overlap_edge`: of the square matrices whose products make a step.
        program_shapes, program_bytes, program_counts: what `programs` copies, with each number of programs.
        peers: shape, bytes: what other techniques are compared on.
    """

    shapes: tuple[Shape, ...]
    sizes_bytes: tuple[int, ...]
    pairs: int
    small_pairs: int
    runs: int
    small_loads: tuple[tuple[str, Shape, int, float], ...]
    caller_shape: Shape
    caller_blocks: tuple[tuple[int, float], ...]
    bulk_shape: Shape
    bulk_blocks: int
    urgent_blocks: int
    traffic_blocks: int
    gemms: tuple[Gemms, ...]
    overlap_shape: Shape
    overlap_blocks: int
    overlap_bulk_blocks: int
    overlap_edge: int
    program_shapes: tuple[Shape, ...]
    program_bytes: int
    program_counts: tuple[int, ...]
    peers: tuple[tuple[Shape, int], ...]


FULL = Plan(
    # Blocks of 1 KiB pages in two sizes: what a block costs shows in one, what a page costs in the other.
    shapes=(
        Shape.for_page(576),
        Shape.for_page(656),
        Shape.for_page(1 * KIB),
        Shape(1 * KIB, 384),
        Shape.for_page(1152),
        Shape.for_page(4 * KIB),
        Shape.for_page(8 * KIB),
        Shape.for_page(16 * KIB),
        Shape.for_page(18432),
        Shape.for_page(32 * KIB),
        Shape.for_page(72 * KIB),
        Shape.for_page(128 * KIB),
    ),
    sizes_bytes=(96 * MIB, 768 * MIB),
    pairs=5,
    small_pairs=60,
    runs=3,
    small_loads=(
        ("M3", Shape(32 * KIB, 48), 4, 1.30),
        ("M4", Shape(8 * KIB, 64), 4, 1.45),
    ),
    caller_shape=Shape(16 * KIB, 96),
    caller_blocks=((4, 20.0), (512, 100.0)),
    bulk_shape=Shape(16 * KIB, 64),
    bulk_blocks=1024,
    urgent_blocks=4,
    traffic_blocks=512,
    gemms=(
        Gemms("8192^3", 8192, 8192, 8192, 60, 3.0),
        Gemms("64x8192x8192", 64, 8192, 8192, 1500, 6.0),
    ),
    # 32 layers, 24 MiB; products of about 50 us on an H200.
    overlap_shape=Shape(64 * KIB, 32),
    overlap_blocks=12,
    overlap_bulk_blocks=512,
    overlap_edge=2560,
    program_shapes=tuple(Shape.for_page(n) for n in (576, 656, 1152, 4 * KIB, 16 * KIB, 18432)),
    program_bytes=192 * MIB,
    program_counts=(1, 2, 4, 8, 16),
    peers=(
        (Shape(32 * KIB, 48), 6 * MIB),
        (Shape(32 * KIB, 48), 96 * MIB),
        (Shape(8 * KIB, 64), 2 * MIB),
        (Shape(8 * KIB, 64), 24 * MIB),
        (Shape(72 * KIB, 61), 96 * MIB),
    ),
)

QUICK = replace(
    FULL,
    shapes=(Shape.for_page(576), Shape(1 * KIB, 384), Shape.for_page(16 * KIB), Shape.for_page(128 * KIB)),
    pairs=3,
    small_pairs=20,
    runs=1,
    program_shapes=(Shape.for_page(656), Shape.for_page(16 * KIB)),
    program_counts=(1, 4),
    peers=FULL.peers[:3],
)
