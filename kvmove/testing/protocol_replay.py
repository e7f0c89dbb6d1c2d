"""A trace through scheduler, tier and several ranks with real bytes and faults: what was wrong, and what was left."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice

from kvmove.errors import InternalError
from kvmove.kvpol.policy import Policy
from kvmove.offload.records import Group
from kvmove.offload.scheduler import OffloadScheduler
from kvmove.testing.protocol_engine import SimEngine, StepChoices
from kvmove.testing.protocol_ranks import Rank
from kvmove.testing.protocol_requests import SimRequest
from kvmove.tier import HostTier

BLOCK_BYTES = 32  # two pages of two words
POLICY = """
@small sync  if bytes <= budget_remaining and tokens <= 1536tok
       async
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayReport:
    """What a replay did. `mismatches` and `leaks` are to be 0, and `finished` is to be `requests`."""

    requests: int
    finished: int
    steps: int
    jobs: int
    jobs_failed: int
    outputs_dropped: int  # because a sync load failed; computed again
    hits: int
    joins: int
    loads_released: int
    loads_failed: int
    stores_made: int
    stores_failed: int
    keys_evicted: int
    blocks_compared: int
    mismatches: int
    leaks: int  # slots, pins, host blocks and jobs that were left at the end


def replay(
    requests: Iterable[SimRequest], *, block_tokens: int, num_slots: int, num_host_blocks: int, num_ranks: int = 2,
    fault_rate: float = 0.01, concurrency: int = 16, chunk_tokens: int = 1 << 20, seed: int = 0,
    eviction: str = "lru", check_every: int = 500,
) -> ReplayReport:  # fmt: skip
    """Keep `concurrency` requests in the engine until all have finished, with copies that run late.

    Args:
        requests: in the order in which they arrive.
        block_tokens: of a block.
        num_slots: of the GPU cache; the longest request has to fit.
        num_host_blocks: of the tier.
        num_ranks: workers, each with memory of its own.
        fault_rate: about which share of jobs fails.
        concurrency: requests known to the engine at a time.
        chunk_tokens: the most tokens of one request that a step computes.
        seed: of the order of copies, results and faults.
        eviction: of the tier.
        check_every: steps between two full checks of all invariants.

    Raises:
        InternalError: an invariant is broken, or the engine is stuck.
    """
    rng = random.Random(seed)
    tier = HostTier(num_host_blocks, eviction=eviction)
    groups = [Group(block_bytes=BLOCK_BYTES)]
    scheduler = OffloadScheduler(
        Policy.parse(POLICY), tier, groups, block_tokens=block_tokens, ranks=num_ranks, budget_bytes=BLOCK_BYTES * 24
    )
    ranks = [
        Rank(
            r, num_slots=[num_slots], num_host_blocks=num_host_blocks, blocks_per_chunk=1, words=2,
            rng=random.Random(seed + r),
        )
        for r in range(num_ranks)
    ]  # fmt: skip
    engine = SimEngine(
        scheduler, ranks, groups, num_slots=[num_slots], block_tokens=block_tokens, blocks_per_chunk=1,
        chunk_tokens=chunk_tokens, max_running=concurrency, rng=rng,
    )  # fmt: skip
    coming = iter(requests)
    arrived = idle_steps = 0
    mismatches = 0
    while True:
        new = list(islice(coming, concurrency - len(engine.requests)))
        for request in new:
            engine.add(request)
        arrived += len(new)
        if not engine.requests:
            break
        finished = engine.finished
        engine.step(StepChoices(fault_rate=fault_rate))
        for rank in ranks:
            rank.queues.run(rng.choice((0, 0, 3, 40)))
        mismatches += len(engine.mismatches)
        engine.mismatches.clear()
        idle_steps = 0 if engine.finished > finished else idle_steps + 1
        if idle_steps > 10_000:
            raise InternalError(f"no request finished in {idle_steps} steps: {engine.requests.keys()}")
        if engine.step_number % check_every == 0:
            engine.check_integrity()
            scheduler.check_integrity()
    while scheduler.num_jobs or scheduler.tier.statistics().storing_blocks:
        for rank in ranks:
            rank.queues.drain()
        engine.step()
    scheduler.check_integrity()
    engine.check_integrity()
    done, kept = scheduler.statistics(), tier.statistics()
    leaks = sum(len(cache.holders) for cache in engine.caches) + sum(len(rank.worker.jobs) for rank in ranks)
    leaks += kept.pinned_blocks + kept.storing_blocks + kept.leaving_blocks + done.requests + scheduler.num_jobs
    tier.clear()
    leaks += num_host_blocks - tier.free_blocks
    report = ReplayReport(
        requests=arrived,
        finished=engine.finished,
        steps=engine.step_number,
        jobs=engine.jobs,
        jobs_failed=done.loads_failed + done.stores_failed,
        outputs_dropped=engine.dropped,
        hits=done.hits,
        joins=done.joins,
        loads_released=done.loads_released,
        loads_failed=done.loads_failed,
        stores_made=done.stores_made,
        stores_failed=done.stores_failed,
        keys_evicted=kept.keys_evicted,
        blocks_compared=sum(rank.compared for rank in ranks),
        mismatches=mismatches,
        leaks=leaks,
    )
    for rank in ranks:
        rank.close()
    return report
