"""With the policy `budgeted`, an engine behaves step for step as with vLLM's own connector and the same budget."""

from __future__ import annotations

import pytest
from histories import TEXTS, Event, delays, do, histories
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from simulated_engine import OURS, STATE, THEIRS, Setup, SimulatedEngine, Step
from tally import COUNTS

SETUPS = [
    Setup("full attention"),
    Setup("chunks of 2 blocks", blocks_per_chunk=2),
    Setup("chunks of 3 blocks, async scheduling", blocks_per_chunk=3, is_async=True),
    Setup("async scheduling", is_async=True),
    Setup("few blocks: preemption", gpu_blocks=24, running=4),
    Setup("few blocks, async scheduling", gpu_blocks=24, running=4, is_async=True),
    Setup("few chunks: eviction", host_chunks=20),
    Setup("priorities", gpu_blocks=26, by_priority=True),
    Setup("two ranks", ranks=2),
    Setup("a sliding window", windows=(None, 40), gpu_blocks=64),
    Setup("a recurrent state", windows=(None, STATE), gpu_blocks=300),
    Setup("two sliding windows, async scheduling", windows=(None, 40, 72), gpu_blocks=96, is_async=True),
]
STEPS_EACH = 1_600  # at least this many steps are compared for each setup, 20,000 together


class _Explained(Exception):
    """The two went different ways for a reason that is listed; what follows cannot be compared."""


@pytest.mark.parametrize("setup", SETUPS, ids=lambda setup: setup.name)
def test_budgeted_decides_as_vllm_does_with_the_same_budget(setup: Setup) -> None:
    """Every answer, every allocation, every job and every state is the same in every step."""
    before = COUNTS["steps"]

    @settings(max_examples=36, phases=(Phase.generate,), suppress_health_check=list(HealthCheck))
    @given(history=histories(), delays=delays, budget_blocks=st.sampled_from([0, 1, 3, 8, 20, 1000]))
    def compare(history: list[Event], delays: tuple[int, ...], budget_blocks: int) -> None:
        # One byte less than a whole number of blocks would be the same as a block less: an edge is what fits exactly.
        budget_bytes = budget_blocks * setup.block_bytes
        extra = {"sync_load_budget_bytes": budget_bytes}
        ours = SimulatedEngine(setup, OURS, {**extra, "policy": "budgeted"}, delays)
        theirs = SimulatedEngine(setup, THEIRS, extra, delays, checks_memory=False)
        try:
            for number, event in enumerate(history):
                _same(setup, budget_bytes, do(ours, event, number), do(theirs, event, number))
            _same(setup, budget_bytes, ours.drain(), theirs.drain())
            assert ours.is_at_rest
            assert theirs.is_at_rest
        except _Explained:
            COUNTS["exact_bytes"] += 1
            ours.drain()  # what ours loaded is still what belongs there
            assert ours.is_at_rest

    compare()
    assert COUNTS["steps"] - before >= STEPS_EACH


def test_secondary_tiers_change_nothing() -> None:
    """vLLM's `TieringOffloadingSpec` works under the policy as it does without."""
    setup, steps = Setup("tiers"), []
    for connector in (OURS, THEIRS):
        extra = {"spec_name": "TieringOffloadingSpec", "secondary_tiers": [], "sync_load_budget_bytes": 1 << 16}
        engine = SimulatedEngine(setup, connector, extra)
        made: list[Step] = []
        for text in (0, 1, 0, 2, 1, 3, 0):
            engine.add(TEXTS[text][:300], 4)
            made += engine.drain()
        steps.append(made)
        engine.scheduler.shutdown()
    assert steps[0] == steps[1]
    assert sum(len(step.loads) for step in steps[0]) >= 2


def _same(setup: Setup, budget_bytes: int, ours: list[Step], theirs: list[Step]) -> None:
    for mine, other in zip(ours, theirs, strict=False):
        if mine != other:
            if _exact_bytes_explain(setup, budget_bytes, mine, other):
                raise _Explained
            COUNTS["unexplained"] += 1
            assert mine == other
        COUNTS["steps"] += 1
        COUNTS["decisions"] += len(mine.answers)
        for _, _, (tokens, is_async) in mine.answers:
            COUNTS["ask again" if tokens is None else "no hit" if tokens == 0 else "async" if is_async else "sync"] += 1
    assert len(ours) == len(theirs)


def _exact_bytes_explain(setup: Setup, budget_bytes: int, ours: Step, theirs: Step) -> bool:
    """Whether vLLM's estimate, which counts windows in full, kept it from a sync load that fits exactly."""
    if all(window is None for window in setup.windows):
        return False
    token_bytes = len(setup.windows) * setup.block_bytes // 16
    estimate = 0
    for mine, other in zip(ours.answers, theirs.answers, strict=False):
        tokens, is_async = mine[2]
        if mine == other:
            estimate += 0 if is_async else (tokens or 0) * token_bytes
            continue
        sync_bytes = sum(len(blocks) * setup.block_bytes for _, sync, blocks, *_ in ours.loads.values() if sync)
        goes_ahead = mine[:2] == other[:2] and other[2] == (tokens, True) and not is_async and tokens is not None
        return goes_ahead and estimate + tokens * token_bytes > budget_bytes and sync_bytes <= budget_bytes
    return False
