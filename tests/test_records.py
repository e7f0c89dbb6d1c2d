"""Records keep their promises: frozen, picklable, in range."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest
from hypothesis import given

from kvmove import (
    Action,
    Decision,
    Demotion,
    Hit,
    JobKind,
    Lane,
    Load,
    Part,
    RecordError,
    Result,
    StepPlan,
    StepState,
    Store,
    schema,
)
from kvmove.testing import hits, steps

HIT = Hit(request="r", bytes=4096, tokens=64, blocks=4, prompt_tokens=100, cached_tokens=20, compute_tokens=16)
STEP = StepState(budget_bytes=10, budget_remaining_bytes=5)
DECISION = Decision(
    request="r", action=Action.ASYNC, asked=Action.SYNC, rule=0, blocks=4, tokens=64, bytes=4096, policy_hash="x",
    demotion=Demotion.OVER_BUDGET,
)  # fmt: skip
PLAN = StepPlan(
    step=1, decisions=(DECISION,), sync_loads=(), async_loads=(Load(1, [2], [3]),), stores=(Store(2, [3], [4]),),
    budget_bytes=10, sync_bytes=0,
)  # fmt: skip


PARTS = [Part(0, [7, 2], [5, 6, 9], 2), Part(1, [4], [6])]


@pytest.mark.parametrize(
    "record",
    [
        HIT, STEP, DECISION, PLAN, Load(1, [2, 3], [4, 5], "expedited"), Store(1, [2], [3]), PARTS[0],
        Load.of_parts(1, PARTS, "expedited"), Store.of_parts(2, PARTS),
    ],
)  # fmt: skip
def test_a_record_survives_pickling_and_cannot_be_changed(record: object) -> None:
    """Engines send records between processes."""
    assert pickle.loads(pickle.dumps(record)) == record
    name = next(iter(type(record).__dataclass_fields__))  # type: ignore[attr-defined]
    with pytest.raises(FrozenInstanceError):
        setattr(record, name, 0)


def test_a_transfer_of_one_part_is_that_of_its_arrays() -> None:
    """Both ways to make it give equal records; with several parts there is no one pair of arrays."""
    load = Load.of_parts(1, [Part(0, [2, 3], [4, 5])], "expedited")
    assert load == Load(1, [2, 3], [4, 5], "expedited")
    assert load != Load(1, [2, 3], [5, 4], "expedited")
    assert (load.src_blocks.tolist(), load.dst_slots.tolist()) == ([2, 3], [4, 5])
    store = Store.of_parts(1, [Part(0, [2, 3], [4, 4])])
    assert store == Store(1, [4, 4], [2, 3])
    assert (store.dst_blocks.tolist(), store.src_slots.tolist()) == ([2, 3], [4, 4])
    with pytest.raises(RecordError, match="load 3 has 2 parts; read its `parts`"):
        _ = Load.of_parts(3, PARTS).dst_slots
    with pytest.raises(RecordError, match="store 4 has 2 parts"):
        _ = Store.of_parts(4, PARTS).dst_blocks


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Part(-1, [0], [0]), "part: group is -1; an int of at least 0"),
        (lambda: Part(0, [0], [0], 0.5), "part: first is 0.5"),
        (lambda: Part(1, [], [0]), "part of group 1: nothing to move"),
        (lambda: Part(1, [0], []), "part of group 1: nothing to move"),
        (lambda: Part(1, [0, 1], [0]), "part of group 1: 2 host blocks for 1 slots"),
        (lambda: Part(2, [0], [3, -4]), "part of group 2: slots holds -4"),
        (lambda: Part(2, [-1], [3]), "part of group 2: blocks holds -1"),
        (lambda: Part(2, [[1]], [3]), r"part of group 2: blocks has shape \(1, 1\)"),
        (lambda: Load.of_parts(1, []), "load 1: nothing to move"),
        (lambda: Store.of_parts(1, []), "store 1: nothing to move"),
        (lambda: Load.of_parts(-1, PARTS), "load: job is -1"),
        (lambda: Load.of_parts(1, [([0], [0])]), "load 1: a Part is needed"),
        (lambda: Load.of_parts(1, [Part(2, [0], [3, 3])]), "load 1: a part of group 2 names slot 3 twice"),
        (lambda: Store.of_parts(1, [Part(2, [5, 5], [0, 1])]), "store 1: a part of group 2 names host block 5 twice"),
    ],
)
def test_a_part_out_of_range_is_refused(make: Callable[[], object], message: str) -> None:
    """What needs no layout is checked where the record is made."""
    with pytest.raises(RecordError, match=message):
        make()


def test_a_part_keeps_its_own_indices() -> None:
    """The caller's buffer may change, the record's arrays may not."""
    slots = np.array([5, 6])
    part = Part(0, [1], slots)
    slots[:] = 9
    assert part.slots.tolist() == [5, 6]
    assert (part.top_block, part.top_slot) == (1, 6)
    with pytest.raises(ValueError, match="read-only"):
        part.blocks[0] = 5


@given(hits(), steps())
def test_the_strategies_draw_what_the_schema_admits(hit: Hit, step: StepState) -> None:
    """Every drawn record could be built, so it is in range; attributes are those of the schema."""
    assert all(hasattr(hit, v.attribute) for v in schema.HIT)
    assert all(hasattr(step, v.attribute) for v in schema.STEP)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bytes": 0}, r"hit: bytes is 0, outside \[1, "),
        ({"bytes": 4096.0}, "bytes is 4096.0; an int is needed"),
        ({"bytes": True}, "bytes is True; an int is needed"),
        ({"load_time_ns": -1}, "load_time_ns is -1"),
        ({"load_time_ns": 0.5}, "an int or None is needed"),
        ({"waited_ns": None}, "waited_ns is None; an int is needed"),
        ({"compute_tokens": 17}, "is not prompt_tokens 100"),
        ({"blocks": 65}, "65 blocks for 64 tokens"),
        ({"bytes": 1 << 40}, "counted for one GPU"),
    ],
)
def test_a_hit_out_of_range_is_refused(change: dict[str, object], message: str) -> None:
    """What the checker relies on is checked where the record is made."""
    with pytest.raises(RecordError, match=message):
        replace(HIT, **change)  # type: ignore[arg-type]


def test_a_step_or_plan_over_its_budget_is_refused() -> None:
    """The budget's rule holds in the records themselves."""
    with pytest.raises(RecordError, match="more than budget_bytes"):
        StepState(budget_bytes=1, budget_remaining_bytes=2)
    with pytest.raises(RecordError, match="11 sync bytes exceed the budget 10"):
        replace(PLAN, sync_bytes=11)


def test_a_decision_says_why_it_is_not_what_the_policy_asked() -> None:
    """Action and demotion agree, and only loads have blocks."""
    with pytest.raises(RecordError, match="demotion None"):
        replace(DECISION, demotion=None)
    with pytest.raises(RecordError, match="0 blocks to load"):
        replace(DECISION, blocks=0)


@pytest.mark.parametrize("change", [{"job": -1}, {"bytes": -5}, {"kind": "x"}, {"lane": "fast"}, {"elapsed_ns": -1}])
def test_a_result_out_of_range_is_refused(change: dict[str, object]) -> None:
    """Results come from workers in other processes."""
    good = Result(job=1, kind=JobKind.LOAD, path="direct", lane=Lane.BULK, blocks=1, bytes=2, elapsed_ns=None)
    with pytest.raises(RecordError, match="result"):
        replace(good, **change)  # type: ignore[arg-type]


@pytest.mark.parametrize("change", [{"step": -1}, {"budget_bytes": -1, "sync_bytes": -5}])
def test_a_plan_out_of_range_is_refused(change: dict[str, object]) -> None:
    """Counts are never negative."""
    with pytest.raises(RecordError, match="step plan"):
        replace(PLAN, **change)  # type: ignore[arg-type]


def test_attributes_carry_the_unit_where_the_name_does_not() -> None:
    """A policy writes `load_time`; a record says `load_time_ns`."""
    names = {v.name: v.attribute for v in schema.VARIABLES}
    assert names["load_time"] == "load_time_ns"
    assert names["budget_remaining"] == "budget_remaining_bytes"
    assert (names["bytes"], names["inflight_bytes"], names["tokens"]) == ("bytes", "inflight_bytes", "tokens")
