"""`make demo`: make a small trace, replay it with a few policies, and check every byte that was loaded.

Exits with 0 when pages were loaded and every one of them held what its block has to hold.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from rich.console import Console

from kvmove import Policy
from kvmove.replay.engine import replay
from kvmove.replay.report import PolicyReport, table
from kvmove.replay.settings import Settings
from kvmove.replay.synth import Workload, synthesize, write_trace
from kvmove.replay.trace import read_trace

REQUESTS, SEED = 400, 7
POLICIES = (
    Policy.load("budgeted"),
    Policy.load("always_async"),
    Policy.load("compute_aware"),
    # Asks for more than the budget allows, so that the guard rail shows.
    Policy.parse('policy "greedy"\n\nsync'),
)
# Small caches, so that prefixes have to go to the host and come back, and a budget that is not enough for every hit.
SETTINGS = Settings(num_slots=768, num_host_blocks=4_096, budget_bytes=128 << 20)
WORKLOAD = Workload(requests_per_s=3.0, think_s=60.0, system_tokens=4_000, question_tokens=3_000)


def main() -> int:
    """Run the demonstration; returns the exit status."""
    console = Console(highlight=False, soft_wrap=True)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.jsonl"
        with path.open("w", encoding="ascii") as file:
            write_trace(synthesize(REQUESTS, seed=SEED, workload=WORKLOAD), file)
        requests = list(read_trace(path))
    tokens = sum(r.input_tokens for r in requests)
    console.print(
        f"Made a trace: {REQUESTS} requests of conversations in {requests[-1].timestamp_ms / 1000:.0f} s, "
        f"{tokens:,} prompt tokens, seed {SEED}."
    )
    console.print(
        f"Replaying it on a simulated engine with {SETTINGS.num_slots} slots in the GPU cache, "
        f"{SETTINGS.num_host_blocks:,} host blocks and a step budget of {(SETTINGS.budget_bytes or 0) >> 20} MiB; "
        f"a block of {SETTINGS.block_tokens} tokens is {SETTINGS.block_bytes >> 20} MiB of the modelled LLM."
    )
    console.print(
        f"Times are simulated. Bytes really move, in a replica of the cache: "
        f"{SETTINGS.replica_block_bytes >> 10} KiB a block. Slots are poisoned, loaded and compared."
    )
    reports = []
    for policy in POLICIES:
        reports.append(replay(policy, requests, SETTINGS))
        console.print(f"  {policy.name}: {_outcome(reports[-1])}")
    first, greedy = reports[0], reports[-1]
    console.print(f"The bytes were moved by the {first.device}, path {', '.join(first.paths)}.")
    console.print(
        f"The policy `greedy` asks to load every hit inside its step; of {sum(greedy.decisions.values())} decisions "
        f"the guard rail turned {greedy.demotions['over_budget']} into background loads, to keep the step's budget.\n"
    )
    Console(highlight=False, width=130).print(table(reports))
    return _verdict(console, reports)


def _outcome(report: PolicyReport) -> str:
    return (
        f"{report.hits} of {report.requests} requests found a prefix in host memory; "
        f"{report.loaded_pages:,} pages loaded and compared, {report.mismatches} differed"
    )


def _verdict(console: Console, reports: list[PolicyReport]) -> int:
    bad = [r.policy for r in reports if r.mismatches or not r.loaded_pages]
    if bad:
        console.print(f"\nFAILED: {', '.join(bad)} loaded nothing, or pages that differ.")
        return 1
    pages = sum(r.loaded_pages for r in reports)
    console.print(f"\nOK: all {pages:,} loaded pages held exactly what their blocks have to hold.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
