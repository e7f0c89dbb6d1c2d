"""Traces through scheduler, tier and two ranks, with real bytes and faults."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from kvmove.errors import TraceError
from kvmove.offload.stores import StoreBook
from kvmove.replay.synth import Workload, synthesize
from kvmove.testing.protocol_replay import ReplayReport, replay
from kvmove.testing.protocol_traces import from_trace, read_conversations, read_session

TRACES = os.environ.get("KVMOVE_TRACES")  # a folder with conversation_trace.jsonl


def made_up(requests: int, fault_rate: float = 0.01) -> ReplayReport:
    workload = Workload(requests_per_s=20, system_prompts=3, question_tokens=600, think_s=5)
    return replay(
        from_trace(synthesize(requests, seed=7, workload=workload), 512), block_tokens=512, num_slots=260,
        num_host_blocks=700, chunk_tokens=4096, concurrency=8, fault_rate=fault_rate, check_every=20,
    )  # fmt: skip


def test_a_trace_with_faults_ends_without_a_wrong_byte_or_anything_left() -> None:
    """Every request finishes; loads, joins, evictions and failed jobs were among it."""
    report = made_up(600)
    assert (report.requests, report.finished, report.mismatches, report.leaks) == (600, 600, 0, 0)
    assert report.hits > 50
    assert report.loads_released > 5
    assert report.jobs_failed > 3
    assert report.keys_evicted > 100
    assert report.blocks_compared > 5000


def test_the_same_seed_gives_the_same_replay() -> None:
    """Copies, results and faults come in an order that the seed decides."""
    assert made_up(100) == made_up(100)


def test_a_replay_sees_blocks_that_were_never_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison is not vacuous: where keys of failed stores are served, loads bring what no block holds."""
    end = StoreBook.end
    monkeypatch.setattr(StoreBook, "end", lambda self, job, *, failed: end(self, job, failed=False))
    assert made_up(200, fault_rate=0.2).mismatches > 0


@pytest.mark.skipif(TRACES is None, reason="set KVMOVE_TRACES to a folder with conversation_trace.jsonl")
def test_recorded_conversations_with_faults() -> None:
    """The first thousand requests; benchmarks.bench_offload_replay takes all of them."""
    requests = read_conversations(Path(TRACES or "", "conversation_trace.jsonl"), 512, 1000)
    report = replay(requests, block_tokens=512, num_slots=1000, num_host_blocks=20_000, chunk_tokens=16384)
    assert (report.finished, report.mismatches, report.leaks) == (report.requests, 0, 0)
    assert report.requests == 1000


def test_a_session_is_read_with_ids_of_its_own(tmp_path: Path) -> None:
    """The last, partial block has no id, and equal ids of two sessions are different blocks."""
    made = []
    for name in ("a", "b"):
        path = tmp_path / f"{name}.json"
        turns = [{"in": 70, "hash_ids": [1]}, {"in": 129, "hash_ids": [1, 2]}, {"in": 5}]
        path.write_text(json.dumps({"block_size": 64, "requests": turns}))
        made.append(read_session(path))
    (block_tokens, first), (_, second) = made
    assert block_tokens == 64
    assert [(r.name, r.num_tokens, len(r.hashes)) for r in first] == [("a.0", 70, 2), ("a.1", 129, 3)]
    assert first[0].hashes[0] == first[1].hashes[0]
    assert first[0].hashes[1] != first[1].hashes[1]
    assert first[0].hashes[0] != second[0].hashes[0]
    assert first[1].keys(1, 64) == [h.to_bytes(8, "little") for h in first[1].hashes[:2]]


def test_what_is_no_session_is_refused(tmp_path: Path) -> None:
    """The error names the file."""
    path = tmp_path / "no.json"
    path.write_text('{"requests": 3}')
    with pytest.raises(TraceError, match=r"no\.json"):
        read_session(path)
