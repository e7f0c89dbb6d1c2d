"""Which groups and chunks a layout and a mover accept, and what they say about those they refuse."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch

from kvmove import CacheLayout, HostPool, LayoutError, Load, Mover, Part, Refused, Store, load_batch, store_batch
from kvmove.testing.copies import check_loads, contents, randomize


def bytes_of(slots: int, *shape: int) -> torch.Tensor:
    return torch.zeros(slots, *shape, dtype=torch.uint8)


def test_a_hybrid_model_has_a_group_for_each_block_table() -> None:
    """Full attention, a window and a state of other pages and types: slots, sizes and chunks are each group's own."""
    full = [torch.zeros(2, 9, 16, 4, 8, dtype=torch.bfloat16) for _ in range(2)]
    window = [torch.zeros(5, 2, 16, 4, 8, dtype=torch.bfloat16)]
    state = [torch.zeros(3, 7, 3, dtype=torch.bfloat16), torch.zeros(3, 50, dtype=torch.float32)]
    layout = CacheLayout.from_tensors(
        [*full, *window, *state], block_dim=[1, 1, 0, 0, 0], groups=[[0, 1], [2], [3, 4]], blocks_per_chunk=[2, 4, 1]
    )
    assert [g.num_slots for g in layout.groups] == [9, 5, 3]
    assert [[p.num_bytes for p in g.pages] for g in layout.groups] == [[1024] * 4, [2048], [42, 200]]
    assert [(g.block_bytes, g.sub_bytes) for g in layout.groups] == [(4096, 4096), (2048, 2048), (242, 256)]
    assert layout.host_block_bytes == 8192
    assert [g.unit_bytes for g in layout.groups] == [4096, 2048, 8192]
    assert [g.first_slot for g in layout.groups] == [0, 9, 14]
    assert [g.align_bytes for g in layout.groups] == [16, 16, 2]
    layout.groups[1].page_views()[0][4] = 7
    assert (window[0][4].view(torch.uint8) == 7).all()
    assert not any(t.any() for t in [*full, *state, window[0][:4]])


def test_without_groups_and_chunks_a_layout_is_its_only_group() -> None:
    """The names of one group are the layout's own, and a host block is one block."""
    layout = CacheLayout.from_tensors([bytes_of(5, 7)], block_dim=0)
    (group,) = layout.groups
    assert (layout.pages, layout.num_slots, layout.block_bytes, layout.num_pages) == (group.pages, 5, 7, 1)
    assert (layout.host_block_bytes, group.sub_bytes, group.unit_bytes, group.blocks_per_chunk) == (16, 16, 16, 1)


def test_with_several_groups_a_layout_asks_which() -> None:
    """One number for all groups would be right for none of them."""
    layout = CacheLayout.from_tensors([bytes_of(5, 7), bytes_of(4, 9)], block_dim=0, groups=[[0], [1]])
    names = ["pages", "num_pages", "num_slots", "block_bytes", "align_bytes"]
    calls: list[Callable[[], object]] = [lambda n=name: getattr(layout, n) for name in names]  # type: ignore[misc]
    for call in [*calls, layout.page_views]:
        with pytest.raises(LayoutError, match=r"2 groups; say which: layout.groups\[i\]"):
            call()


def test_positions_say_where_blocks_are_also_where_chunks_do_not_divide() -> None:
    """Chunks of 3 x 48 and 2 x 80 bytes in host blocks of 160: places are found in units that divide both."""
    layout = CacheLayout.from_tensors(
        [bytes_of(9, 40), bytes_of(9, 70)], block_dim=0, groups=[[0], [1]], blocks_per_chunk=[3, 2]
    )
    small, large = layout.groups
    assert (layout.host_block_bytes, small.unit_bytes, large.unit_bytes) == (160, 16, 80)
    at = small.positions(Part(0, [7, 2], [5, 6, 1, 0], 2))
    assert (at * 16).tolist() == [7 * 160 + 2 * 48, 2 * 160, 2 * 160 + 48, 2 * 160 + 96]
    chunks, places = small.chunks_and_places(at)
    assert (chunks.tolist(), places.tolist()) == ([7, 2, 2, 2], [2, 0, 1, 2])
    assert large.positions(Part(1, [4], [0, 1])).tolist() == [8, 9]


def test_groups_in_the_same_memory_count_as_one_space_of_slots() -> None:
    """One free list for all groups: the same tensors, or views of them of another type and page."""
    memory = bytes_of(6, 64)
    other = bytes_of(6, 32)
    layout = CacheLayout.from_tensors(
        [memory, memory.view(torch.int16)[:, 20:30], memory[:, :16], other],
        block_dim=0,
        groups=[[0], [3], [1, 2], [2]],
    )
    assert [g.first_slot for g in layout.groups] == [0, 6, 0, 0]
    assert layout.slots_together == 12
    side_by_side = CacheLayout.from_tensors([memory[:, :32], memory[:, 32:]], block_dim=0, groups=[[0], [1]])
    assert [g.first_slot for g in side_by_side.groups] == [0, 6]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"groups": []}, "no groups"),
        ({"groups": [[0, 1, 2], []]}, "group 1 has no tensors"),
        ({"groups": [[0, 1], [2, 3]]}, r"group 1 names tensor 3, outside \[0, 3\)"),
        ({"groups": [[0, 1], [-1]]}, r"group 1 names tensor -1, outside \[0, 3\)"),
        ({"groups": [[0], [1]]}, "tensor 2 is in no group"),
        ({"groups": [[0], [1, 2]]}, "tensor 2 has 4 slots and tensor 1 has 6; they share a block table"),
        ({"groups": [[0, 0, 1], [2]]}, "page 0 .* and page 1 .* overlap"),
        ({"block_dim": [0, 0]}, "2 values of block_dim for 3 tensors"),
        ({"block_dim": [0, 0, 2]}, "no dimension block_dim=2"),
        ({"blocks_per_chunk": [2, 2, 2]}, "3 values of blocks_per_chunk for 2 groups"),
        ({"blocks_per_chunk": [2, 0]}, "blocks_per_chunk is 0 for group 1"),
    ],
)
def test_groups_that_cannot_be_are_refused(change: dict[str, object], message: str) -> None:
    """The error names the group, the tensor and the reason."""
    right = {"block_dim": 0, "groups": [[0, 1], [2]], "blocks_per_chunk": 1}
    with pytest.raises(LayoutError, match=message):
        CacheLayout.from_tensors([bytes_of(6, 8), bytes_of(6, 8), bytes_of(4, 8)], **{**right, **change})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "second",
    [
        pytest.param(lambda m: m[1:], id="shifted by a slot"),
        pytest.param(lambda m: m[:4], id="fewer slots"),
        pytest.param(lambda m: m.view(3, 128), id="two slots as one"),
        pytest.param(lambda m: m.reshape(-1)[32:352].view(5, 64), id="shifted by half a slot"),
    ],
)
def test_groups_that_share_memory_otherwise_than_slot_by_slot_are_refused(
    second: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    """No order could be kept among slots of which one is a part of two others."""
    memory = bytes_of(6, 64)
    with pytest.raises(LayoutError, match=r"page 0 \(tensor 0\) of group 0 and page 0 \(tensor 1\) of group 1 overlap"):
        CacheLayout.from_tensors([memory, second(memory)], block_dim=0, groups=[[0], [1]])


@pytest.fixture
def mover() -> Iterator[Mover]:
    """Group 0: 8 slots, 2 places. Group 1: 4 slots, 1 place. Group 2: the memory of group 0, 3 places."""
    tensors = [bytes_of(8, 40), bytes_of(4, 90)]
    layout = CacheLayout.from_tensors(tensors, block_dim=0, groups=[[0], [1], [0]], blocks_per_chunk=[2, 1, 3])
    with HostPool.for_layout(layout, 6) as pool, Mover(layout, pool) as mover:
        randomize(layout, pool, 1)
        yield mover


def load(*parts: Part, job: int = 1) -> Load:
    return Load.of_parts(job, parts)


def store(*parts: Part, job: int = 1) -> Store:
    return Store.of_parts(job, parts)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: load_batch(m, [load(Part(3, [0], [0]))]), "load 1: there is no group 3; the cache has 3"),
        (lambda m: store_batch(m, [store(Part(7, [0], [0]))]), "store 1: there is no group 7"),
        (
            lambda m: load_batch(m, [load(Part(1, [0], [4]))]),
            r"load 1: group 1, slot 4 \(position 0\) is outside \[0, 4",
        ),
        (lambda m: load_batch(m, [load(Part(0, [6], [4, 5]))]), r"host block 6 \(position 0\) is outside \[0, 6\)"),
        (lambda m: store_batch(m, [store(Part(0, [0], [9]))]), "store 1: group 0, slot 9"),
        (lambda m: load_batch(m, [load(Part(0, [0], [0], 2))]), r"first is 2, outside \[0, 2\): .* 2 place\(s\)"),
        (lambda m: store_batch(m, [store(Part(1, [0], [0], 1))]), r"store 1: first is 1, outside \[0, 1\)"),
        (
            lambda m: load_batch(m, [load(Part(0, [0], [0, 1], 1))]),
            r"1 host block\(s\) for 2 slot\(s\) from place 1 on; a host block of group 0 has 2 place\(s\), so 2 are",
        ),
        (lambda m: load_batch(m, [Load(1, [0, 1], [0, 1])]), r"2 host block\(s\) for 2 slot\(s\) .* so 1 are needed"),
        (lambda m: store_batch(m, [store(Part(1, [0], [0, 1]))]), r"1 host block\(s\) for 2 slot\(s\) .* so 2 are"),
        (
            lambda m: load_batch(m, [load(Part(0, [0], [3]), Part(0, [1], [3]))]),
            "group 0, slot 3 is written .*by job 1;",
        ),
        (
            lambda m: load_batch(m, [load(Part(1, [0], [3])), load(Part(1, [2, 1], [2, 3]), job=2)]),
            "group 1, slot 3 is written twice in one call, by job 1 and job 2",
        ),
        (
            lambda m: load_batch(m, [load(Part(0, [0], [3])), load(Part(2, [1], [3]), job=2)]),
            "group 0, slot 3, the same memory in group 2, is written twice in one call, by job 1 and job 2",
        ),
        (
            lambda m: store_batch(m, [store(Part(0, [2, 5], [0, 1, 2], 1)), store(Part(0, [5], [3], 1), job=2)]),
            "place 1 of host block 5 is written twice in one call, by job 1 and job 2",
        ),
        (
            lambda m: store_batch(m, [store(Part(0, [2], [0])), store(Part(1, [4, 2], [0, 1]), job=2)]),
            "host block 2 is written in one call for group 0 by job 1 and for group 1 by job 2",
        ),
        (lambda m: m.wait_for_slots([0], 3), "wait_for_slots: there is no group 3; the cache has 3"),
        (lambda m: m.wait_for_slots([0], -1), "there is no group -1"),
        (lambda m: m.wait_for_slots([4], 1), r"slot 4 .* outside \[0, 4\)"),
    ],
)
def test_a_call_that_does_not_fit_the_groups_is_refused_and_changes_nothing(
    mover: Mover, call: Callable[[Mover], object], message: str
) -> None:
    """Nothing is moved, no id is taken, and the message names the job, the value and the limit."""
    cache, blocks = [contents(mover.layout, g) for g in range(3)], mover.pool.blocks.clone()
    with pytest.raises(Refused, match=message):
        call(mover)
    assert all(np.array_equal(contents(mover.layout, g), cache[g]) for g in range(3))
    assert torch.equal(mover.pool.blocks, blocks)
    assert mover.finished() == []
    check_loads(mover, [load(Part(0, [0], [0]))])


def test_results_count_the_blocks_and_bytes_of_each_group(mover: Mover) -> None:
    """A job's blocks are GPU blocks, and its bytes are those of their pages, without padding."""
    load_batch(mover, [load(Part(0, [1, 2], [3, 4, 5], 1), Part(1, [0, 3], [2, 0]))])
    (result,) = mover.finished()
    assert (result.blocks, result.bytes) == (5, 3 * 40 + 2 * 90)
