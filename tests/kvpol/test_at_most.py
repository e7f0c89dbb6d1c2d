"""`at most`: where a hit is cut, at the edges, and what the step's ledger makes of several parts."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from kvmove import (
    Action,
    BlockSizes,
    Decision,
    Demotion,
    GroupBytes,
    Hit,
    Lane,
    Policy,
    Refused,
    StepScheduler,
    StepState,
    schema,
)
from kvmove.kvpol.evaluate import Evaluator
from kvmove.testing.corpus import random_hit

LEFT = Policy.parse("sync at most budget_remaining\ndefer")
WAITING = Policy.parse("sync at most waiting * 1tok\ndefer")
WHOLE, NONE = "whole", "none"


def a_hit(
    blocks: int, num_bytes: int, *, tokens: int | None = None, request: str = "r", compute: int = 9, **more: Any
) -> Hit:
    tokens = 16 * blocks if tokens is None else tokens
    return Hit(
        request=request, bytes=num_bytes, tokens=tokens, blocks=blocks, prompt_tokens=tokens + compute,
        cached_tokens=0, compute_tokens=compute, **more,
    )  # fmt: skip


def step_with(left: int) -> StepState:
    return StepState(budget_bytes=max(left, 0), budget_remaining_bytes=max(left, 0))


def cut(policy: Policy, hit: Hit, step: StepState) -> int | str:
    """How many leading blocks the first rule takes, by each implementation; that it takes all, or does not match."""
    verdict = policy.decide(hit, step)
    assert Evaluator(policy.analysis.file, policy.program.params).verdict(hit, step) == verdict
    told: list[int] = []
    policy.decide_batch([hit], step, lambda _, verdict: told.append(verdict))
    assert told == [verdict]
    if verdict & 255:
        assert verdict == 1
        return NONE
    return verdict >> 8 or WHOLE


THIRDS = a_hit(3, 10)  # prefixes of 4, 7 and 10 bytes: they round up
PLAIN = BlockSizes(16, (GroupBytes(100),))
TAIL = a_hit(4, 330, tokens=53, sizes=PLAIN)  # the last block is partial
WINDOW = a_hit(4, 430, sizes=BlockSizes(16, (GroupBytes(100), GroupBytes(50, window_bytes=50))))
# A cut inside a block moved its window: the whole weighs 401, three blocks 450, so that a part can weigh more.
MOVED = a_hit(4, 401, tokens=60, sizes=BlockSizes(16, (GroupBytes(100), GroupBytes(150, window_bytes=150))))
CHUNKS = a_hit(6, 600, sizes=PLAIN, cuts=(2, 4))
LARGEST = a_hit(schema.MAX_COUNT, schema.MAX_COUNT, tokens=schema.MAX_COUNT, compute=0)
UNCUT = a_hit(6, 600, sizes=PLAIN, cuts=())


@pytest.mark.parametrize(
    ("hit", "left", "expected"),
    [
        (a_hit(4, 400), 0, NONE),
        (a_hit(4, 400), 99, NONE),
        (a_hit(4, 400), 100, 1),
        (a_hit(4, 400), 199, 1),
        (a_hit(4, 400), 200, 2),
        (a_hit(4, 400), 201, 2),
        (a_hit(4, 400), 399, 3),
        (a_hit(4, 400), 400, WHOLE),
        (a_hit(4, 400), schema.MAX_BYTES, WHOLE),
        (a_hit(1, 400), 399, NONE),
        (a_hit(1, 400), 400, WHOLE),
        (a_hit(1, 1), 0, NONE),
        (a_hit(1, 1), 1, WHOLE),
        (a_hit(2, 1), 0, NONE),
        (a_hit(2, 1), 1, WHOLE),
        (THIRDS, 3, NONE),
        (THIRDS, 4, 1),
        (THIRDS, 6, 1),
        (THIRDS, 7, 2),
        (THIRDS, 9, 2),
        (THIRDS, 10, WHOLE),
        (TAIL, 299, 2),
        (TAIL, 300, 3),
        (TAIL, 329, 3),
        (TAIL, 330, WHOLE),
        (WINDOW, 149, NONE),
        (WINDOW, 150, 1),
        (WINDOW, 250, 2),
        (WINDOW, 350, 3),
        (WINDOW, 430, WHOLE),
        (MOVED, 400, 2),
        (MOVED, 401, WHOLE),
        (CHUNKS, 199, NONE),
        (CHUNKS, 200, 2),
        (CHUNKS, 399, 2),
        (CHUNKS, 400, 4),
        (CHUNKS, 599, 4),
        (CHUNKS, 600, WHOLE),
        (UNCUT, 599, NONE),
        (UNCUT, 600, WHOLE),
        (
            a_hit(schema.MAX_COUNT, schema.MAX_COUNT, tokens=schema.MAX_COUNT, compute=0),
            schema.MAX_COUNT - 1,
            2**24 - 1,
        ),
    ],
)
def test_the_most_leading_blocks_that_fit_are_taken(hit: Hit, left: int, expected: int | str) -> None:
    """At a block's boundary and one byte to each side, where blocks are equal, partial, windowed or in chunks."""
    assert cut(LEFT, hit, step_with(left)) == expected


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        ("0tok", NONE),
        ("15tok", NONE),
        ("16tok", 1),
        ("47tok", 2),
        ("48tok", 3),
        ("52tok", 3),
        ("53tok", WHOLE),
        ("-1tok", NONE),
        ("0B", NONE),
        ("-1B", NONE),
        ("100B - 200B", NONE),
        ("201B / 2", 1),
        ("399B / 2", 1),
        ("400B / 2", 2),
        ("bytes / 2", 1),
        ("tokens / 2", 1),
        ("bytes", WHOLE),
        ("bytes - 1B", 3),
        ("tokens * 99%", 3),
        ("bytes * (load_time / 1s)", NONE),
        ("clamp(bytes, 0B, 300B)", 3),
    ],
)
def test_limits_are_amounts_of_bytes_or_tokens(limit: str, expected: int | str) -> None:
    """Fractions round down, what is negative or unknown lets nothing through."""
    assert cut(Policy.parse(f"sync at most {limit}\ndefer"), TAIL, step_with(0)) == expected


def test_the_largest_prefix_within_the_limit_is_taken() -> None:
    """Compared with trying every place at which the hit can be cut."""
    rng = Random(7)
    taken = set()
    for _ in range(2_000):
        hit = random_hit(rng, max_bytes=1 << 20)
        if hit.blocks > 64:
            continue
        places = [k for k in range(1, hit.blocks) if hit.cuts is None or k in hit.cuts]
        # The number of waiting requests stands for an amount of tokens, which no variable of the step is in.
        for policy, prefix in ((LEFT, hit.prefix_bytes), (WAITING, hit.prefix_tokens)):
            limit = max(0, prefix(rng.randint(1, hit.blocks)) + rng.choice((-1, 0, 1)))
            expected: int | str = WHOLE
            if prefix(hit.blocks) > limit:
                expected = max((k for k in places if prefix(k) <= limit), default=NONE)
            step = StepState(budget_bytes=limit, budget_remaining_bytes=limit, waiting=min(limit, schema.MAX_COUNT))
            assert cut(policy, hit, step) == expected, (hit, limit)
            taken.add((policy.hash, expected if isinstance(expected, str) else "part"))
    assert len(taken) == 2 * 3


def test_a_rule_that_lets_nothing_through_passes_to_the_next() -> None:
    """Whose limit is its own; and a condition that does not hold comes before any limit."""
    policy = Policy.parse("sync at most 99B\nasync at most 200B if blocks > 4\nasync at most 300B\nrecompute")
    verdicts = [policy.decide(a_hit(n, 100 * n), step_with(0)) for n in (1, 3, 4, 5)]
    assert verdicts == [2, 2, 3 << 8 | 2, 2 << 8 | 1]
    assert policy.decide(a_hit(1, 301), step_with(0)) == 3


# Within the scheduler: what is asked for goes through the guard rails, and the ledger is debited with the part.


def decided(scheduler: StepScheduler, *hits: Hit) -> list[tuple[Action, int, int]]:
    """Action, blocks and bytes of each decision, which single decisions and a batch agree on."""
    decisions = [scheduler.decide(hit) for hit in hits]
    for hit in hits:
        scheduler.refund(hit.request)
    assert scheduler.decide_batch(hits) == decisions
    scheduler.check_integrity()
    return [(d.action, d.blocks, d.bytes) for d in decisions]


def begun(text: str, budget: int) -> StepScheduler:
    scheduler = StepScheduler(Policy.parse(text), budget_bytes=budget)
    scheduler.begin_step()
    return scheduler


SYNC, ASYNC = Action.SYNC, Action.ASYNC


def test_the_parts_of_several_hits_fill_the_budget_to_the_byte() -> None:
    """Each sees what those before it took; with nothing left, a block of one byte does not fit."""
    scheduler = begun("sync at most budget_remaining\nasync", 1000)
    hits = [
        a_hit(4, 400, request="whole"),
        a_hit(8, 800, request="six of eight"),
        a_hit(4, 4, request="nothing is left"),
        a_hit(1, 1, request="nor for one byte"),
    ]
    assert decided(scheduler, *hits) == [(SYNC, 4, 400), (SYNC, 6, 600), (ASYNC, 4, 4), (ASYNC, 1, 1)]
    for hit in hits:
        scheduler.confirm(hit.request)
    plan = scheduler.end_step()
    assert (plan.sync_bytes, plan.budget_bytes) == (1000, 1000)
    statistics = scheduler.statistics()
    assert (statistics.partial_loads, statistics.budget_used_bytes) == (1, 1000)


def test_what_a_part_leaves_is_for_a_smaller_block() -> None:
    """300 bytes in blocks of 100 leave 50 of 350, which one of five blocks of 50 fills."""
    scheduler = begun("sync at most budget_remaining\nasync", 350)
    assert decided(scheduler, a_hit(9, 900, request="a"), a_hit(5, 250, request="b"), a_hit(1, 1, request="c")) == [
        (SYNC, 3, 300), (SYNC, 1, 50), (ASYNC, 1, 1),
    ]  # fmt: skip


def test_a_part_that_is_refunded_returns_its_own_bytes() -> None:
    """Not those of the whole hit."""
    scheduler = begun("sync at most budget_remaining\nasync", 250)
    assert scheduler.decide(a_hit(4, 400, request="a")).bytes == 200
    scheduler.refund("a")
    assert scheduler.decide(a_hit(1, 250, request="b")).action is SYNC
    scheduler.check_integrity()


def test_a_budget_of_nothing_lets_no_part_through() -> None:
    """The rule does not match, so that nothing is demoted."""
    scheduler = begun("sync at most budget_remaining\ndefer", 0)
    decision = scheduler.decide(a_hit(4, 400))
    assert (decision.action, decision.demotion, decision.partial) == (Action.DEFER, None, False)


def demotion(decision: Decision) -> tuple[Action, Demotion | None, int, bool]:
    return decision.action, decision.demotion, decision.blocks, decision.partial


def test_a_part_beyond_the_budget_is_that_part_in_the_background() -> None:
    """The policy asked for three blocks; two would have fitted, but nobody asked for two."""
    scheduler = begun("sync at most 300B", 299)
    assert demotion(scheduler.decide(a_hit(4, 400))) == (ASYNC, Demotion.OVER_BUDGET, 3, True)


def test_a_part_leaves_something_to_compute() -> None:
    """Of a hit that is the whole prompt, a part may load inside the step; all of it may not."""
    scheduler = begun("sync at most budget_remaining", 400)
    assert demotion(scheduler.decide(a_hit(4, 400, compute=0))) == (ASYNC, Demotion.NOTHING_TO_COMPUTE, 4, False)
    assert demotion(scheduler.decide(a_hit(4, 401, compute=0))) == (SYNC, None, 3, True)


def test_a_part_is_admitted_with_as_many_blocks() -> None:
    """In the lane of its action; an engine that brings all blocks is told how many."""
    scheduler = begun("sync at most 200B if blocks == 4\nasync at most 200B", 1 << 20)
    sync = scheduler.decide(a_hit(4, 400, request="a"))
    background = scheduler.decide(a_hit(5, 500, request="b"))
    with pytest.raises(Refused, match="4 blocks for a, but its decision has 2"):
        scheduler.admit("a", range(4), range(4))
    loads = [scheduler.admit(d.request, range(d.blocks), range(8, 8 + d.blocks)) for d in (sync, background)]
    assert [(load.lane, len(load.src_blocks)) for load in loads] == [(Lane.EXPEDITED, 2), (Lane.BULK, 2)]
    plan = scheduler.end_step()
    assert (plan.sync_bytes, scheduler.statistics().admitted_bytes[Lane.BULK]) == (200, 200)
    assert all((d.partial, d.tokens) == (True, 32) for d in plan.decisions)
