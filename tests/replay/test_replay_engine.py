"""The simulated engine: every request ends, nothing leaks, every byte is right, and a run is the same each time.

`replay` itself raises `InternalError` where a slot, a pin or a job is left over at the end.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvmove.errors import Refused
from kvmove.kvpol import Policy
from kvmove.replay.engine import replay
from kvmove.replay.report import PolicyReport
from kvmove.replay.settings import Model, Settings
from kvmove.replay.synth import Workload, synthesize
from kvmove.replay.trace import Request, read_trace

TRACE = Path(__file__).parents[3] / "shared" / "traces" / "conversation_trace.jsonl"

# A cache that is too small for its conversations, so that their prefixes come back from the host.
CROWDED = Settings(num_slots=260, num_host_blocks=4_000, budget_bytes=200 << 20)
SYNC, ASYNC, RECOMPUTE, DEFER = (Policy.parse(action) for action in ("sync", "async", "recompute", "defer"))


@pytest.fixture(scope="module")
def conversations() -> list[Request]:
    workload = Workload(requests_per_s=4.0, think_s=5.0, question_tokens=3_000)
    return list(synthesize(60, seed=3, workload=workload))


def _replayed(policy: Policy, requests: list[Request], settings: Settings = CROWDED) -> PolicyReport:
    report = replay(policy, requests, settings, device="cpu")
    assert report.mismatches == 0, report.first_mismatches
    assert report.finished + report.refused == len(requests)
    tokens = report.tokens
    assert tokens["cached"] + tokens["loaded"] + tokens["computed"] == tokens["prompt"]
    assert report.ttft.count == report.finished
    return report


def test_the_same_trace_gives_the_same_report(conversations: list[Request]):
    """No clock and no random choice takes part in a replay."""
    assert _replayed(ASYNC, conversations) == _replayed(ASYNC, conversations)


def test_sync_and_async_loads_are_all_compared(conversations: list[Request]):
    """Under a policy that asks for sync, small hits load in the step and the others in the background."""
    report = _replayed(SYNC, conversations)
    assert report.decisions["sync"] > 0
    assert report.decisions["async"] == report.demotions["over_budget"] > 0
    assert report.loaded_pages == report.tokens["loaded"] // CROWDED.block_tokens * CROWDED.replica_pages > 0
    assert report.cached_pages > 0
    assert sum(report.bytes.values()) == report.tokens["loaded"] * CROWDED.model.kv_bytes_per_token
    moved = report.moved_bytes["expedited"] + report.moved_bytes["bulk"]
    assert moved == report.loaded_blocks * CROWDED.replica_block_bytes


def test_loading_in_the_step_saves_the_parked_steps(conversations: list[Request]):
    """With a budget for every hit, requests that hit wait less for their first token than when they are parked."""
    unlimited = Settings(num_slots=260, num_host_blocks=4_000, budget_bytes=1 << 40)
    in_step, parked = _replayed(SYNC, conversations, unlimited), _replayed(ASYNC, conversations, unlimited)
    assert in_step.decisions["async"] == parked.decisions["sync"] == 0
    assert in_step.ttft_of_hits.mean_ns is not None
    assert parked.ttft_of_hits.mean_ns is not None
    assert in_step.ttft_of_hits.mean_ns < parked.ttft_of_hits.mean_ns


def test_a_budget_of_zero_loads_nothing_in_a_step(conversations: list[Request]):
    """Every sync that is asked for becomes async, and is counted."""
    report = _replayed(SYNC, conversations, Settings(num_slots=260, num_host_blocks=4_000, budget_bytes=0))
    assert report.decisions["sync"] == report.bytes["expedited"] == 0
    assert report.demotions["over_budget"] == report.decisions["async"] > 0


def test_computing_again_loads_nothing(conversations: list[Request]):
    """A hit that is ignored costs its tokens, and moves no byte."""
    report = _replayed(RECOMPUTE, conversations)
    assert report.decisions["recompute"] == report.hits > 0
    assert report.loaded_pages == report.tokens["loaded"] == 0


def test_a_policy_that_always_defers_starves_nobody(conversations: list[Request]):
    """After the stated number of deferrals a request loads in the background."""
    report = _replayed(DEFER, conversations)
    assert report.demotions["deferred_too_often"] == report.decisions["async"] > 0
    assert report.decisions["defer"] >= CROWDED.max_deferrals


def test_a_prompt_longer_than_the_cache_is_refused_and_counted():
    """Its neighbours are served."""
    long = Request("long", 0, 4 * 512, 1, (1, 2, 3, 4))
    short = Request("short", 0, 512, 1, (5,))
    report = _replayed(SYNC, [long, short], Settings(num_slots=3, num_host_blocks=4))
    assert (report.finished, report.refused) == (1, 1)


def test_a_prompt_whose_every_token_is_known_computes_its_last_block():
    """Its first token comes from the last token's logits, so something is left to compute."""
    requests = [Request("first", 0, 1024, 1, (1, 2)), Request("second", 60_000, 1024, 1, (1, 2))]
    report = _replayed(SYNC, requests, Settings(num_slots=8, num_host_blocks=8))
    assert report.tokens == {"prompt": 2048, "cached": 512, "loaded": 0, "computed": 1536}


def test_requests_with_the_same_prefix_load_it_once():
    """The second waits for the first one's background load, and then finds the blocks in the GPU cache."""
    prefix, other = (1, 2, 3, 4), (11, 12, 13, 14)
    evicting = [
        Request(f"e{i}", 10_000 * i, 4 * 512, 1, ids) for i, ids in enumerate((prefix, other, (21, 22, 23, 24)))
    ]
    twins = [Request(f"t{i}", 60_000, 4 * 512 + 100, 1, (*prefix, 100 + i)) for i in range(2)]
    report = _replayed(ASYNC, evicting + twins, Settings(num_slots=10, num_host_blocks=32))
    assert (report.hits, report.joined) == (1, 1)
    # Both reuse the four blocks; a part that is still in the GPU cache does not have to be loaded at all.
    assert 0 < report.tokens["loaded"] <= 4 * 512
    assert report.tokens["loaded"] + report.tokens["cached"] == 2 * 4 * 512


def test_a_request_that_gets_no_slots_takes_nothing_from_the_budget():
    """Its decision is taken back, and made again when slots are free."""
    prefix = (1, 2, 3, 4)
    first = [
        Request(f"e{i}", 10_000 * i, 4 * 512, 1, ids) for i, ids in enumerate((prefix, (11, 12), (21, 22, 23, 24)))
    ]
    # It decodes for long, and leaves no room for the request whose prefix the host has.
    busy = [Request("busy", 60_000, 3 * 512, 400, (31, 32, 33)), Request("again", 60_000, 4 * 512 + 9, 1, (*prefix, 5))]
    report = _replayed(SYNC, first + busy, Settings(num_slots=7, num_host_blocks=32, budget_bytes=1 << 40))
    assert report.refunds > 0
    assert report.decisions["sync"] == 1
    assert report.bytes["expedited"] == report.tokens["loaded"] * (40 << 10)


def test_a_prefix_that_was_stored_in_parts_loses_its_tail_first():
    """A long prompt is stored chunk by chunk; when the host needs room, its head stays, because it is the prefix."""
    chunked = Settings(
        model=Model(max_batched_tokens=4), block_tokens=4, num_slots=6, num_host_blocks=8, budget_bytes=1 << 40
    )
    long, others = (1, 2, 3, 4, 5), ((11, 12, 13, 14), (21, 22, 23, 24))
    requests = [Request("first", 0, 17, 6, long)]
    requests += [Request(f"o{i}", 10_000 * (i + 1), 13, 6, ids) for i, ids in enumerate(others)]
    requests.append(Request("again", 60_000, 17, 6, long))
    report = _replayed(SYNC, requests, chunked)
    assert report.evictions["host"] > 0
    assert report.tokens["loaded"] > 0
    assert report.tokens["loaded"] + report.tokens["cached"] == 2 * 4  # the two blocks that the host did not evict


def test_requests_that_arrive_after_a_long_pause_are_served():
    """Simulated time jumps over what nobody waits for."""
    requests = [Request("early", 0, 100, 3, (1,)), Request("late", 10**9, 100, 3, (1,))]
    report = _replayed(SYNC, requests, Settings(num_slots=2, num_host_blocks=2))
    assert report.simulated_ns > 10**15
    assert report.steps < 20


def test_progress_counts_every_request(conversations: list[Request]):
    """It only grows, and ends with all of them."""
    seen: list[int] = []
    replay(ASYNC, conversations, CROWDED, device="cpu", progress=seen.append)
    assert seen == sorted(set(seen))
    assert seen[-1] == len(conversations)


def test_an_unknown_device_is_refused(conversations: list[Request]):
    """The message names the ones that there are."""
    with pytest.raises(Refused, match="auto, cpu, cuda"):
        replay(SYNC, conversations, device="tpu")


@st.composite
def traces(draw: st.DrawFn, block_tokens: int) -> list[Request]:
    """Prompts that begin like one of three others, so that prefixes come back, whole or in part."""
    requests, timestamp_ms = [], 0
    for i in range(draw(st.integers(1, 12))):
        timestamp_ms += draw(st.sampled_from([0, 0, 5, 2_000]))
        input_tokens = draw(st.integers(1, 12 * block_tokens))
        num_blocks = -(-input_tokens // block_tokens)
        shared = draw(st.integers(0, num_blocks))
        family = 100 * draw(st.integers(0, 2))
        own = 1_000 * (i + 1)
        hash_ids = (*range(family, family + shared), *range(own + shared, own + num_blocks))
        requests.append(Request(f"r{i}", timestamp_ms, input_tokens, draw(st.integers(0, 8)), hash_ids))
    return requests


@st.composite
def tight_settings(draw: st.DrawFn) -> Settings:
    """Caches of a few blocks, where nearly everything is evicted, and steps of a few tokens."""
    kv_bytes_per_token = 40 << 10
    return Settings(
        model=Model(
            kv_bytes_per_token=kv_bytes_per_token,
            max_batched_tokens=draw(st.integers(1, 60)),
            # From a link that never matters to one on which copies take many steps.
            link_bytes_per_second=draw(st.sampled_from([10**6, 10**8, 50 * 10**9])),
        ),
        block_tokens=4,
        num_slots=draw(st.integers(2, 30)),
        num_host_blocks=draw(st.integers(1, 40)),
        budget_bytes=draw(st.sampled_from([0, 4 * 4 * kv_bytes_per_token, 1 << 30])),
        max_deferrals=draw(st.integers(0, 3)),
        replica_layers=1,
        replica_page_bytes=128,
    )


# Decisions that depend on the request and the step, so that one trace takes all four ways.
MIXED = Policy.parse(
    "defer if deferrals < 1 and waiting > 2\n"
    "recompute if blocks == 1\n"
    "sync if bytes <= budget_remaining and sync_loads < 2\n"
    "async"
)


@settings(max_examples=200)
@given(requests=traces(block_tokens=4), tight=tight_settings(), policy=st.sampled_from([SYNC, ASYNC, DEFER, MIXED]))
def test_random_traces_end_with_every_byte_right(requests: list[Request], tight: Settings, policy: Policy):
    """In caches of any size, under any policy, requests finish or are refused, and nothing is left over."""
    report = _replayed(policy, requests, tight)
    fitting = [r for r in requests if -(-(r.input_tokens + r.output_tokens) // 4) <= tight.num_slots]
    assert report.finished == len(fitting)


@pytest.mark.skipif(not TRACE.exists(), reason="the public conversation trace is not beside this checkout")
def test_a_part_of_a_public_trace_replays_without_a_mismatch():
    """Served requests of production shape, under a policy that uses both lanes."""
    requests = list(read_trace(TRACE, limit=400))
    # At this size, the first hundreds of requests already find their prefixes in the host tier.
    report = _replayed(SYNC, requests, Settings(num_slots=600, num_host_blocks=8_000, rate=0.5))
    assert report.refused == 0
    assert report.loaded_pages > 0
