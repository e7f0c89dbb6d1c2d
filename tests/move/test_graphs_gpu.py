"""CUDA graphs: a capture in one thread survives loads in another, and nothing of kvmove gets into a graph."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
import torch

from kvmove import CacheLayout, HostPool, Load, Mover, Store, load_batch, store_batch
from kvmove.errors import Refused
from kvmove.testing.copies import randomize

pytestmark = pytest.mark.gpu


@pytest.fixture
def mover() -> Iterator[Mover]:
    layout = CacheLayout.from_tensors([torch.zeros(2, 8, 4096, dtype=torch.uint8, device="cuda")], block_dim=1)
    with HostPool.for_layout(layout, 8) as pool, Mover(layout, pool) as made:
        randomize(layout, pool, 1)
        torch.cuda.synchronize()
        yield made


def test_a_capture_survives_loads_of_another_thread(mover: Mover) -> None:
    """Recording, waiting and asking what has ended do not invalidate a capture in the default, strictest mode."""
    wrong: list[BaseException] = []

    def load() -> None:
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                for job in range(3):
                    load_batch(mover, [Load(job, [2 + job], [3 + job], "bulk")])
                    while not mover.finished():
                        time.sleep(0.001)
        except BaseException as error:
            wrong.append(error)

    counter, graph = torch.zeros(8, device="cuda"), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        counter += 1
        thread = threading.Thread(target=load)
        thread.start()
        thread.join()
    graph.replay()
    torch.cuda.synchronize()
    assert not wrong
    assert counter.tolist() == [1.0] * 8
    for job in range(3):
        got = torch.cat([page[3 + job].cpu() for page in mover.layout.page_views()])
        assert torch.equal(got, mover.pool.blocks[2 + job])


def test_calls_on_a_stream_under_capture_are_refused(mover: Mover) -> None:
    """The message says what to do, the capture goes on, and the mover stays usable."""
    counter, graph = torch.zeros(8, device="cuda"), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        counter += 1
        with pytest.raises(Refused, match="load_batch was called while the current stream is being captured"):
            load_batch(mover, [Load(1, [1], [2])])
        with pytest.raises(Refused, match="store_batch was called"):
            store_batch(mover, [Store(1, [1], [2])])
        with pytest.raises(Refused, match="wait_for_slots was called"):
            mover.wait_for_slots([1])
    graph.replay()
    load_batch(mover, [Load(1, [1], [2])]).wait()
    torch.cuda.synchronize()
    assert counter.tolist() == [1.0] * 8
    assert [r.job for r in mover.finished()] == [1]
