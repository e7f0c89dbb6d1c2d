"""What a replay counts while it runs. The report is made from it, the scheduler's statistics and the caches'."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvmove.records import JobKind, Lane, Result, StepPlan

MISMATCHES_NAMED = 5


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A page that did not hold what its block has to hold."""

    request: str
    source: str  # sync load, async load or GPU cache
    block: int  # its hash id
    page: int  # of the replica

    def __str__(self) -> str:
        return f"request {self.request}, block {self.block}, page {self.page} (from {self.source})"


@dataclass(slots=True)
class Tally:
    """Counters of one replay. Bytes here are those that really moved."""

    requests: int = 0
    finished: int = 0
    refused: int = 0  # longer than the whole cache
    hits: int = 0  # requests that found a prefix in the host tier when they were placed
    joined: int = 0  # times that a request waited for another one's load of its prefix
    prompt_tokens: int = 0
    cached_tokens: int = 0
    loaded_tokens: int = 0
    computed_tokens: int = 0
    hit_steps_offered_bytes: int = 0  # budgets of the steps with a decision
    steps: int = 0
    simulated_ns: int = 0
    ttft_ns: list[int] = field(default_factory=list)
    ttft_of_hits_ns: list[int] = field(default_factory=list)
    loaded_blocks: int = 0  # compared with what they have to hold
    cached_blocks: int = 0  # likewise
    mismatches: int = 0  # pages
    first_mismatches: list[Mismatch] = field(default_factory=list)
    paths: set[str] = field(default_factory=set)  # of the mover that moved them
    moved_bytes: dict[Lane, int] = field(default_factory=lambda: dict.fromkeys(Lane, 0))
    stored_bytes: int = 0

    def planned(self, plan: StepPlan) -> None:
        """Count a step's plan."""
        self.steps += 1
        if plan.decisions:
            self.hit_steps_offered_bytes += plan.budget_bytes

    def first_token(self, ttft_ns: int, *, had_hit: bool) -> None:
        """Count a request's first token, so long after its arrival."""
        self.ttft_ns.append(ttft_ns)
        if had_hit:
            self.ttft_of_hits_ns.append(ttft_ns)

    def ended(self, result: Result) -> None:
        """Count a job that ended."""
        self.paths.add(result.path)
        if result.kind is JobKind.STORE:
            self.stored_bytes += result.bytes
        else:
            self.moved_bytes[result.lane] += result.bytes

    def compared(self, loaded: bool, blocks: int) -> None:
        """Count blocks that were compared, with whatever result."""
        if loaded:
            self.loaded_blocks += blocks
        else:
            self.cached_blocks += blocks

    def mismatch(self, found: Mismatch) -> None:
        """Count a wrong page; the first few are kept."""
        self.mismatches += 1
        if len(self.first_mismatches) < MISMATCHES_NAMED:
            self.first_mismatches.append(found)
