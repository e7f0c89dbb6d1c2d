"""What a policy is told about a hit, and what happens to requests that share one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from kvmove.errors import RecordError
from kvmove.kvpol import Policy
from kvmove.records import Action, Hit
from kvmove.replay.engine import replay
from kvmove.replay.settings import Model, Settings
from kvmove.replay.trace import Request

BLOCK = 512
# Room for one of the prompts below and a little more, so that the second pushes the first out.
SETTINGS = Settings(num_slots=14, num_host_blocks=64, budget_bytes=1 << 40)


def prompt(name: str, timestamp_ms: int, first: int, blocks: int = 4, output: int = 1) -> Request:
    """A prompt of full blocks first, first + 1, ... and one token more."""
    return Request(name, timestamp_ms, blocks * BLOCK + 1, output, tuple(range(first, first + blocks + 1)))


# 100 and 200 fill the cache and the host; 300 pushes 100 out of the cache; then 100 is wanted again.
WARM_UP = [prompt("a", 0, 100), prompt("b", 5_000, 200), prompt("c", 10_000, 300, blocks=9)]


@dataclass
class Rule:
    action: Action


class Recorder:
    """A policy that gives every hit the same action and keeps what it was asked."""

    name, hash, budget_bytes = "recorder", "0", None

    def __init__(self, action: Action) -> None:
        self.rules = [Rule(action)]
        self.asked: list[tuple[Hit, dict[str, Any]]] = []

    def decide(self, hit: Hit, step: Any) -> int:
        names = ("budget_remaining_bytes", "inflight_loads", "async_delay_ns", "step_time_ns", "sync_loads", "waiting")
        self.asked.append((hit, {name: getattr(step, name) for name in names}))
        return 0


def test_a_hit_says_what_the_modelled_llm_would_move_and_compute():
    """Bytes, tokens and times are the model's, by its stated formulas; the replica's size does not show."""
    policy = Recorder(Action.SYNC)
    replay(policy, [*WARM_UP, prompt("again", 15_000, 100)], SETTINGS, device="cpu")
    ((hit, step),) = policy.asked
    model = SETTINGS.model
    assert (hit.request, hit.blocks, hit.tokens, hit.bytes) == ("again", 4, 2048, 2048 * model.kv_bytes_per_token)
    assert (hit.prompt_tokens, hit.cached_tokens, hit.compute_tokens) == (2049, 0, 1)
    assert hit.load_time_ns == model.copy_time_ns(hit.bytes)
    assert hit.recompute_time_ns == model.compute_time_ns(2048)
    assert step["async_delay_ns"] == model.async_steps * step["step_time_ns"]


def test_requests_with_one_prefix_load_it_once_in_the_background():
    """The second waits for the first one's load, and then finds the blocks in the GPU cache."""
    requests = [*WARM_UP, prompt("first", 15_000, 100), prompt("second", 15_000, 100)]
    report = replay(Policy.parse("async"), requests, SETTINGS, device="cpu")
    assert (report.decisions["async"], report.joined, report.loaded_blocks) == (1, 1, 4)
    assert report.cached_pages == 4 * SETTINGS.replica_pages
    assert (report.finished, report.mismatches) == (5, 0)


def test_requests_with_one_prefix_may_both_load_it_in_one_step():
    """Loads inside the step mark nothing: they are over when the step is."""
    requests = [*WARM_UP, prompt("first", 15_000, 100), prompt("second", 15_000, 100)]
    policy = Recorder(Action.SYNC)
    report = replay(policy, requests, SETTINGS, device="cpu")
    assert (report.decisions["sync"], report.joined, report.loaded_blocks, report.mismatches) == (2, 0, 8, 0)
    assert [step["sync_loads"] for _, step in policy.asked] == [0, 1]
    spent = policy.asked[0][1]["budget_remaining_bytes"] - policy.asked[1][1]["budget_remaining_bytes"]
    assert spent == policy.asked[0][0].bytes


def test_a_request_without_room_gets_its_reservation_back():
    """It is asked again, and served once slots are free."""
    requests = [*WARM_UP, prompt("large", 15_000, 400, blocks=11, output=5), prompt("again", 15_001, 100)]
    policy = Recorder(Action.SYNC)
    report = replay(policy, requests, SETTINGS, device="cpu")
    assert report.refunds > 0
    assert report.decisions["sync"] == report.hits == 1
    assert report.bytes["expedited"] == policy.asked[-1][0].bytes
    assert (report.finished, report.mismatches) == (5, 0)


def test_a_parked_request_waits_two_steps_and_its_copy():
    """Its first token comes later than that of a request which loads in the step, by the steps that it was parked."""
    requests = [*WARM_UP, prompt("again", 15_000, 100)]
    waits = {}
    for action in ("sync", "async"):
        report = replay(Policy.parse(action), requests, SETTINGS, device="cpu")
        assert report.ttft_of_hits.count == 1
        waits[action] = report.ttft_of_hits.mean_ns or 0
    model = SETTINGS.model
    copy_ns = model.copy_time_ns(4 * SETTINGS.block_bytes)
    assert waits["sync"] == model.step_time_ns(1, 4 * SETTINGS.block_bytes)
    assert copy_ns < 2 * model.step_overhead_ns  # the steps are the longer wait
    assert waits["async"] == 2 * model.step_time_ns(0) + model.step_time_ns(1)


def test_deferred_requests_let_others_pass():
    """A request that defers keeps its turn, and does not hold up the one behind it."""
    requests = [*WARM_UP, prompt("again", 15_000, 100), prompt("other", 15_000, 500)]
    policy = Recorder(Action.DEFER)
    report = replay(policy, requests, SETTINGS, device="cpu")
    assert [hit.deferrals for hit, _ in policy.asked] == list(range(SETTINGS.max_deferrals + 1))
    assert policy.asked[-1][0].waited_ns > policy.asked[1][0].waited_ns > 0
    assert report.decisions["defer"] == SETTINGS.max_deferrals
    assert (report.finished, report.mismatches) == (5, 0)


def test_estimates_round_up_to_whole_nanoseconds():
    """An estimate is never too short."""
    model = Model(link_bytes_per_second=3, prefill_tokens_per_second=7, copy_latency_ns=10, step_overhead_ns=1)
    assert model.copy_time_ns(1) == 10 + 333_333_334
    assert model.compute_time_ns(1) == 142_857_143
    assert model.step_time_ns(1, sync_bytes=1) == 10 + 333_333_334 + 1 + 142_857_143
    assert model.step_time_ns(0) == 1


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"num_slots": 0}, "num_slots is 0"),
        ({"num_host_blocks": 1.5}, "num_host_blocks is 1.5"),
        ({"budget_bytes": -1}, "budget_bytes is -1"),
        ({"replica_page_bytes": 100}, "multiple of 128"),
        ({"rate": float("nan")}, "rate is nan"),
        ({"block_tokens": 1 << 20}, "more than any GPU has"),
        ({"model": Model(kv_bytes_per_token=1 << 30)}, "kv_bytes_per_token"),
    ],
)
def test_settings_that_make_no_sense_are_refused(values: dict[str, Any], message: str):
    """The message names the value."""
    with pytest.raises(RecordError, match=message):
        Settings(**values)
