"""The tree evaluator, the compiled function, the compiled batch and the trace decide alike, in thousands of cases.

`tests/proof` compares the solver's model with them, and `test_compiled_equals_evaluator` shrinks what it finds. Here
the cases are many and cheap: drawn policies, and for each of them hits and steps from a seeded source, with hits that
are cut where blocks of stated sizes allow it. A failure names the policy's place in the corpus and the case's seed.
"""

from __future__ import annotations

from collections import Counter
from random import Random

from kvmove import Action, Hit, Policy, StepScheduler, StepState, schema
from kvmove.kvpol.evaluate import Evaluator
from kvmove.kvpol.trace import trace
from kvmove.schedule.ledger import Ledger
from kvmove.testing.corpus import drawn_policies, random_hit, random_step
from kvmove.testing.edges import edges_of

SINGLES, BATCHES, HITS = 30, 3, 10  # for each policy: single decisions, batches, hits of a batch
TRACED = 3  # of the single decisions, which take the longest to explain


class Admission:
    """Debits a ledger as a scheduler does, and keeps the verdicts."""

    def __init__(self, policy: Policy, step: StepState) -> None:
        self.policy, self.ledger = policy, Ledger(step)
        self.verdicts: list[int] = []

    def __call__(self, hit: Hit, verdict: int) -> None:
        self.verdicts.append(verdict)
        num_bytes = hit.prefix_bytes(verdict >> 8 or hit.blocks)
        if self.policy.rules[verdict & 255].action is Action.SYNC and num_bytes <= self.ledger.budget_remaining_bytes:
            self.ledger.reserve(num_bytes)


def test_single_decisions() -> None:
    """Three ways decide alike, and for some cases the trace, whose verdict is the fourth."""
    outcomes: Counter[str] = Counter()
    for index, policy in enumerate(drawn_policies()):
        edges = edges_of(policy)
        evaluator = Evaluator(policy.analysis.file, policy.program.params)
        for seed in range(SINGLES):
            rng = Random(1000 * index + seed)
            hit = random_hit(rng, edges)
            step = random_step(rng, edges, beside=[hit])
            told: list[int] = []
            policy.decide_batch([hit], step, lambda _, verdict, told=told: told.append(verdict))
            verdict = policy.decide(hit, step)
            assert told == [verdict], (index, seed)
            assert verdict == evaluator.verdict(hit, step), (index, seed)
            if seed < TRACED:
                assert trace(policy, hit, step).verdict == verdict, (index, seed)
            blocks, rule = verdict >> 8, policy.rules[verdict & 255]
            assert blocks < hit.blocks
            assert hit.cuts is None or blocks == 0 or blocks in hit.cuts, (index, seed)
            outcomes[f"{rule.action}{' in part' if blocks else ''}"] += 1
    # The cases are worth their time only while all outcomes are among them.
    assert outcomes.keys() >= {"sync", "async", "recompute", "defer", "sync in part", "async in part"}


def test_batches_with_the_ledger() -> None:
    """A hit sees what those before it left, in three implementations; and in the scheduler, with its guard rails."""
    reserved = 0
    for index, policy in enumerate(drawn_policies()):
        edges = edges_of(policy)
        evaluator = Evaluator(policy.analysis.file, policy.program.params)
        for seed in range(BATCHES):
            rng = Random(1000 * index + seed)
            hits = [random_hit(rng, edges, max_bytes=1 << 30, request=f"r{i}") for i in range(HITS)]
            step = random_step(rng, edges, beside=hits)
            batch, single, walked = (Admission(policy, step) for _ in range(3))
            policy.decide_batch(hits, batch.ledger, batch)
            for hit in hits:
                single(hit, policy.decide(hit, single.ledger))
                walked(hit, evaluator.verdict(hit, walked.ledger))
            assert batch.verdicts == single.verdicts == walked.verdicts, (index, seed)
            assert batch.ledger.budget_remaining_bytes == walked.ledger.budget_remaining_bytes
            reserved += batch.ledger.sync_loads - step.sync_loads
            in_batch, one_by_one = scheduled(policy, step), scheduled(policy, step)
            assert in_batch.decide_batch(hits) == [one_by_one.decide(hit) for hit in hits], (index, seed)
            in_batch.check_integrity()
            assert in_batch.end_step() == one_by_one.end_step()
            assert in_batch.statistics() == one_by_one.statistics()
            assert in_batch.statistics().policy_errors == 0
    assert reserved > 0


def scheduled(policy: Policy, step: StepState) -> StepScheduler:
    """A scheduler with an open step like this one."""
    scheduler = StepScheduler(policy, budget_bytes=step.budget_bytes)
    given = {v.attribute: getattr(step, v.attribute) for v in schema.STEP if not v.name.startswith("budget")}
    del given["sync_loads"]
    scheduler.begin_step(**given)
    return scheduler
