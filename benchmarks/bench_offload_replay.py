"""Recorded traffic through offload scheduler, host tier and two ranks, with real bytes and faults.

    python -m benchmarks.bench_offload_replay [--conversations TRACE.jsonl] [--sessions FOLDER] [--faults 0.01]
        [--limit N] [--output PATH]

`--conversations` is a trace in the Mooncake format (`kvmove replay` reads the same), `--sessions` a folder of recorded
agent sessions (`*.json` with `block_size` and `requests`); without either, a made-up trace of 2,000 requests is used.
Nothing here is a time: the rows say how much went through, and that no byte was wrong and nothing was left over. Pages
are small (a block is 32 bytes on each rank), prompts are whole, and outputs are cut to two tokens. A rank's launch
is refused now and then, so that about `--faults` of all jobs fail.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import asdict
from itertools import zip_longest
from pathlib import Path

from benchmarks import report
from kvmove.bench.rows import Row
from kvmove.replay.synth import Workload, synthesize
from kvmove.testing.protocol_replay import ReplayReport, replay
from kvmove.testing.protocol_requests import SimRequest
from kvmove.testing.protocol_traces import from_trace, read_conversations, read_session

MUST_BE_ZERO = ("mismatches", "leaks")


def conversations(requests: Iterable[SimRequest], block_tokens: int, faults: float) -> ReplayReport:
    """Many users, prefixes of few blocks; the tier holds a part of them."""
    return replay(
        requests, block_tokens=block_tokens, num_slots=1000, num_host_blocks=40_000, fault_rate=faults,
        chunk_tokens=32 * block_tokens, eviction="s3fifo",
    )  # fmt: skip


def sessions(folder: Path, faults: float) -> ReplayReport:
    """Agents that take turns: long prompts of which nearly all was there in the last turn, and a cache for a few."""
    read = [read_session(path) for path in sorted(folder.glob("*.json"))]
    if not read or len({block_tokens for block_tokens, _ in read}) > 1:
        raise SystemExit(f"{folder} has no *.json, or they do not agree on the size of a block")
    turns = [r for turn in zip_longest(*(requests for _, requests in read)) for r in turn if r is not None]
    longest = max(len(r.hashes) for r in turns)
    return replay(
        turns, block_tokens=read[0][0], num_slots=2 * longest, num_host_blocks=8 * longest, fault_rate=faults,
        concurrency=4, chunk_tokens=512 * read[0][0], check_every=50,
    )  # fmt: skip


def rows_of(name: str, done: ReplayReport) -> list[Row]:
    """A row for each count, and what it has to be where that is fixed."""
    totals = asdict(done)
    rows = []
    for key, count in totals.items():
        target = 0 if key in MUST_BE_ZERO else totals["requests"] if key == "finished" else None
        ok = None if target is None else count == target
        rows.append(Row(id=f"{name}: {key}", value=count, spread=0, target=target, ok=ok, unit=""))
    share = 100 * totals["jobs_failed"] / max(1, totals["jobs"])
    rows.append(Row(id=f"{name}: jobs that failed", value=share, spread=0, unit="%"))
    return rows


def main() -> None:
    """Replay and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--conversations", type=Path)
    parser.add_argument("--sessions", type=Path)
    parser.add_argument("--faults", type=float, default=0.01)
    parser.add_argument("--limit", type=int, help="requests of the trace of conversations")
    parser.add_argument("--output", type=Path, default=report.default_path("offload-replay"))
    given = parser.parse_args()
    rows: list[Row] = []
    if given.conversations is not None:
        requests = read_conversations(given.conversations, 512, given.limit)
        rows += rows_of(given.conversations.stem, conversations(requests, 512, given.faults))
    if given.sessions is not None:
        rows += rows_of(f"{given.sessions.name} sessions", sessions(given.sessions, given.faults))
    if not rows:
        made_up = from_trace(synthesize(given.limit or 2000, seed=0, workload=Workload()), 512)
        rows += rows_of("made-up trace", conversations(made_up, 512, given.faults))
    report.write(given.output, rows)
    report.require(all(row.ok is not False for row in rows), "see the rows that are MISSED")


if __name__ == "__main__":
    main()
