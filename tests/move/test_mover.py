"""What the mover accepts, refuses and reports, and what it does when something goes wrong."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from kvmove import (
    CacheLayout,
    HostPool,
    Lane,
    Load,
    MoveFailed,
    Mover,
    MoverClosed,
    RecordError,
    Refused,
    Store,
    load_batch,
    store_batch,
)
from kvmove.move.queues import HostMark, HostQueues, Mark, Queue, Work
from kvmove.records import JobKind
from kvmove.testing.copies import contents, randomize

SLOTS, BLOCKS = 8, 6


@pytest.fixture
def layout() -> CacheLayout:
    return CacheLayout.from_tensors([torch.zeros(2, SLOTS, 4, 2, 8, dtype=torch.bfloat16)], block_dim=1)


@pytest.fixture
def pool(layout: CacheLayout) -> Iterator[HostPool]:
    with HostPool.for_layout(layout, BLOCKS) as pool:
        randomize(layout, pool, 1)
        yield pool


@pytest.fixture
def mover(layout: CacheLayout, pool: HostPool) -> Iterator[Mover]:
    with Mover(layout, pool) as mover:
        yield mover


def test_the_kernels_serve_where_triton_runs(mover: Mover) -> None:
    """Under the interpreter, and on a GPU, the best path is the direct one."""
    assert mover.path == "direct"


def test_every_job_is_reported_once_with_its_bytes(mover: Mover) -> None:
    """Results of both lanes and directions come once each, and the ids are free again."""
    for _ in range(2):
        load_batch(mover, [Load(1, [0, 1], [2, 3], "expedited"), Load(2, [2], [4], "bulk")]).wait()
        store_batch(mover, [Store(3, [2], [5])])
        results = {r.job: r for r in mover.finished()}
        assert sorted(results) == [1, 2, 3]
        assert mover.finished() == []
    assert results[1].bytes == 2 * mover.layout.block_bytes
    assert (results[1].lane, results[2].lane) == (Lane.EXPEDITED, Lane.BULK)
    assert (results[2].kind, results[3].kind) == (JobKind.LOAD, JobKind.STORE)
    assert all(r.error is None and r.path == "direct" and (r.elapsed_ns or 0) > 0 for r in results.values())


def test_expedited_loads_of_a_call_share_one_launch(
    layout: CacheLayout, pool: HostPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three expedited loads are one submission; each bulk load is one of its own."""
    launched: list[Queue] = []
    queues = HostQueues()
    submit = queues.submit
    monkeypatch.setattr(queues, "submit", lambda queue, *rest: (launched.append(queue), submit(queue, *rest))[1])
    with Mover(layout, pool, queues=queues) as mover:
        loads = [Load(i, [i], [i], "expedited") for i in range(3)] + [Load(9, [3], [3]), Load(8, [4], [4])]
        load_batch(mover, loads)
        assert sorted(r.job for r in mover.finished()) == [0, 1, 2, 8, 9]
    assert launched == [Queue.EXPEDITED, Queue.BULK, Queue.BULK]
    assert np.array_equal(contents(layout)[:5], pool.blocks.numpy()[:5, : layout.block_bytes])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: load_batch(m, [Load(1, [0], [SLOTS])]), r"load 1: slot 8 \(position 0\) is outside \[0, 8\)"),
        (lambda m: load_batch(m, [Load(1, [0, BLOCKS], [0, 1])]), r"host block 6 \(position 1\)"),
        (lambda m: load_batch(m, [Load(1, [0], [2**62])]), "slot 4611686018427387904"),
        (lambda m: load_batch(m, [Load(1, [0], [3]), Load(2, [1], [3])]), "by job 1 and job 2"),
        (lambda m: load_batch(m, [Load(1, [0], [0]), Load(1, [1], [1])]), "job 1 is given twice"),
        (lambda m: load_batch(m, [Load(7, [0], [0])]), "job 7 is in use"),
        (lambda m: load_batch(m, [Store(1, [0], [0])]), "a Load is needed"),
        (lambda m: store_batch(m, [Load(1, [0], [0])]), "a Store is needed"),
        (lambda m: store_batch(m, [Store(1, [0], [2]), Store(2, [1], [2])]), "host block 2 is written twice"),
        (lambda m: store_batch(m, [Store(1, [0], [BLOCKS])]), "host block 6"),
        (lambda m: store_batch(m, [Store(1, [99], [0])]), "slot 99"),
        (lambda m: m.wait_for_slots([-1]), "slot -1"),
        (lambda m: m.wait_for_slots([0, SLOTS]), "slot 8"),
        (lambda m: m.set_programs("bulk", 0), "at least 1"),
        (lambda m: m.set_programs("bulk", 1.5), "1.5 programs"),
        (lambda m: m.wait_for_slots([1.5]), "dtype float64"),
        (lambda m: load_batch(m, Load(1, [0], [0])), "a sequence of Load is needed"),
        (lambda m: load_batch(m, 5), "a sequence of Load is needed"),
    ],
)
def test_a_bad_call_is_refused_and_changes_nothing(mover: Mover, call: object, message: str) -> None:
    """Nothing is moved, no id is taken, and the message names the value and the limit."""
    load_batch(mover, [Load(7, [0], [0])])
    cache, blocks = contents(mover.layout), mover.pool.blocks.clone()
    with pytest.raises(Refused, match=message):
        call(mover)  # type: ignore[operator]
    assert np.array_equal(contents(mover.layout), cache)
    assert torch.equal(mover.pool.blocks, blocks)
    assert [r.job for r in mover.finished()] == [7]
    load_batch(mover, [Load(1, [0], [0])])


def test_a_record_cannot_be_built_wrong() -> None:
    """Lengths, kinds and lanes are checked where the record is made."""
    with pytest.raises(RecordError, match="2 in src_blocks, 1 in dst_slots"):
        Load(1, [0, 1], [0])
    with pytest.raises(RecordError, match="float64"):
        Load(1, [0.5], [0])
    with pytest.raises(RecordError, match="nothing to move"):
        Load(1, [], [])
    with pytest.raises(RecordError, match="dst_slots names 3 twice"):
        Load(1, [0, 1, 2], [3, 4, 3])
    with pytest.raises(RecordError, match="dst_blocks names 2 twice"):
        Store(1, [0, 1], [2, 2])
    with pytest.raises(RecordError, match="src_blocks holds -1"):
        Load(1, [0, -1], [0, 1])
    with pytest.raises(RecordError, match="dst_slots holds -7"):
        Load(1, [0, 1], [0, -7])
    with pytest.raises(RecordError, match="no lane 'fast'; choose from: expedited, bulk"):
        Load(1, [0], [0], "fast")
    with pytest.raises(RecordError, match="holds 9223372036854775808"):
        Load(1, [1 << 63], [0])


def test_a_callers_array_may_change_after_the_call(mover: Mover) -> None:
    """A load keeps its own copy of the indices, and it cannot be written."""
    blocks = np.array([1, 2])
    load = Load(1, blocks, [0, 1])
    blocks[:] = 99
    assert load.src_blocks.tolist() == [1, 2]
    with pytest.raises(ValueError, match="read-only"):
        load.src_blocks[0] = 5


def test_an_unknown_path_is_refused(layout: CacheLayout, pool: HostPool) -> None:
    """Naming a path never falls back to another."""
    with pytest.raises(Refused, match="no path called 'warp'; choose from: direct, tma, staged, engine, reference"):
        Mover(layout, pool, path="warp")


def test_a_pool_of_another_layout_is_refused(layout: CacheLayout) -> None:
    """A host block has to have the layout's size."""
    with HostPool(4, 48) as pool, pytest.raises(Refused, match="48 bytes and the layout needs 256"):
        Mover(layout, pool)


def test_a_closed_mover_refuses_and_its_pool_can_be_closed(layout: CacheLayout) -> None:
    """Closing is idempotent, keeps results, and lets go of the pool, which a mover holds open until then."""
    pool = HostPool.for_layout(layout, BLOCKS)
    mover = Mover(layout, pool)
    load_batch(mover, [Load(1, [0], [0])])
    with pytest.raises(Refused, match=r"1 open mover\(s\)"):
        pool.close()
    mover.close()
    mover.close()
    assert [r.job for r in mover.finished()] == [1]
    with pytest.raises(MoverClosed, match="close\\(\\) was called"):
        load_batch(mover, [Load(2, [0], [0])])
    pool.close()
    with pytest.raises(Refused, match="host pool is closed"):
        Mover(layout, pool)


class FailingQueues(HostQueues):
    """Submitting to `refuses` raises; marks of `breaks` report a device error."""

    def __init__(self, refuses: Queue | None = None, breaks: Queue | None = None) -> None:
        self.refuses, self.breaks = refuses, breaks

    def submit(self, queue: Queue, after: Iterable[object], work: Work) -> HostMark:
        if queue is self.refuses:
            raise RuntimeError("out of resources")
        mark = super().submit(queue, (), work)
        return BrokenMark() if queue is self.breaks else mark


class BrokenMark(HostMark):
    def done(self) -> bool:
        raise RuntimeError("an illegal memory access was encountered\nmore lines")

    def synchronize(self) -> None:
        self.done()


def test_a_launch_that_is_refused_fails_its_jobs_and_leaves_the_mover_usable(
    layout: CacheLayout, pool: HostPool
) -> None:
    """`wait()` raises for the step's loads, `finished()` reports the failure once, other jobs are unharmed."""
    queues = FailingQueues(refuses=Queue.EXPEDITED)
    with Mover(layout, pool, queues=queues) as mover:
        ticket = load_batch(mover, [Load(1, [0], [0], "expedited"), Load(2, [1], [1], "bulk")])
        with pytest.raises(MoveFailed, match=r"load 1 failed: could not be launched \(out of resources\)") as failure:
            ticket.wait()
        assert failure.value.job == 1
        with pytest.raises(MoveFailed):
            ticket.check()
        errors = {r.job: (r.error, r.bytes) for r in mover.finished()}
        assert errors == {1: ("could not be launched (out of resources)", 0), 2: (None, layout.block_bytes)}
        queues.refuses = None
        load_batch(mover, [Load(1, [0], [0], "expedited")]).wait()
        assert [r.error for r in mover.finished()] == [None]


def test_a_wait_is_for_every_job_of_a_call_also_where_one_has_failed(layout: CacheLayout, pool: HostPool) -> None:
    """Who catches the failure and goes on must not run ahead of the other stores."""
    queues = FailingQueues(refuses=Queue.STORE)
    waited: list[Mark] = []
    with Mover(layout, pool, queues=queues) as mover:
        right = queues.submit

        def submit_the_second(queue: Queue, after: Any, work: Any) -> Mark:
            queues.refuses = None if next(turns) else Queue.STORE
            return right(queue, after, work)

        turns = iter([0, 1, 1])  # the first store, what waits for the queue after it, the second store
        queues.submit = submit_the_second  # type: ignore[method-assign]
        queues.wait = waited.append  # type: ignore[method-assign]
        ticket = store_batch(mover, [Store(1, [0], [0]), Store(2, [1], [1])])
        with pytest.raises(MoveFailed, match="store 1 failed"):
            ticket.wait()
        assert len(waited) == 1


def test_a_failure_after_submission_is_raised_at_the_output_sync_and_closes_the_mover(
    layout: CacheLayout, pool: HostPool
) -> None:
    """A CUDA error that stays fails every job in flight; nothing can be submitted afterwards."""
    mover = Mover(layout, pool, queues=FailingQueues(breaks=Queue.EXPEDITED))
    ticket = load_batch(mover, [Load(1, [0], [0], "expedited")])
    load_batch(mover, [Load(2, [1], [1], "bulk")])
    ticket.wait()
    with pytest.raises(MoveFailed, match="load 1 failed: an illegal memory access"):
        ticket.check()
    assert {r.job: r.error for r in mover.finished()}.keys() == {1, 2}
    with pytest.raises(MoverClosed, match="a CUDA error closed it: an illegal memory access was encountered"):
        load_batch(mover, [Load(3, [0], [0])])
    mover.close()


def test_a_strict_load_raises_in_wait(layout: CacheLayout, pool: HostPool) -> None:
    """With `strict`, the failure shows before the forward pass."""
    mover = Mover(layout, pool, queues=FailingQueues(breaks=Queue.EXPEDITED))
    ticket = load_batch(mover, [Load(1, [0], [0], "expedited")], strict=True)
    with pytest.raises(MoveFailed):
        ticket.wait()


def test_a_failed_bulk_load_comes_from_finished(layout: CacheLayout, pool: HostPool) -> None:
    """Nobody waits for a bulk load in the step, so its failure is in its result."""
    mover = Mover(layout, pool, queues=FailingQueues(breaks=Queue.BULK))
    ticket = load_batch(mover, [Load(1, [0], [0], "bulk")])
    ticket.wait()
    ticket.check()
    (result,) = mover.finished()
    assert result.error == "an illegal memory access was encountered"


def test_a_generator_of_loads_is_moved_whole(mover: Mover) -> None:
    """What can be gone through only once is not half used up by the checks."""
    load_batch(mover, (Load(i, [i], [i], "expedited") for i in range(3))).wait()
    assert [r.job for r in mover.finished()] == [0, 1, 2]
    assert np.array_equal(contents(mover.layout)[:3], mover.pool.blocks.numpy()[:3, : mover.layout.block_bytes])


def test_blocks_that_are_not_pinned_yet_are_refused(mover: Mover, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pool that is still being pinned serves its leading blocks."""
    monkeypatch.setattr(HostPool, "ready_blocks", property(lambda pool: 3))
    load_batch(mover, [Load(1, [2], [0])])
    with pytest.raises(
        Refused, match=r"host block 4 is not pinned yet, 3 of 6 are; use those, or call pool.wait_ready"
    ):
        load_batch(mover, [Load(2, [4], [0])])
    with pytest.raises(Refused, match=r"host block 6 \(position 0\) is outside"):
        load_batch(mover, [Load(2, [6], [0])])


@pytest.mark.parametrize("capacity", [0, -3, 1.5])
def test_an_impossible_index_capacity_is_refused(layout: CacheLayout, pool: HostPool, capacity: object) -> None:
    """The message names the value and what would do."""
    with pytest.raises(Refused, match=r"index_capacity is .*at least 2"):
        Mover(layout, pool, index_capacity=capacity)  # type: ignore[arg-type]


def test_an_empty_call_is_fine(mover: Mover) -> None:
    """A step without loads needs no special case."""
    ticket = load_batch(mover, [])
    ticket.wait()
    ticket.check()
    store_batch(mover, []).wait()
    assert mover.finished() == []
