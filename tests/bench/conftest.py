"""A plan so small that every section runs on the CPU, with interpreted kernels."""

from __future__ import annotations

import pytest

from kvmove.bench.plan import Gemms, Plan, Shape


@pytest.fixture
def tiny() -> Plan:
    """Pages of odd and regular sizes, and a few of everything."""
    return Plan(
        shapes=(Shape(48, 3), Shape(64, 4), Shape(1024, 2)),
        sizes_bytes=(1024, 4096),
        pairs=1,
        small_pairs=4,
        runs=2,
        small_loads=(("M3", Shape(128, 4), 2, 1.3), ("M4", Shape(64, 4), 2, 1.45)),
        caller_shape=Shape(64, 3),
        caller_blocks=((2, 20.0), (4, 100.0)),
        bulk_shape=Shape(64, 4),
        bulk_blocks=8,
        urgent_blocks=1,
        traffic_blocks=4,
        gemms=(Gemms("8^3", 8, 8, 8, 2, 3.0),),
        overlap_shape=Shape(64, 4),
        overlap_blocks=4,
        overlap_bulk_blocks=4,
        overlap_edge=8,
        program_shapes=(Shape(48, 3), Shape(64, 4)),
        program_bytes=1024,
        program_counts=(1, 2),
        peers=((Shape(128, 4), 1024),),
    )
