"""What the offload scheduler costs its engine's scheduler: time of a step, time of a decision, memory of a block.

    python -m benchmarks.bench_offload [--output PATH] [--figure PATH.svg] [--quick]

One scheduler in one thread, no GPU and no torch. Prompts have 256 blocks of 16 tokens, and lie in the tier as a whole.

- `lookup + decide`: for each of 2,000 known requests in turn, over prompts at random; the keys of a request
  are objects of its own.
- `step`: everything that an engine calls in a step in which so many requests decode a token each. Every 16th token
  gives a request a new block, and its last one is stored; four requests arrive, load their prefix and finish.
- Times are processor time of the thread: what else runs on the machine is not in them, but for what it does to caches
  and clocks. The median of the rounds' medians; the spread is half of how far these lie apart.
- `bytes a block`: what a full tier of a million blocks holds beyond the keys themselves, by tracemalloc.
"""

from __future__ import annotations

import argparse
import random
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from time import thread_time_ns

import numpy as np

from benchmarks import report
from kvmove.bench.rows import Row
from kvmove.kvpol.policy import Policy
from kvmove.offload.records import Group, JobResult, LookupKind
from kvmove.offload.scheduler import OffloadScheduler
from kvmove.tier import EVICTION_POLICIES, HostTier

PROMPT_BLOCKS = 256
BLOCK_TOKENS = 16
BLOCK_BYTES = 64 << 10
PROMPT_TOKENS = PROMPT_BLOCKS * BLOCK_TOKENS + 1
ARRIVALS = 4  # in a step
ROUNDS = 3
STEPS = 32  # of a round: every request gets two blocks in it
BATCH = 50  # requests between two looks at the clock, which takes a microsecond
REQUESTS = (250, 500, 1000, 2000)
TIER_BLOCKS = (10_000, 100_000, 1_000_000)
MOST = {"lookup + decide": 20.0, "bytes": 200.0}  # microseconds a request, bytes a block

RECOMPUTE = Policy.parse("recompute")
BUDGETED = Policy.parse("sync if bytes <= budget_remaining\nasync")


def key(prompt: int, block: int) -> bytes:
    """What stands for a block of a prompt: 16 bytes, as a hash has."""
    return prompt.to_bytes(8, "little") + block.to_bytes(8, "little")


def prompt_keys(prompt: int) -> list[bytes]:
    """The keys of a prompt, as new objects."""
    return [key(prompt, block) for block in range(PROMPT_BLOCKS)]


def full_tier(num_blocks: int, eviction: str = "lru") -> HostTier:
    """A tier that holds as many whole prompts as fit, numbered from 0."""
    tier = HostTier(num_blocks, eviction=eviction)
    for prompt in range(num_blocks // PROMPT_BLOCKS):
        tier.complete_store(tier.prepare_store(prompt_keys(prompt)).keys)
    return tier


def scheduler_of(tier: HostTier, policy: Policy) -> OffloadScheduler:
    """A scheduler of one rank whose budget takes two whole prompts a step."""
    return OffloadScheduler(
        policy, tier, [Group(block_bytes=BLOCK_BYTES)], block_tokens=BLOCK_TOKENS,
        budget_bytes=2 * PROMPT_BLOCKS * BLOCK_BYTES,
    )  # fmt: skip


def decisions(tier: HostTier, num_requests: int) -> list[list[float]]:
    """Microseconds of `lookup` and `decide` together, a request, in each round."""
    rng = random.Random(0)
    scheduler = scheduler_of(tier, BUDGETED)
    num_prompts = tier.num_ready // PROMPT_BLOCKS
    names = [f"request {n}" for n in range(num_requests)]
    for name in names:
        scheduler.on_request(name, prompt_keys(rng.randrange(num_prompts)), PROMPT_TOKENS)
    rounds = []
    for _ in range(ROUNDS + 1):
        times = []
        scheduler.begin_step(waiting=num_requests)
        for start in range(0, num_requests, BATCH):
            batch = names[start : start + BATCH]
            began = thread_time_ns()
            for name in batch:
                found = scheduler.lookup(name, 0)
                decision = scheduler.decide(name)
            times.append((thread_time_ns() - began) / len(batch) / 1e3)
            report.require(found.blocks == decision.blocks == PROMPT_BLOCKS, f"{found}, {decision}")
        scheduler.abort_step()
        rounds.append(times)
    return rounds[1:]  # the interpreter specialises code in the first


class Decoding:
    """An engine that does nothing but call: so many requests decode, few arrive and finish in each step."""

    def __init__(self, tier: HostTier, num_requests: int) -> None:
        self.rng = random.Random(1)
        self.num_prompts = tier.num_ready // PROMPT_BLOCKS
        self.scheduler = scheduler_of(tier, RECOMPUTE)
        self.tokens: dict[str, int] = {}
        self.tables: dict[str, np.ndarray[tuple[int], np.dtype[np.int64]]] = {}
        self.own: dict[str, int] = {}  # a number for the keys of what a request writes
        self.next_slot = self.arrived = 0
        self.jobs: list[int] = []
        self.loaded = 0
        scheduler = self.scheduler
        scheduler.begin_step()
        for n in range(num_requests):
            name = f"running {n}"
            scheduler.on_request(name, prompt_keys(self.rng.randrange(self.num_prompts)), PROMPT_TOKENS)
            if scheduler.lookup(name, 0).kind is LookupKind.HIT:
                scheduler.decide(name)
            self.tokens[name] = PROMPT_TOKENS + n % BLOCK_TOKENS  # so that not all fill a block in the same step
            self.own[name] = (1 << 40) + n
            self.tables[name] = self.new_slots(PROMPT_BLOCKS + 1)
            scheduler.update_after_alloc(name, [self.tables[name]])
        self.jobs = list(scheduler.build_step().jobs)
        for name, tokens in self.tokens.items():
            scheduler.extend(name, (), tokens)
            scheduler.computed(name, tokens)
        scheduler.set_policy(BUDGETED)

    def new_slots(self, count: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """Slots that nobody had before."""
        self.next_slot += count
        return np.arange(self.next_slot - count, self.next_slot)

    def step(self) -> None:
        """One step of the engine: results of the last one, tables that grew, arrivals, the plan, what was computed."""
        scheduler, tokens, tables = self.scheduler, self.tokens, self.tables
        for released in scheduler.on_results([JobResult(job, 0) for job in self.jobs]).released:
            self.loaded += 1
            scheduler.finish(released.request)
        scheduler.begin_step(running=len(tokens), waiting=ARRIVALS, free_slots=1000)
        for name, count in tokens.items():
            if -(-(count + 1) // BLOCK_TOKENS) > len(tables[name]):
                tables[name] = np.append(tables[name], self.new_slots(1))
                scheduler.update_after_alloc(name, [tables[name]])
        started = []
        for _ in range(ARRIVALS):
            self.arrived += 1
            name = f"arrived {self.arrived}"
            scheduler.on_request(name, prompt_keys(self.rng.randrange(self.num_prompts)), PROMPT_TOKENS)
            found = scheduler.lookup(name, 0)
            if found.kind is LookupKind.HIT:
                action = scheduler.decide(name).action
                scheduler.update_after_alloc(name, [self.new_slots(PROMPT_BLOCKS + 1)])
                if action == "sync":
                    started.append(name)
        self.jobs = list(scheduler.build_step().jobs)
        for name in started:
            self.loaded += 1
            scheduler.finish(name)
        for name, count in tokens.items():
            grown = count + 1
            new_key = () if grown % BLOCK_TOKENS else (key(self.own[name], grown),)
            scheduler.extend(name, new_key, grown)
            scheduler.computed(name, grown)
            tokens[name] = grown


def steps(tier: HostTier, num_requests: int) -> list[list[float]]:
    """Milliseconds of each step, in each round."""
    engine = Decoding(tier, num_requests)
    rounds = []
    for _ in range(ROUNDS + 1):
        times = []
        for _ in range(STEPS):
            began = thread_time_ns()
            engine.step()
            times.append((thread_time_ns() - began) / 1e6)
        rounds.append(times)
    done = engine.scheduler.statistics()
    report.require(done.stores_made > num_requests and engine.loaded > 0, f"nothing happened: {done}")
    engine.scheduler.check_integrity()
    return rounds[1:]


def bytes_a_block(num_blocks: int, eviction: str) -> float:
    """Bytes that a full tier holds for each block, without the keys; as many keys again were evicted from it before."""
    keys = [key(n, 0) for n in range(2 * num_blocks)]
    tracemalloc.start()
    tier = HostTier(num_blocks, eviction=eviction)
    for start in range(0, len(keys), PROMPT_BLOCKS):
        tier.complete_store(tier.prepare_store(keys[start : start + PROMPT_BLOCKS]).keys)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    report.require(tier.num_ready == num_blocks, "the tier is not full")
    return held / num_blocks


def draw(rows: list[Row], path: Path) -> None:
    """Two panels: a step by running requests, a line for each tier; and lookup + decide by the size of the tier."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"svg.hashsalt": "kvmove", "svg.fonttype": "none", "font.size": 9, "axes.grid": True}):
        figure = Figure(figsize=(8.8, 3.4), layout="constrained")
        left, right = figure.subplots(1, 2)
        for tier in sorted({int(r.labels["tier_blocks"]) for r in rows if r.labels.get("kind") == "step"}):
            line = [r for r in rows if r.labels.get("kind") == "step" and r.labels["tier_blocks"] == tier]
            left.errorbar(
                [int(r.labels["requests"]) for r in line], [r.value for r in line], yerr=[r.spread for r in line],
                marker="o", markersize=4, label=f"{tier:,} blocks",
            )  # fmt: skip
        left.set_xlabel("requests that decode")
        left.set_ylabel("ms a step")
        left.set_ylim(bottom=0)
        left.legend(frameon=False)
        line = [r for r in rows if r.labels.get("kind") == "decision"]
        right.errorbar(
            [int(r.labels["tier_blocks"]) for r in line], [r.value for r in line], yerr=[r.spread for r in line],
            marker="o", markersize=4, label="lookup + decide, 256 blocks",
        )  # fmt: skip
        right.axhline(MOST["lookup + decide"], color="#000000", linewidth=0.8, linestyle="--", label="target")
        right.set_xscale("log")
        right.set_xlabel("blocks of the tier")
        right.set_ylabel("µs a request")
        right.set_ylim(bottom=0)
        right.legend(frameon=False)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None})


def measure(say: Callable[[str], None], tiers: tuple[int, ...], requests: tuple[int, ...]) -> list[Row]:
    """Every row."""
    rows: list[Row] = []
    for num_blocks in tiers:
        tier = full_tier(num_blocks)
        say(f"a tier of {num_blocks:,} blocks")
        rows.append(
            Row.of_runs(
                f"lookup + decide, {num_blocks:,} blocks, {requests[-1]:,} requests", decisions(tier, requests[-1]),
                "us a request", at_most=MOST["lookup + decide"],
                labels={"kind": "decision", "tier_blocks": num_blocks, "requests": requests[-1]},
            )
        )  # fmt: skip
        for num_requests in requests:
            say(f"  {num_requests:,} requests")
            rows.append(
                Row.of_runs(
                    f"step, {num_blocks:,} blocks, {num_requests:,} requests", steps(tier, num_requests), "ms",
                    labels={"kind": "step", "tier_blocks": num_blocks, "requests": num_requests},
                )
            )  # fmt: skip
    for eviction in sorted(EVICTION_POLICIES):
        say(f"memory of {eviction}")
        held = bytes_a_block(tiers[-1], eviction)
        rows.append(Row.of_runs(f"bytes a block, {eviction}", [[held]], "bytes", at_most=MOST["bytes"]))
    return rows


def main() -> None:
    """Measure, write and draw."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--output", type=Path, default=report.default_path("offload"))
    parser.add_argument("--figure", type=Path, help="an SVG file to draw; needs matplotlib")
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it runs")
    given = parser.parse_args()
    tiers, requests = ((4_000, 20_000), (50, 100)) if given.quick else (TIER_BLOCKS, REQUESTS)
    rows = measure(print, tiers, requests)
    report.write(given.output, rows)
    if given.figure is not None:
        draw(rows, given.figure)
        print(f"wrote {given.figure}")


if __name__ == "__main__":
    main()
