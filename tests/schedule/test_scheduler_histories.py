"""Random histories of steps against a model that is too simple to be wrong."""

from __future__ import annotations

import logging
import random
from dataclasses import dataclass
from typing import Any, TypeAlias

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvmove import Action, Decision, Demotion, Hit, Lane, Refused, StepPlan, StepScheduler, schema

REQUESTS = st.sampled_from("abcdefgh")
BUDGETS = st.integers(0, 12)
LOADS = (Action.SYNC, Action.ASYNC)
ACTIONS = (Action.ASYNC, Action.SYNC, Action.RECOMPUTE, Action.DEFER, Action.SYNC)
# What a policy may answer: a rule, leading blocks, a rule or blocks that do not exist, nonsense, or an error.
# Bad answers are rare, because each makes the rest of its step the same.
BAD_ANSWERS = st.sampled_from([5, 255, -1, 261, 5 << 8, 1 << 8 | 2, None, "sync", ValueError("x"), KeyError()])
PARTS = st.tuples(st.integers(1, 2), st.sampled_from([0, 1, 4])).map(lambda part: part[0] << 8 | part[1])
ANSWERS = st.integers(0, 19).flatmap(
    lambda n: BAD_ANSWERS if n == 19 else PARTS if n > 14 else st.just(n % len(ACTIONS))
)
Ask: TypeAlias = tuple[str, int, int, int, int, Any, str]
# request, bytes, blocks, tokens to compute, deferrals, the policy's answer, and what follows at once
ASKS: st.SearchStrategy[Ask] = st.tuples(
    REQUESTS,
    st.integers(1, 6),
    st.integers(1, 4),
    st.integers(0, 2),
    st.integers(0, 5),
    ANSWERS,
    st.sampled_from(["", "", "admit", "admit", "confirm", "confirm and refund"]),
)


@dataclass
class Rule:
    action: Action


class ScriptedPolicy:
    """Gives the answers that the history wrote into it: one for each hit, else one for all."""

    name = "scripted"

    def __init__(self, budget_bytes: int | None, policy_hash: str) -> None:
        self.budget_bytes = budget_bytes
        self.hash = policy_hash
        self.rules = tuple(Rule(action) for action in ACTIONS)
        self.answer: Any = 0
        self.answers: dict[int, Any] = {}  # by the hit's priority, which nothing else reads

    def decide(self, hit: Hit, step: Any) -> int:
        answer = self.answers.get(hit.priority, self.answer)
        if isinstance(answer, Exception):
            raise answer
        return answer  # type: ignore[no-any-return]


class Source:
    """Hands its policy out as a file would."""

    def __init__(self, policy: ScriptedPolicy) -> None:
        self.current = policy


class ShadowPolicy(ScriptedPolicy):
    """Asks for something else each time, and sometimes fails."""

    def decide(self, hit: Hit, step: Any) -> int:
        self.answer = (7 * hit.bytes + 3 * hit.deferrals + step.sync_loads) % 6
        return super().decide(hit, step)


def make_hit(
    request: str, num_bytes: int, blocks: int = 1, compute: int = 1, deferrals: int = 0, priority: int = 0
) -> Hit:
    return Hit(
        request=request,
        bytes=num_bytes,
        tokens=blocks,
        blocks=blocks,
        prompt_tokens=blocks + compute,
        cached_tokens=0,
        compute_tokens=compute,
        deferrals=deferrals,
        priority=priority,
    )


def valid(answer: Any, blocks: int) -> bool:
    """Whether it is a verdict about a hit of so many blocks."""
    if type(answer) is not int or answer < 0 or answer & 255 >= len(ACTIONS):
        return False
    return answer >> 8 == 0 or (answer >> 8 <= blocks and ACTIONS[answer & 255] in LOADS)


class SchedulerHistory(RuleBasedStateMachine):
    """The model keeps lists and adds them up again for every question."""

    MAX_DEFERRALS = 3

    @initialize(budget=st.none() | BUDGETS, policy_budget=st.none() | BUDGETS)
    def start(self, budget: int | None, policy_budget: int | None) -> None:
        self.policy = self.next_policy = ScriptedPolicy(policy_budget, "0")
        self.next_budget = budget
        # A shadow is there in every second history, and must not show.
        shadow = ShadowPolicy(9, "shadow") if (budget or 0) % 2 else None
        self.scheduler = StepScheduler(
            self.policy, budget_bytes=budget, max_deferrals=self.MAX_DEFERRALS, shadow=shadow
        )
        self.open = False
        self.budget = 0
        self.failed = False
        self.decisions: list[Decision] = []
        self.admitted: dict[str, int | None] = {}  # with the load's job; None where the caller makes the load
        self.stores: list[int] = []
        self.jobs: list[int] = []
        self.plans: list[StepPlan] = []
        self.aborted = 0

    def sync_bytes(self) -> int:
        return sum(d.bytes for d in self.decisions if d.action is Action.SYNC)

    def decision_of(self, request: str) -> Decision | None:
        return next((d for d in self.decisions if d.request == request), None)

    def forget(self, request: str) -> None:
        self.decisions = [d for d in self.decisions if d.request != request]
        self.admitted.pop(request, None)

    @precondition(lambda self: not self.open)
    @rule()
    def decide_outside_a_step(self) -> None:
        with pytest.raises(Refused):
            self.scheduler.decide(make_hit("a", 1))

    @rule()
    def begin(self) -> None:
        self.aborted += self.open
        self.policy = self.next_policy
        budgets = [self.next_budget, self.policy.budget_bytes, schema.DEFAULT_BUDGET_BYTES]
        self.budget = next(b for b in budgets if b is not None)
        state = self.scheduler.begin_step()
        assert (state.budget_bytes, state.budget_remaining_bytes, state.sync_loads) == (self.budget, self.budget, 0)
        self.open, self.failed, self.decisions, self.admitted, self.stores = True, False, [], {}, []

    @rule(budget=st.none() | BUDGETS)
    def set_budget(self, budget: int | None) -> None:
        self.next_budget = budget
        self.scheduler.set_budget(budget)

    @rule(budget=st.none() | BUDGETS, policy_hash=st.sampled_from("12"), followed=st.booleans())
    def set_policy(self, budget: int | None, policy_hash: str, followed: bool) -> None:
        self.next_policy = ScriptedPolicy(budget, policy_hash)
        self.scheduler.set_policy(Source(self.next_policy) if followed else self.next_policy)

    # Several a call, because steps with many hits are where a ledger goes wrong.
    @rule(asks=st.lists(ASKS, min_size=1, max_size=8))
    def decide(self, asks: list[Ask]) -> None:
        if not self.open:  # most histories would otherwise spend their calls between steps
            self.begin()
        for request, num_bytes, blocks, compute, deferrals, answer, then in asks:
            hit = make_hit(request, num_bytes, blocks, compute, deferrals)
            self.policy.answer = answer
            if request in self.admitted:
                with pytest.raises(Refused):
                    self.scheduler.decide(hit)
                continue
            self.expect(hit, answer, self.scheduler.decide(hit))
            if then == "admit":
                self.admit(request, 0)
            elif then:
                self.confirm(request)
                if "refund" in then:
                    self.refund(request)

    @rule(asks=st.lists(ASKS, max_size=8))
    def decide_batch(self, asks: list[Ask]) -> None:
        """A request may be in it twice, and then keeps its last decision."""
        if not self.open:
            self.begin()
        hits = [make_hit(*ask[:5], priority=i + 1) for i, ask in enumerate(asks)]
        self.policy.answers = {i + 1: ask[5] for i, ask in enumerate(asks)}
        if any(hit.request in self.admitted for hit in hits):
            with pytest.raises(Refused):
                self.scheduler.decide_batch(hits)
            return
        decisions = self.scheduler.decide_batch(hits)
        assert len(decisions) == len(hits)
        for hit, ask, decision in zip(hits, asks, decisions, strict=True):
            self.expect(hit, ask[5], decision)

    def expect(self, hit: Hit, answer: Any, decision: Decision) -> None:
        """Hold a decision against what the model makes of the policy's answer, and take it in."""
        request, num_bytes, blocks = hit.request, hit.bytes, hit.blocks
        compute, deferrals = hit.compute_tokens, hit.deferrals
        self.forget(request)
        self.failed = self.failed or not valid(answer, blocks)
        asked, part = Action.SYNC, blocks
        if not self.failed:
            asked, part = ACTIONS[answer & 255], answer >> 8 or blocks
        part_bytes = -(-part * num_bytes // blocks)
        expected: Demotion | None = None
        if self.failed:
            expected = Demotion.POLICY_FAILED
        elif asked is Action.SYNC and compute == 0 and part == blocks:
            expected = Demotion.NOTHING_TO_COMPUTE
        elif asked is Action.SYNC and self.sync_bytes() + part_bytes > self.budget:
            expected = Demotion.OVER_BUDGET
        elif asked is Action.DEFER and deferrals >= self.MAX_DEFERRALS:
            expected = Demotion.DEFERRED_TOO_OFTEN
        assert decision.demotion is expected
        assert decision.action is (Action.ASYNC if expected else asked)
        assert decision.policy_hash == self.policy.hash
        loads = decision.action in LOADS
        # A hit of these has as many tokens as blocks.
        assert (decision.blocks, decision.tokens, decision.bytes) == ((part, part, part_bytes) if loads else (0, 0, 0))
        assert decision.partial == (part < blocks)
        self.decisions.append(decision)

    @rule(request=REQUESTS)
    def confirm(self, request: str) -> None:
        """The caller makes the load: it has no job here."""
        decision = self.decision_of(request) if self.open else None
        if decision is None or decision.action not in LOADS or request in self.admitted:
            with pytest.raises(Refused):
                self.scheduler.confirm(request)
            return
        self.scheduler.confirm(request)
        self.admitted[request] = None

    @rule(request=REQUESTS, wrong=st.sampled_from([0, 0, 0, 1]))
    def admit(self, request: str, wrong: int) -> None:
        decision = self.decision_of(request) if self.open else None
        blocks = list(range((decision.blocks if decision else 1) + wrong))
        if decision is None or decision.action not in LOADS or request in self.admitted or wrong:
            with pytest.raises(Refused):
                self.scheduler.admit(request, blocks, blocks)
            return
        load = self.scheduler.admit(request, blocks, blocks)
        assert load.lane is (Lane.EXPEDITED if decision.action is Action.SYNC else Lane.BULK)
        self.admitted[request] = load.job
        self.jobs.append(load.job)

    @rule(request=REQUESTS)
    def refund(self, request: str) -> None:
        if not self.open or self.decision_of(request) is None:
            with pytest.raises(Refused):
                self.scheduler.refund(request)
            return
        self.scheduler.refund(request)
        self.forget(request)

    @precondition(lambda self: self.open)
    @rule(blocks=st.integers(1, 3))
    def store(self, blocks: int) -> None:
        job = self.scheduler.store(range(blocks), range(blocks)).job
        self.stores.append(job)
        self.jobs.append(job)

    @precondition(lambda self: self.open)
    @rule()
    def end(self) -> None:
        plan = self.scheduler.end_step()
        kept = [d for d in self.decisions if d.action not in LOADS or d.request in self.admitted]
        sync = [d for d in kept if d.action is Action.SYNC]
        assert list(plan.decisions) == kept
        assert plan.sync_bytes == sum(d.bytes for d in sync) <= plan.budget_bytes == self.budget
        assert {load.job for load in plan.sync_loads} == {self.admitted[d.request] for d in sync} - {None}
        assert {load.job for load in (*plan.sync_loads, *plan.async_loads)} == set(self.admitted.values()) - {None}
        assert [store.job for store in plan.stores] == self.stores
        self.plans.append(plan)
        self.open = False

    @rule()
    def abort(self) -> None:
        if not self.open:
            with pytest.raises(Refused):
                self.scheduler.abort_step()
            return
        self.scheduler.abort_step()
        self.open = False
        self.aborted += 1

    @invariant()
    def the_budget_holds_and_the_ledger_is_the_models(self) -> None:
        self.scheduler.check_integrity()
        step = self.scheduler._step
        assert (step is not None) == self.open
        if step is not None:
            assert 0 <= self.sync_bytes() <= self.budget
            assert step.ledger.budget_remaining_bytes == self.budget - self.sync_bytes()
            assert step.ledger.sync_loads == sum(d.action is Action.SYNC for d in self.decisions)
        assert self.jobs == list(range(len(self.jobs)))

    def teardown(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        statistics = self.scheduler.statistics()
        planned = [d for plan in self.plans for d in plan.decisions]
        assert (statistics.steps, statistics.aborted_steps) == (len(self.plans), self.aborted)
        assert statistics.jobs == len(self.jobs)
        assert statistics.budget_offered_bytes == sum(plan.budget_bytes for plan in self.plans)
        assert statistics.budget_used_bytes == sum(plan.sync_bytes for plan in self.plans)
        assert statistics.admitted_bytes[Lane.BULK] == sum(d.bytes for d in planned if d.action is Action.ASYNC)
        assert statistics.decisions == {a: sum(d.action is a for d in planned) for a in Action}
        assert statistics.partial_loads == sum(d.partial for d in planned)
        assert statistics.demotions == {a: sum(d.demotion is a for d in planned) for a in Demotion}
        matched = [d for d in planned if d.demotion is not Demotion.POLICY_FAILED]
        assert sum(sum(counts) for counts in statistics.rules.values()) == len(matched)


logging.getLogger("kvmove.schedule").addHandler(logging.NullHandler())  # failing policies are most of the histories
TestSchedulerHistory = SchedulerHistory.TestCase
TestSchedulerHistory.settings = settings(max_examples=120, stateful_step_count=40)


def trace_of(seed: int) -> list[StepPlan]:
    """Run a long random history and return its plans."""
    rng = random.Random(seed)
    policy = ScriptedPolicy(None, "0")
    scheduler = StepScheduler(policy, budget_bytes=60)
    plans = []
    for _ in range(60):
        scheduler.begin_step()
        for _ in range(rng.randrange(12)):
            policy.answer = rng.choice([0, 1, 1, 2, 3, 4, 4, None] if rng.random() < 0.1 else [0, 1, 2, 3])
            hit = make_hit(f"r{rng.randrange(10)}", rng.randint(1, 30), rng.randint(1, 3), rng.randrange(3))
            if any(hit.request == done for done in scheduler._step.loads):  # type: ignore[union-attr]
                scheduler.refund(hit.request)
            decision = scheduler.decide(hit)
            if decision.blocks and rng.random() < 0.7:
                slots = rng.sample(range(100), decision.blocks)
                scheduler.admit(hit.request, slots, slots)
        plans.append(scheduler.end_step())
    return plans


def test_the_same_seed_gives_the_same_trace() -> None:
    """Nothing but the calls decides: no clock, no order of a set, no identity of an object."""
    assert trace_of(1) == trace_of(1)
    assert trace_of(1) != trace_of(2)
