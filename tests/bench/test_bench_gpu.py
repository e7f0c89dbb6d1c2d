"""The sections on a real device, small: kernels compile, streams and events are used right, checks are green."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvmove.bench.device import CudaDevice
from kvmove.bench.plan import KIB, MIB, Gemms, Plan, Shape
from kvmove.bench.run import run
from kvmove.bench.sections import SECTIONS
from kvmove.bench.session import Session

pytestmark = pytest.mark.gpu


def test_every_section_runs_on_the_device(tiny: Plan) -> None:
    """Nothing fails, and no check is red; a bulk load that is long enough covers what it disturbs."""
    plan = replace(
        tiny,
        shapes=(Shape(656, 3), Shape(1 * KIB, 8), Shape(32 * KIB, 4)),
        sizes_bytes=(1 * MIB, 48 * MIB),
        bulk_shape=Shape(16 * KIB, 64),
        bulk_blocks=512,
        traffic_blocks=128,
        gemms=(Gemms("1024^3", 1024, 1024, 1024, 200, 3.0),),
        peers=((Shape(128, 4), 1024), (Shape(8 * KIB, 5), 1 * MIB)),
    )
    report = run(SECTIONS, Session(CudaDevice(), plan))
    assert report.failures == ()
    assert {r.labels["section"] for r in report.rows} == set(SECTIONS)
    assert "engine" in {r.labels.get("path") for r in report.rows}
