"""An offload scheduler whose every answer is compared with the model of the protocol."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import TYPE_CHECKING

from kvmove.offload.records import Group, JobResult, Lookup, OffloadPlan, Outcome
from kvmove.offload.scheduler import OffloadScheduler
from kvmove.records import Decision
from kvmove.schedule import HitPolicy
from kvmove.testing.protocol_model import Key, ProtocolModel, require
from kvmove.tier import EventKind, HostTier

if TYPE_CHECKING:
    from kvmove.transfers import IndexLike


class CheckedScheduler:
    """An `OffloadScheduler` as its engine sees it. After each call, scheduler, tier and model have to agree.

    Raises:
        ModelMismatch: an answer is not what follows from the calls before it.
    """

    def __init__(
        self, policy: HitPolicy, tier: HostTier, groups: Sequence[Group], *, block_tokens: int, blocks_per_chunk: int,
        ranks: int, budget_bytes: int, max_deferrals: int = 16, store_threshold: int = 1,
    ) -> None:  # fmt: skip
        self.inner = OffloadScheduler(
            policy, tier, groups, block_tokens=block_tokens, blocks_per_chunk=blocks_per_chunk, ranks=ranks,
            budget_bytes=budget_bytes, max_deferrals=max_deferrals, store_threshold=store_threshold,
        )  # fmt: skip
        self.tier = tier
        self.model = ProtocolModel(
            groups, block_tokens=block_tokens, blocks_per_chunk=blocks_per_chunk, ranks=ranks, budget_bytes=budget_bytes
        )
        self._names: dict[Hashable, Key] = {}  # the tier's keys, as the model has them
        self._jobs: set[int] = set()

    def set_policy(self, policy: HitPolicy) -> None:
        self.inner.set_policy(policy)

    def on_request(self, request: str, keys: Sequence[Hashable], num_tokens: int) -> None:
        self.inner.on_request(request, keys, num_tokens)
        self.model.on_request(request, keys, num_tokens)

    def extend(self, request: str, keys: Sequence[Hashable], num_tokens: int) -> None:
        self.inner.extend(request, keys, num_tokens)
        self.model.extend(request, keys, num_tokens)

    def begin_step(self, *, running: int = 0, waiting: int = 0, free_slots: int = 0) -> None:
        self.inner.begin_step(running=running, waiting=waiting, free_slots=free_slots)

    def lookup(self, request: str, cached_tokens: int) -> Lookup:
        answer = self.inner.lookup(request, cached_tokens)
        self.model.lookup(request, cached_tokens // self.model.block_tokens, answer)
        return answer

    def decide(self, request: str) -> Decision:
        answer = self.inner.decide(request)
        self.model.decide(request, answer)
        return answer

    def update_after_alloc(self, request: str, slots: Sequence[IndexLike]) -> None:
        number = self.inner._next_job  # a load that was only admitted shows it nowhere else
        self.inner.update_after_alloc(request, slots)
        self.model.update_after_alloc(request, [[int(slot) for slot in table] for table in slots], number)

    def refund(self, request: str) -> None:
        self.inner.refund(request)
        self.model.take_back(request)

    def build_step(self) -> OffloadPlan:
        plan = self.inner.build_step()
        self._learn_names(plan)
        self._evict()
        self.model.build_step(plan, self._jobs)
        self._jobs.update(plan.jobs)
        self.check()
        return plan

    def abort_step(self) -> None:
        self.inner.abort_step()
        for name in list(self.model.requests):
            self.model.take_back(name)
        self.model.close_step()
        self.check()

    def computed(self, request: str, num_tokens: int) -> None:
        self.inner.computed(request, num_tokens)
        self.model.computed(request, num_tokens)

    def on_results(self, results: Iterable[JobResult]) -> Outcome:
        given = list(results)
        answer = self.inner.on_results(given)
        for result in given:
            if result.rank not in self.model.lost:
                self.model.report(result.job, result.rank, result.error)
        self.model.outcome(answer)
        self.check()
        return answer

    def worker_died(self, rank: int, error: str) -> Outcome:
        answer = self.inner.worker_died(rank, error)
        self.model.lose_rank(rank)
        self.model.outcome(answer)
        self.check()
        return answer

    def worker_replaced(self, rank: int, *, kept_pool: bool) -> None:
        self.inner.worker_replaced(rank, kept_pool=kept_pool)
        self.model.lost.discard(rank)
        if not kept_pool:
            self.model.reset()
        self.check()

    def preempt(self, request: str) -> bool:
        are_free = self.inner.preempt(request)
        self.model.leave(request, are_free)
        return are_free

    def finish(self, request: str) -> bool:
        are_free = self.inner.finish(request)
        self.model.leave(request, are_free)
        del self.model.requests[request]
        return are_free

    def abort(self, request: str) -> bool:
        are_free = self.inner.abort(request)
        self.model.leave(request, are_free)
        del self.model.requests[request]
        return are_free

    def reset_cache(self) -> None:
        self.inner.reset_cache()
        self.model.reset()
        self.check()

    def check_integrity(self) -> None:
        self.inner.check_integrity()

    def check(self) -> None:
        """The tier serves what the model serves, and pins what loads hold: nothing more."""
        self.inner.check_integrity()
        ready = {self._names[key] for key in self.tier.ready_keys()}
        require(ready == self.model.served, "served are {}, expected {}", ready, self.model.served)
        pinned = self.tier.statistics().pinned_blocks
        require(pinned == len(+self.model.pins), "{} blocks are pinned, loads hold {}", pinned, self.model.pins)
        require(self.inner.num_jobs == len(self.model.jobs), "{} jobs: {}", self.inner.num_jobs, self.model.jobs)

    def _evict(self) -> None:
        """Only what no load holds and no store is to be served from may go, and only to make room for stores."""
        removed: set[Key] = set()
        for event in self.tier.take_events():
            if event.kind is EventKind.REMOVED:
                removed |= {self._names[key] for key in event.keys} & self.model.served
        held = removed & (+self.model.pins).keys()
        require(not held, "{} were evicted while loads hold them", held)
        self.model.served -= removed

    def _learn_names(self, plan: OffloadPlan) -> None:
        for spec in plan.stores:
            keys = self.model.key_lists[spec.request]
            for part in spec.groups:
                first = part.position // self.model.k
                for i, tier_key in enumerate(part.keys):
                    name = self._names.setdefault(tier_key, (part.group, keys[first + i]))
                    require(name == (part.group, keys[first + i]), "{} stands for two blocks: {}", tier_key, name)
