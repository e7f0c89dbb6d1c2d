"""Asks the policy about the hits of vLLM's steps. vLLM names no step, so this finds out where one begins and ends.

vLLM's scheduler asks about a request, allocates its slots or gives up on it, and only then asks about the next one;
when it has gone through its queue it builds the step's metadata. So:

1. The first question after the metadata of a step opens the next step, with whatever policy is current by then.
2. A question about another request says that the one before was given up, unless it was admitted: it is refunded.
3. `end_step`, where the metadata is built, closes the step, if a question opened one.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kvmove.errors import RecordError, Refused
from kvmove.integrations.vllm.estimates import Estimates
from kvmove.integrations.vllm.hit_sizes import HitSizes
from kvmove.integrations.vllm.options import Options
from kvmove.kvpol import Policy
from kvmove.kvpol.library import shipped
from kvmove.kvpol.reload import PolicyFile
from kvmove.records import Action, Hit, StepPlan
from kvmove.schedule import Statistics, StepScheduler
from kvmove.schema import MAX_PRIORITY, MAX_TIME

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Answer:
    """What vLLM is told about a hit: how many of its tokens to load; None asks again in the next step."""

    tokens: int | None
    is_sync: bool = False
    num_bytes: int = 0  # on one GPU


@dataclass(frozen=True, slots=True)
class Engine:
    """The state of the engine when a step begins, as far as a connector knows it."""

    inflight_bytes: int = 0
    inflight_loads: int = 0
    running: int = 0
    waiting: int = 0
    free_slots: int = 0


@dataclass(slots=True)
class _Wait:
    """A request that was asked about, until it is admitted."""

    since_ns: int
    deferrals: int = 0


class StepDecisions:
    """The policy's side of one engine's scheduler. One thread at a time.

    Args:
        options: the policy, its params, the budget.
        sizes: what a hit weighs.
        clock_ns: the time, in nanoseconds, for `waited`.

    Raises:
        PolicyError: the policy cannot be used.
        Refused: a shipped policy is to be watched, or the extra `watch` is not installed.
    """

    def __init__(self, options: Options, sizes: HitSizes, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self.estimates = Estimates()
        self._sizes, self._clock_ns = sizes, clock_ns
        self._file: PolicyFile | None = None
        if options.policy_watch:
            if options.policy in shipped() and not Path(options.policy).exists():
                raise Refused(
                    f"policy_watch follows a file, and `{options.policy}` is a policy that kvmove ships; "
                    "save it under a path of yours and name that, or leave policy_watch out"
                )
            self._file = PolicyFile(options.policy, options.policy_params)
            policy = self._file.current
        else:
            policy = Policy.load(options.policy, options.policy_params)
        self._policy = policy
        self._scheduler = StepScheduler(
            policy, budget_bytes=options.sync_load_budget_bytes, max_deferrals=options.policy_max_deferrals
        )
        self._is_open = False
        self._asked: set[str] = set()  # in the open step
        self._pending: str | None = None  # is to load, and was neither admitted nor given up so far
        self._waits: dict[str, _Wait] = {}
        self._reported_records = False
        _log.info("kvmove decides with policy `%s` (%s)", policy.name, policy.hash)

    def was_asked(self, request: str | None = None) -> bool:
        """Whether a question, or one about this request, belongs to a step that has not ended."""
        return self._is_open if request is None else request in self._asked

    @property
    def policy(self) -> Policy:
        """The policy of the present step, or between two steps, of the last one."""
        return self._policy

    def ask(
        self,
        request: str,
        *,
        cached_tokens: int,
        hit_tokens: int,
        prompt_tokens: int,
        priority: int,
        deadline_left_ns: int | None,
        engine: Callable[[], Engine],
    ) -> Answer:
        """Say what the request's hit, `hit_tokens` behind `cached_tokens`, does in this step.

        The request asked about before must have been admitted or given up. `engine` is called where the step begins
        with this question.
        """
        if not self._is_open:
            self._begin(engine())
        self._asked.add(request)
        wait = self._waits.setdefault(request, _Wait(self._clock_ns()))
        end = cached_tokens + hit_tokens
        num_bytes = self._sizes.num_bytes(cached_tokens, end)
        try:
            hit = Hit(
                request=request,
                bytes=max(1, num_bytes),
                tokens=hit_tokens,
                blocks=self._sizes.num_blocks(cached_tokens, end),
                prompt_tokens=prompt_tokens,
                cached_tokens=cached_tokens,
                compute_tokens=prompt_tokens - end,
                load_time_ns=self.estimates.load_time_ns(num_bytes),
                recompute_time_ns=self.estimates.recompute_time_ns(hit_tokens),
                waited_ns=min(MAX_TIME, self._clock_ns() - wait.since_ns),
                deferrals=wait.deferrals,
                priority=max(-MAX_PRIORITY, min(MAX_PRIORITY, priority)),
                deadline_left_ns=deadline_left_ns,
                cuts=self._sizes.cuts(cached_tokens, end),
            )
        except RecordError as error:
            # No request is worth an engine. Such a hit is outside what policies are checked for.
            if not self._reported_records:
                self._reported_records = True
                _log.exception("no policy can decide about request %s, and it loads asynchronously: %s", request, error)
            return Answer(hit_tokens, num_bytes=num_bytes)
        decision = self._scheduler.decide(hit)
        if decision.action is Action.DEFER:
            wait.deferrals += 1
            return Answer(None)
        if decision.action is Action.RECOMPUTE:
            return Answer(0)
        self._pending = request
        tokens = decision.blocks * self._sizes.block_tokens if decision.partial else hit_tokens
        return Answer(tokens, decision.action is Action.SYNC, decision.bytes)

    def admitted(self, request: str, *, loads: bool) -> None:
        """Note that the engine gave this request slots, and whether it loads what it was told to load."""
        self._waits.pop(request, None)
        if request == self._pending:
            if loads:
                self._scheduler.confirm(request)
                self._pending = None
            else:
                self.give_up()

    def give_up(self) -> str | None:
        """Take back the last decision if the engine did not act on it; whose it was, or None.

        Call it where vLLM turns to another request.
        """
        request, self._pending = self._pending, None
        if request is not None:
            self._scheduler.refund(request)
        return request

    def end_step(self) -> StepPlan | None:
        """Close the step, and return what was decided in it; None where no question opened one."""
        self.give_up()
        if not self._is_open:
            return None
        self._is_open = False
        self._asked.clear()
        return self._scheduler.end_step()

    def abort_step(self) -> None:
        """Forget a step in which the engine failed, with everything that it reserved."""
        self._pending = None
        if self._is_open:
            self._is_open = False
            self._asked.clear()
            self._scheduler.abort_step()

    def forget(self, request: str) -> None:
        """Forget a request that has finished or was aborted."""
        self._waits.pop(request, None)

    def statistics(self) -> Statistics:
        """What was decided so far."""
        return self._scheduler.statistics()

    @property
    def file_is_broken(self) -> bool | None:
        """Whether the followed file cannot be used as it is now; None where none is followed. It never blocks."""
        return None if self._file is None else self._file.is_broken

    def close(self) -> None:
        """Stop following the policy's file. Calling it again does nothing."""
        if self._file is not None:
            self._file.close()

    def _begin(self, engine: Engine) -> None:
        if self._file is not None:
            self._policy = self._file.apply_to(self._scheduler, self._policy)
        estimates = self.estimates
        self._scheduler.begin_step(
            inflight_bytes=engine.inflight_bytes,
            inflight_loads=engine.inflight_loads,
            drain_time_ns=estimates.load_time_ns(engine.inflight_bytes),
            step_time_ns=estimates.step_time_ns(),
            async_delay_ns=estimates.async_delay_ns(),
            running=engine.running,
            waiting=engine.waiting,
            free_slots=engine.free_slots,
        )
        self._is_open = True
