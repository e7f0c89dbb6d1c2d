"""`synthesize`: what made-up traces are like."""

from __future__ import annotations

import io
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from statistics import mean, median
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvmove.errors import RecordError, Refused
from kvmove.replay.synth import Workload, synthesize, write_trace
from kvmove.replay.trace import Request, read_requests

ROOT = Path(__file__).resolve().parents[2]


def reread(requests: Iterable[Request], block_tokens: int = 512) -> list[Request]:
    text = io.StringIO()
    write_trace(requests, text)
    return list(read_requests(io.BytesIO(text.getvalue().encode()), "made", block_tokens=block_tokens))


def shared_fraction(requests: Iterable[Request]) -> float:
    """The fraction of all blocks that lie in a leading run which earlier requests had."""
    seen: set[int] = set()
    shared = total = 0
    for r in requests:
        run = next((i for i, block in enumerate(r.hash_ids) if block not in seen), len(r.hash_ids))
        shared, total = shared + run, total + len(r.hash_ids)
        seen.update(r.hash_ids)
    return shared / total


workloads = st.builds(
    Workload,
    requests_per_s=st.floats(0.01, 1000),
    system_prompts=st.integers(1, 20),
    popularity_skew=st.floats(0, 3),
    turns=st.floats(1, 20),
    system_tokens=st.integers(1, 5_000),
    question_tokens=st.integers(1, 5_000),
    answer_tokens=st.integers(1, 2_000),
    think_s=st.floats(0, 1_000),
    max_prompt_tokens=st.integers(1, 20_000),
    block_tokens=st.sampled_from([1, 16, 64, 500, 512]),
)


@settings(max_examples=60)
@given(st.integers(1, 120), st.integers(0, 1 << 32), workloads)
def test_any_workload_gives_a_trace_that_reads_back(count: int, seed: int, workload: Workload) -> None:
    """Whatever the settings, the requests survive being written and read, and equal ids have equal prefixes."""
    requests = list(synthesize(count, seed=seed, workload=workload))
    assert reread(requests, workload.block_tokens) == requests
    assert len(requests) == count
    assert requests[0].timestamp_ms == 0
    assert max(r.input_tokens for r in requests) <= workload.max_prompt_tokens
    before: dict[int, int | None] = {}
    for r in requests:
        for previous, block in pairwise((None, *r.hash_ids)):
            assert block is not None
            assert before.setdefault(block, previous) == previous


def test_a_seed_decides_everything() -> None:
    """The same seed gives the same trace, another seed another one, and a longer trace begins like a shorter."""
    long = list(synthesize(500, seed=3))
    assert list(synthesize(500, seed=3)) == long
    assert list(synthesize(100, seed=3)) == long[:100]
    assert list(synthesize(100, seed=4)) != long[:100]


def test_processes_agree() -> None:
    """Neither the hash seed of the process nor its memory layout shows in a trace."""
    program = (
        "import sys; from kvmove.replay.synth import *; write_trace(synthesize(50, seed=9), sys.stdout);"
        "assert not {'torch', 'numpy'} & set(sys.modules)"
    )
    outputs = [
        subprocess.run(
            [sys.executable, "-c", program], cwd=ROOT, env={"PYTHONHASHSEED": seed}, check=True, capture_output=True
        ).stdout
        for seed in ("1", "2")
    ]
    assert outputs[0] == outputs[1]
    assert outputs[0].count(b"\n") == 50


@pytest.mark.parametrize("seed", range(5))
def test_the_default_workload_looks_like_conversations(seed: int) -> None:
    """Its prefixes are shared as those of multi-turn chats are, and its rate and lengths are the stated ones."""
    requests = list(synthesize(4_000, seed=seed))
    late = requests[1_000:]
    assert 0.6 < shared_fraction(requests) < 0.9
    assert 1.5 < len(late) / (late[-1].timestamp_ms - late[0].timestamp_ms) * 1e3 < 2.6
    assert 250 < median(r.output_tokens for r in requests) < 350
    assert 4_000 < mean(r.input_tokens for r in requests) < 15_000
    # One block in front of all others means one system prompt; the most popular one has more than its share of 1/8.
    first = Counter(r.hash_ids[0] for r in requests if r.input_tokens >= 2 * 512)
    assert first.most_common(1)[0][1] > len(requests) / 4


def test_single_turns_share_only_system_prompts() -> None:
    """With one turn a session, what is shared is at most what a system prompt covers."""
    workload = Workload(turns=1, system_prompts=1, system_tokens=600, question_tokens=5_000)
    requests = list(synthesize(300, seed=0, workload=workload))
    in_all = set.intersection(*(set(r.hash_ids) for r in requests))
    times_seen = Counter(block for r in requests for block in r.hash_ids)
    assert {block for block, times in times_seen.items() if times > 1} == in_all


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("requests_per_s", 0),
        ("requests_per_s", float("nan")),
        ("system_prompts", 0),
        ("popularity_skew", -1),
        ("turns", 0.5),
        ("turns", float("inf")),
        ("system_tokens", 0),
        ("question_tokens", 1 << 25),
        ("answer_tokens", 0),
        ("think_s", -1),
        ("max_prompt_tokens", 0),
        ("block_tokens", 0),
    ],
)
def test_workloads_out_of_range_are_refused(field: str, value: Any) -> None:
    """The message has the field, its range and the value."""
    with pytest.raises(RecordError, match=rf"^{field} lies between .* and .*, not {value}$"):
        Workload(**{field: value})


def test_counts_and_seeds_out_of_range_are_refused() -> None:
    """The call itself refuses them."""
    with pytest.raises(Refused, match="a trace has at least 1 request, not 0"):
        synthesize(0, seed=0)
    with pytest.raises(Refused, match="a seed is 0 or more, not -1"):
        synthesize(1, seed=-1)
