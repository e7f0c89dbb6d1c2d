"""Short ways to drive an offload scheduler in tests: steps, arrivals and results in one call each."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from kvmove.kvpol import Policy
from kvmove.offload.records import Group, JobResult, Lookup, OffloadPlan, Outcome
from kvmove.offload.scheduler import OffloadScheduler
from kvmove.records import Action, Decision
from kvmove.tier import HostTier

BLOCK_TOKENS = 4
BLOCK_BYTES = 100


def prefix_keys(text: str) -> list[Hashable]:
    """One key for each letter: the text up to it, as a chain of hashes stands for all tokens before."""
    return [text[: i + 1] for i in range(len(text))]


class Driver:
    """An `OffloadScheduler` with a small tier, whose prompts are texts of one letter a chunk.

    After every call its invariants are checked.

    Args:
        policy: the text of a policy.
        host_blocks: of the tier.
        groups: one of full attention with `BLOCK_BYTES` a block where none are given.
        options: further arguments of `OffloadScheduler`.
    """

    def __init__(
        self, policy: str = "async", *, host_blocks: int = 64, groups: Sequence[Group] = (), **options: Any
    ) -> None:
        self.tier = HostTier(host_blocks)
        groups = groups or [Group(block_bytes=BLOCK_BYTES)]
        self.num_groups = len(groups)
        self.chunk_tokens = BLOCK_TOKENS * options.get("blocks_per_chunk", 1)
        self.ranks = range(options.get("ranks", 1))
        self.scheduler = OffloadScheduler(Policy.parse(policy), self.tier, groups, block_tokens=BLOCK_TOKENS, **options)

    def arrive(self, name: str, text: str, extra_tokens: int = 1) -> None:
        """A request whose whole chunks are `text`, with some more tokens."""
        self.scheduler.on_request(name, prefix_keys(text), len(text) * self.chunk_tokens + extra_tokens)

    def ask(self, name: str, cached_tokens: int = 0) -> tuple[Lookup, Decision | None]:
        """Look up, and decide on a hit."""
        found = self.scheduler.lookup(name, cached_tokens)
        return found, self.scheduler.decide(name) if found.blocks else None

    def alloc(self, name: str, *tables: Sequence[int]) -> None:
        """The same table for every group, or one each."""
        given = list(tables) if len(tables) > 1 else [tables[0]] * self.num_groups
        self.scheduler.update_after_alloc(name, given)
        self.scheduler.check_integrity()

    def begin(self, **state: int) -> None:
        """Open a step."""
        self.scheduler.begin_step(**state)

    def build(self) -> OffloadPlan:
        """Close the step."""
        plan = self.scheduler.build_step()
        self.scheduler.check_integrity()
        return plan

    def step(self) -> OffloadPlan:
        """A step without arrivals: what is deferred is stored."""
        self.begin()
        return self.build()

    def report(self, jobs: Sequence[int], *, failed: Sequence[int] = ()) -> Outcome:
        """Every rank reports these jobs."""
        results = [JobResult(j, r, "it broke" if j in failed else None) for r in self.ranks for j in jobs]
        outcome = self.scheduler.on_results(results)
        self.scheduler.check_integrity()
        return outcome

    def store(self, text: str, first_slot: int = 0) -> None:
        """Let the tier hold all chunks of this text: a request computes them in slots from `first_slot`, and ends."""
        name = f"writer of {text}"
        self.arrive(name, text)
        blocks = len(text) * self.chunk_tokens // BLOCK_TOKENS
        self.begin()
        self.alloc(name, range(first_slot, first_slot + blocks + 1))
        self.build()
        self.scheduler.computed(name, blocks * BLOCK_TOKENS)
        assert self.scheduler.finish(name)
        plan = self.step()
        self.report(plan.jobs)

    def load(self, name: str, slots: Sequence[int], cached_tokens: int = 0) -> Action | None:
        """Ask for a request and give it slots where it runs or loads; what was decided."""
        found, decision = self.ask(name, cached_tokens)
        if decision is None:
            if found.joined_job is None:
                self.alloc(name, slots)
            return None
        if decision.action is not Action.DEFER:
            self.alloc(name, slots)
        return decision.action

    def assert_at_rest(self) -> None:
        """Nothing is under way, pinned or being stored."""
        assert self.scheduler.num_jobs == 0
        statistics = self.tier.statistics()
        assert (statistics.pinned_blocks, statistics.storing_blocks, statistics.leaving_blocks) == (0, 0, 0)
