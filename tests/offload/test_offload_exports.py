"""What `kvmove.offload` offers, and that its scheduler side needs no torch."""

from __future__ import annotations

import subprocess
import sys

import pytest

import kvmove.offload

SCHEDULER_SIDE = """
import sys
from kvmove import Policy
from kvmove.offload import Group, HostTier, JobResult, OffloadScheduler
scheduler = OffloadScheduler(Policy.parse("sync"), HostTier(8), [Group(block_bytes=1)], block_tokens=4)
for name in "rs":
    scheduler.on_request(name, ["k"], 5)
    scheduler.begin_step()
    if scheduler.lookup(name, 0).blocks:
        assert scheduler.decide(name).action == "sync"
    scheduler.update_after_alloc(name, [[0, 1]])
    plan = scheduler.build_step()
    scheduler.on_results([JobResult(job, 0) for job in plan.jobs])
    scheduler.computed(name, 5)
    scheduler.finish(name)
    scheduler.begin_step()
    plan = scheduler.build_step()
    scheduler.on_results([JobResult(job, 0) for job in plan.jobs])
assert scheduler.statistics().hits == 1
wrong = [m for m in ("torch", "triton") if m in sys.modules]
assert not wrong, wrong
"""


def test_the_scheduler_side_imports_no_torch() -> None:
    """A request is stored, another loads it, and neither torch nor triton was imported."""
    subprocess.run([sys.executable, "-c", SCHEDULER_SIDE], check=True)


def test_every_public_name_exists_and_is_documented() -> None:
    """Each of `kvmove.offload.__all__` says what it is."""
    for name in kvmove.offload.__all__:
        assert getattr(kvmove.offload, name).__doc__, name
    assert set(kvmove.offload.__all__) <= set(dir(kvmove.offload))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = kvmove.offload.nothing
