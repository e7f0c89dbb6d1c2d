"""A state machine over scheduler, tier and workers together, for hypothesis: anything in any order, checked throughout.

After every rule the scheduler has answered as the model does, no slot has two owners, and every block that a request
read held what was computed for it. At the end all requests finish, and nothing is pinned, parked or in flight.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvmove.errors import InternalError
from kvmove.kvpol.policy import Policy
from kvmove.offload.records import Group, GroupKind
from kvmove.testing.protocol_checked import CheckedScheduler
from kvmove.testing.protocol_engine import SimEngine, StepChoices
from kvmove.testing.protocol_ranks import Rank
from kvmove.testing.protocol_requests import Place, SimRequest, block_hashes
from kvmove.tier import EVICTION_POLICIES, HostTier

GROUPS = {
    "full": [Group(block_bytes=32)],
    "full and window": [Group(block_bytes=32), Group(block_bytes=32, kind=GroupKind.WINDOW, window_blocks=2)],
    "state": [Group(block_bytes=32), Group(block_bytes=32, kind=GroupKind.STATE)],
    "windows": [Group(block_bytes=32, kind=GroupKind.WINDOW, window_blocks=n) for n in (1, 3)],
}
POLICIES = [
    Policy.parse(text)
    for text in (
        "sync if bytes <= budget_remaining\nasync",
        "sync",
        "async",
        "sync at most budget_remaining\nasync",
        "async at most 64B\nrecompute",
        "defer if deferrals < 2\nsync if tokens <= 8tok\nasync",
        "recompute if tokens <= 4tok\nasync if inflight_loads < 2\nsync",
    )
]
MAX_BLOCKS = 7  # of a request
STEPS_TO_FINISH = 400
# Texts of blocks: mostly the same, so that prompts share prefixes.
PROMPTS = st.lists(st.sampled_from([0, 0, 0, 0, 1]), min_size=1, max_size=MAX_BLOCKS)


class ProtocolMachine(RuleBasedStateMachine):
    """Rules are what can happen to an engine; `SimEngine` does it, `CheckedScheduler` compares.

    Attributes:
        totals: what all machines of this process have done so far: rules, requests, blocks compared and so on.
    """

    totals: ClassVar[Counter[str]] = Counter()

    @initialize(
        kind=st.sampled_from(sorted(GROUPS)), blocks_per_chunk=st.integers(1, 2), num_ranks=st.integers(1, 2),
        block_tokens=st.integers(1, 4), num_host_blocks=st.integers(2, 30), extra_slots=st.integers(0, 5),
        chunk_tokens=st.integers(3, 12), budget_blocks=st.integers(0, 8),
        eviction=st.sampled_from(sorted(EVICTION_POLICIES)),
        policy=st.sampled_from(POLICIES), store_threshold=st.sampled_from([1, 1, 2]), seed=st.integers(0, 1 << 16),
    )  # fmt: skip
    def begin(
        self, kind: str, blocks_per_chunk: int, num_ranks: int, block_tokens: int, num_host_blocks: int,
        extra_slots: int, chunk_tokens: int, budget_blocks: int, eviction: str, policy: Policy, store_threshold: int,
        seed: int,
    ) -> None:  # fmt: skip
        groups = GROUPS[kind]
        rng = random.Random(seed)
        num_slots = [MAX_BLOCKS + 1 + extra_slots] * len(groups)
        self.block_tokens = block_tokens
        self.tier = HostTier(num_host_blocks, eviction=eviction, events=True)
        self.calls = CheckedScheduler(
            policy, self.tier, groups, block_tokens=block_tokens, blocks_per_chunk=blocks_per_chunk, ranks=num_ranks,
            budget_bytes=32 * budget_blocks, max_deferrals=3, store_threshold=store_threshold,
        )  # fmt: skip
        self.ranks = [
            Rank(
                r, num_slots=num_slots, num_host_blocks=num_host_blocks, blocks_per_chunk=blocks_per_chunk, words=2,
                rng=random.Random(seed + r),
            )
            for r in range(num_ranks)
        ]  # fmt: skip
        self.engine = SimEngine(
            self.calls, self.ranks, groups, num_slots=num_slots, block_tokens=block_tokens,
            blocks_per_chunk=blocks_per_chunk, chunk_tokens=chunk_tokens, max_running=4, rng=rng,
        )  # fmt: skip
        self.arrived = 0

    @rule(
        prompts=st.lists(PROMPTS, min_size=1, max_size=3), ends_at=st.integers(0, 3), output=st.integers(0, 6),
        is_cached=st.booleans(),
    )  # fmt: skip
    def arrive(self, prompts: list[list[int]], ends_at: int, output: int, is_cached: bool) -> None:
        """Requests come, after other traffic has taken the GPU cache or not: then only the tier has their prefix."""
        if not is_cached:
            self.engine.forget_cache()
        for branches in prompts:
            total = max(1, len(branches) * self.block_tokens - ends_at % self.block_tokens)
            prompt = max(1, total - output)
            name = f"r{self.arrived}"
            self.arrived += 1
            self.engine.add(SimRequest(name, block_hashes(tuple(branches)), num_tokens=prompt, total_tokens=total))

    @rule(times=st.integers(1, 4))
    def steps(self, times: int) -> None:
        for _ in range(times):
            self.engine.step()

    @rule(rank=st.integers(0, 1), launch=st.integers(0, 2))
    def step_with_a_refused_launch(self, rank: int, launch: int) -> None:
        self.engine.step(StepChoices(refused_launch={rank % len(self.ranks): launch}))

    @rule(number=st.integers(0, 3))
    def step_without_one(self, number: int) -> None:
        """A waiting request gets slots, and is taken back before the step is built; or the whole step is."""
        names = [r.name for r in self.engine.waiting]
        withdrawn = frozenset(names[number : number + 1])
        self.engine.step(StepChoices(withdrawn=withdrawn, aborted=not withdrawn))

    @rule(rank=st.integers(0, 1), most=st.integers(1, 12))
    def copies_go_on(self, rank: int, most: int) -> None:
        self.ranks[rank % len(self.ranks)].queues.run(most)

    @rule()
    def results_come_in(self) -> None:
        self.engine.deliver()

    @precondition(lambda self: self.engine.requests)
    @rule(data=st.data(), is_final=st.booleans())
    def a_request_goes(self, data: st.DataObject, is_final: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.engine.requests)))
        request = self.engine.requests[name]
        if is_final or not request.tables:
            self.engine.abort(name)
        else:
            self.engine.preempt(request)

    @rule(what=st.sampled_from(["reload", "reload", "reset", "new weights", "death", "death without pool"]),
          policy=st.sampled_from(POLICIES), rank=st.integers(0, 1))  # fmt: skip
    def something_rare(self, what: str, policy: Policy, rank: int) -> None:
        if what == "reload":
            self.calls.set_policy(policy)
        elif what in ("reset", "new weights"):
            self.engine.reset(new_weights=what == "new weights")
        else:
            self.engine.restart_rank(rank % len(self.ranks), kept_pool=what == "death")

    @invariant()
    def nothing_is_wrong(self) -> None:
        if not hasattr(self, "engine"):
            return
        self.totals["rules"] += 1
        self.engine.check_integrity()
        self.calls.check()
        self.require_at_rest_is_at_rest()

    def require_at_rest_is_at_rest(self) -> None:
        """Without a job, nobody waits for one, but to be told."""
        if self.calls.inner.num_jobs or self.calls.model.released_later:
            return
        waiting = [r for r in self.engine.requests.values() if r.place in (Place.PARKED, Place.JOINED)]
        if waiting or self.tier.statistics().pinned_blocks or self.engine.zombies:
            raise InternalError(f"no job is under way, and waiting are {waiting}, zombies {self.engine.zombies}")

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        if sys.exc_info()[0] is None:  # after a rule that failed, its error counts, not what follows from it
            self.finish()
            self.count()
        for rank in self.ranks:
            rank.close()

    def finish(self) -> None:
        """Every request finishes, every job ends, and nothing is left."""
        engine = self.engine
        for _ in range(STEPS_TO_FINISH):
            if not engine.requests and not self.calls.inner.num_jobs:
                break
            for rank in self.ranks:
                rank.queues.drain()
            engine.step()
            engine.check_integrity()
            self.calls.check()
        if engine.requests or self.calls.inner.num_jobs:
            raise InternalError(
                f"after {STEPS_TO_FINISH} steps there are {engine.requests} and {self.calls.model.jobs}"
            )
        held: list[Any] = [cache.holders for cache in engine.caches]
        if any(held) or self.tier.statistics().pinned_blocks or self.tier.statistics().storing_blocks:
            raise InternalError(f"left are slots {held} and {self.tier.statistics()}")

    def count(self) -> None:
        """Add to the totals what this machine has done."""
        done = self.calls.inner.statistics()
        self.totals["machines"] += 1
        self.totals["requests finished"] += self.engine.finished
        self.totals["outputs dropped"] += self.engine.dropped
        self.totals["blocks compared"] += sum(rank.compared for rank in self.ranks)
        self.totals["keys evicted"] += self.tier.statistics().keys_evicted
        for name in ("hits", "joins", "loads_released", "loads_failed", "stores_made", "stores_failed"):
            self.totals[name.replace("_", " ")] += getattr(done, name)
