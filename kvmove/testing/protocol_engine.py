"""A small engine around an offload scheduler and its ranks: block tables, a prefix cache, preemption, real bytes.

It does what an engine does with the answers of the scheduler, and judges by the bytes: every step reads all that its
requests attend to, and compares.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from kvmove.errors import InternalError, SyncLoadFailed
from kvmove.offload.interface import OffloadCalls
from kvmove.offload.records import FailedLoad, Group, JobResult, LookupKind, OffloadPlan, Outcome, Released
from kvmove.offload.worker_steps import job_results, start_step
from kvmove.records import Action
from kvmove.testing.protocol_ranks import Rank, Wrong
from kvmove.testing.protocol_requests import Place, SimRequest, partial_hash
from kvmove.testing.protocol_slots import SlotCache


@dataclass(slots=True)
class StepChoices:
    """What may go one way or the other in a step.

    Attributes:
        refused_launch: by rank, the launch of this step that is refused, counted from 0.
        fault_rate: for each job and rank, the chance that one of the step's launches is refused.
        withdrawn: requests that get their slots and are taken back before the step is built.
        aborted: the step is given up before it is built.
    """

    refused_launch: dict[int, int] = field(default_factory=dict)
    fault_rate: float = 0.0
    withdrawn: frozenset[str] = frozenset()
    aborted: bool = False


@dataclass(frozen=True, slots=True)
class _Snapshot:
    caches: list[SlotCache]
    waiting: list[SimRequest]
    running: list[SimRequest]
    kept: dict[str, tuple[Place, int, list[list[int]], int | None]]


class SimEngine:
    """An engine of several ranks with one scheduler.

    Args:
        calls: the scheduler.
        ranks: its workers with their memory.
        groups: as the scheduler has them.
        num_slots: of each group.
        chunk_tokens: the most tokens of one request that a step computes.
        max_running: requests.
        rng: decides which results come when, and what an output has in the end.
    """

    def __init__(
        self, calls: OffloadCalls, ranks: Sequence[Rank], groups: Sequence[Group], *, num_slots: Sequence[int],
        block_tokens: int, blocks_per_chunk: int, chunk_tokens: int, max_running: int, rng: random.Random,
    ) -> None:  # fmt: skip
        self.calls = calls
        self.ranks = list(ranks)
        self.needed = [group.needed_blocks for group in groups]
        self.caches = [SlotCache(n) for n in num_slots]
        self.block_tokens = block_tokens
        self.k = blocks_per_chunk
        self.chunk_tokens = chunk_tokens
        self.max_running = max_running
        self.rng = rng
        self.requests: dict[str, SimRequest] = {}
        self.waiting: list[SimRequest] = []
        self.running: list[SimRequest] = []
        self.zombies: dict[str, list[list[int]]] = {}  # slots that loads still write, by their last holder
        self.mail: list[list[JobResult]] = [[] for _ in ranks]  # results on their way to the scheduler
        self.weights = 0
        self.finished = 0
        self.jobs = 0  # in all plans
        self.dropped = 0  # outputs of a step that were not published, because a sync load failed
        self.mismatches: list[Wrong] = []
        self.step_number = 0
        self.plan: OffloadPlan | None = None  # the last one

    # -- requests -------------------------------------------------------------------------------------------------

    def add(self, request: SimRequest) -> None:
        """A request arrives."""
        self.calls.on_request(request.name, request.keys(self.k, self.block_tokens), request.num_tokens)
        self.requests[request.name] = request
        self.waiting.append(request)

    def abort(self, name: str) -> None:
        """A client goes away."""
        request = self.requests.pop(name)
        self._leave_queues(request)
        self._release_slots(request, self.calls.abort(name))

    def preempt(self, request: SimRequest) -> None:
        """A request loses its slots and waits again, before all others."""
        self._leave_queues(request)
        self._release_slots(request, self.calls.preempt(request.name))
        request.place = Place.WAITING
        self.waiting.insert(0, request)

    def reset(self, *, new_weights: bool) -> None:
        """Nothing that was cached is of use any more. With new weights, requests that have slots start anew."""
        if new_weights:
            for request in [r for r in self.requests.values() if r.tables]:
                self.preempt(request)
            self.weights += 1
        self.calls.reset_cache()
        self.forget_cache()

    def forget_cache(self) -> None:
        """The GPU cache serves nothing of what it holds."""
        for cache in self.caches:
            cache.forget_all()

    # -- a step -----------------------------------------------------------------------------------------------------

    def step(self, choices: StepChoices | None = None) -> None:
        """Schedule, do and conclude one step."""
        choices = choices or StepChoices()
        self.step_number += 1
        before = self._snapshot() if choices.aborted else None
        self.calls.begin_step(
            running=len(self.running), waiting=len(self.waiting), free_slots=min(len(c.free) for c in self.caches)
        )
        scheduled: dict[str, tuple[int, int]] = {}
        if before is None:  # preemption is not taken back with a step, so a step that is to be aborted has none
            self._schedule_running(scheduled)
        self._schedule_waiting(scheduled, choices.withdrawn)
        if before is not None:
            self._restore(before)
            return
        self.plan = plan = self.calls.build_step()
        failed = self._launch(plan, scheduled, self._refused(plan, choices))
        self.jobs += len(plan.jobs)
        sync = {spec.job for spec in plan.sync_loads}
        for rank, mail in zip(self.ranks, self.mail, strict=True):
            mail.extend(job_results(rank.worker, rank.rank))
        dropped = self.take_in(self.calls.on_results(self._delivered(sync)))
        if not failed <= dropped:
            raise InternalError(f"workers raised for {failed}, the outcome drops {dropped}")
        self._judge(dropped)
        for name, (_, end) in scheduled.items():
            if name not in dropped:
                self._conclude(self.requests[name], end)

    def deliver(self) -> None:
        """Some of the results that are on their way come in, between steps."""
        for rank, mail in zip(self.ranks, self.mail, strict=True):
            mail.extend(job_results(rank.worker, rank.rank))
        self.take_in(self.calls.on_results(self._delivered(frozenset())))

    def take_in(self, outcome: Outcome) -> set[str]:
        """Do what results mean; returns the requests whose output of the step is dropped."""
        dropped: set[str] = set()
        for name in outcome.freed:
            self._let_go(self.zombies.pop(name))
        for released in outcome.released:
            self._release(released)
        # Last: what was released may rest on the slots of a sync load that failed.
        for failed in outcome.failed_loads:
            self._fail(failed)
            dropped.update(failed.requests)
        return dropped

    def restart_rank(self, number: int, *, kept_pool: bool) -> None:
        """A worker dies, with the cache of its GPU, and another one takes its place."""
        rank = self.ranks[number]
        rank.queues.break_down()
        self.mail[number].clear()
        self.take_in(self.calls.worker_died(number, "the process was killed"))
        for request in [r for r in self.requests.values() if r.tables]:
            self.preempt(request)
        self.forget_cache()
        rank.restart(kept_pool=kept_pool)
        self.calls.worker_replaced(number, kept_pool=kept_pool)

    def check_integrity(self) -> None:
        """Raise `InternalError` where a slot has two owners, or a read was wrong."""
        tables = [r.tables for r in self.requests.values() if r.tables] + list(self.zombies.values())
        for group, cache in enumerate(self.caches):
            cache.check_integrity(slot for table in tables for slot in table[group])
        if self.mismatches:
            raise InternalError(f"blocks did not hold what they have to: {self.mismatches[:3]}")

    # -- scheduling -------------------------------------------------------------------------------------------------

    def _schedule_running(self, scheduled: dict[str, tuple[int, int]]) -> None:
        for request in list(self.running):
            if request.place is not Place.RUNNING:
                continue  # preempted for one before it
            end = min(request.num_tokens, request.computed + self.chunk_tokens)
            while not self._grow(request, end):
                victim = self.running[-1]
                self.preempt(victim)
                if victim is request:
                    break
            else:
                self.calls.update_after_alloc(request.name, request.tables)
                self._will_compute(request, request.computed, end, scheduled)

    def _schedule_waiting(self, scheduled: dict[str, tuple[int, int]], withdrawn: frozenset[str]) -> None:
        for request in list(self.waiting):
            if len(self.running) >= self.max_running:
                break
            first = self.cached_blocks(request)
            found = self.calls.lookup(request.name, first * self.block_tokens)
            if found.kind is LookupKind.JOINED:
                self.waiting.remove(request)
                request.place = Place.JOINED
                continue
            decision = self.calls.decide(request.name) if found.kind is LookupKind.HIT else None
            if decision is not None and decision.action is Action.DEFER:
                continue
            loaded = decision.blocks if decision is not None else 0
            start = first * self.block_tokens + (decision.tokens if decision is not None and loaded else 0)
            is_async = decision is not None and decision.action is Action.ASYNC
            end = start if is_async else min(request.num_tokens, start + self.chunk_tokens)
            if not self._begin(request, first, first + loaded, end):
                if decision is not None:
                    self.calls.refund(request.name)
                break
            self.calls.update_after_alloc(request.name, request.tables)
            if request.name in withdrawn:
                self.calls.refund(request.name)
                self._let_go(request.lose_slots())
                continue
            self.waiting.remove(request)
            if is_async:
                request.place = Place.PARKED
                continue
            request.place = Place.RUNNING
            self.running.append(request)
            request.computed = start
            request.tail = self._content(request, start // self.block_tokens) if start % self.block_tokens else None
            self._will_compute(request, start, end, scheduled)

    def cached_blocks(self, request: SimRequest) -> int:
        """Leading blocks that the GPU cache has, with what every group needs after them; a token is left to compute."""
        hashes = request.hashes
        end = (request.num_tokens - 1) // self.block_tokens
        for cache, needed in zip(self.caches, self.needed, strict=True):
            if needed is None:
                end = next((i for i in range(end) if hashes[i] not in cache.slot_of), end)
        windows = [(c, n) for c, n in zip(self.caches, self.needed, strict=True) if n is not None]
        while end and not all(hashes[i] in c.slot_of for c, n in windows for i in range(max(0, end - n), end)):
            end -= 1
        return end

    def _begin(self, request: SimRequest, first: int, hit_end: int, end_tokens: int) -> bool:
        """Slots for a request that has none: shared ones up to `first`, new ones beyond; False without room."""
        num_blocks = max(hit_end, -(-end_tokens // self.block_tokens))
        tables: list[list[int]] = []
        has_room = True
        for cache, needed in zip(self.caches, self.needed, strict=True):
            start = 0 if needed is None else max(0, hit_end - needed)
            shared = [-1] * min(start, first) + [cache.share(h) for h in request.hashes[min(start, first) : first]]
            tables.append(shared)
            has_room = has_room and num_blocks - max(start, first) <= len(cache.free)
        if not has_room:
            self._let_go(tables)
            return False
        for cache, table, needed in zip(self.caches, tables, self.needed, strict=True):
            start = 0 if needed is None else max(0, hit_end - needed)
            table.extend([-1] * max(0, start - first))
            table.extend(cache.take() for _ in range(num_blocks - max(start, first)))
        request.tables = tables
        return True

    def _grow(self, request: SimRequest, end_tokens: int) -> bool:
        """Slots for more tokens of a running request, after what left its windows was let go."""
        num_blocks = -(-end_tokens // self.block_tokens)
        for cache, table, needed in zip(self.caches, request.tables, self.needed, strict=True):
            gone = 0 if needed is None else max(0, request.computed // self.block_tokens - needed)
            cache.let_go(table[:gone])
            table[:gone] = [-1] * len(table[:gone])
        if any(
            num_blocks - len(table) > len(cache.free) for cache, table in zip(self.caches, request.tables, strict=True)
        ):
            return False
        for cache, table in zip(self.caches, request.tables, strict=True):
            table.extend([cache.take() for _ in range(num_blocks - len(table))])
        return True

    def _will_compute(
        self, request: SimRequest, start: int, end: int, scheduled: dict[str, tuple[int, int]]
    ) -> None:  # fmt: skip
        """The step computes these tokens: later requests of the same step can share their whole blocks already."""
        scheduled[request.name] = (start, end)
        self._keep(request, end)

    def _keep(self, request: SimRequest, tokens: int) -> None:
        for cache, table in zip(self.caches, request.tables, strict=True):
            for position, slot in enumerate(table[: tokens // self.block_tokens]):
                if slot >= 0:
                    cache.keep(slot, request.hashes[position])

    # -- doing ------------------------------------------------------------------------------------------------------

    def _refused(self, plan: OffloadPlan, choices: StepChoices) -> dict[int, int]:
        chance = 1 - (1 - choices.fault_rate) ** len(plan.jobs)
        num_jobs = len(plan.jobs)  # sync loads share a launch, so that one beyond the last may be drawn
        drawn = {r.rank: self.rng.randrange(num_jobs) for r in self.ranks if num_jobs and self.rng.random() < chance}
        return drawn | choices.refused_launch

    def _launch(
        self, plan: OffloadPlan, scheduled: dict[str, tuple[int, int]], refused_launch: dict[int, int]
    ) -> set[str]:
        """Every rank does the plan and the forward pass, up to the output sync; returns for whom a worker raised."""
        failed: set[str] = set()
        passes = [(self.requests[name], start, end) for name, (start, end) in scheduled.items()]
        work = [(r.name, self._reads(r, start), self._writes(r, start, end)) for r, start, end in passes]
        for rank in self.ranks:
            if rank.rank in refused_launch:
                rank.queues.refuse(refused_launch[rank.rank])
            try:
                start_step(rank.worker, plan)
            except SyncLoadFailed as error:
                failed.update(error.requests)
            rank.queues.refuse_none()
            for name, reads, writes in work:
                rank.forward(name, reads, writes)
        for rank in self.ranks:
            rank.synchronize()
            try:
                rank.worker.check()
            except SyncLoadFailed as error:
                failed.update(error.requests)
        return failed

    def _reads(self, request: SimRequest, start: int) -> list[tuple[int, int, int, int]]:
        whole = start // self.block_tokens
        reads = []
        for group, (table, needed) in enumerate(zip(request.tables, self.needed, strict=True)):
            first = 0 if needed is None else max(0, whole - needed)
            reads += [(group, p, table[p], self._content(request, p)) for p in range(first, whole)]
            if request.tail is not None:
                reads.append((group, whole, table[whole], request.tail))
        return reads

    def _writes(self, request: SimRequest, start: int, end: int) -> list[tuple[int, int, int]]:
        writes = []
        for position in range(start // self.block_tokens, -(-end // self.block_tokens)):
            content = self._content(request, position)
            if (position + 1) * self.block_tokens > end:
                content = partial_hash(content, end)
            writes += [(group, table[position], content) for group, table in enumerate(request.tables)]
        return writes

    def _content(self, request: SimRequest, position: int) -> int:
        """What a whole block of the request holds: it depends on the text before its end, and on the weights."""
        return request.hashes[position] ^ self.weights << 40

    def _delivered(self, at_once: set[int] | frozenset[int]) -> list[JobResult]:
        """The results that come in now: those of the step's sync loads, and of the others some, in any order."""
        given = []
        for mail in self.mail:
            now = [r for r in mail if r.job in at_once or self.rng.random() < 0.6]
            given += now
            mail[:] = [r for r in mail if r not in now]
        self.rng.shuffle(given)
        return given

    def _judge(self, dropped: set[str]) -> None:
        """What was read in this step was right, except where its output is dropped."""
        for rank in self.ranks:
            self.mismatches += [w for w in rank.wrong if w.request not in dropped]
            rank.wrong.clear()

    def _conclude(self, request: SimRequest, end: int) -> None:
        """The step's output is published."""
        request.computed = end
        whole, rest = divmod(end, self.block_tokens)
        request.tail = partial_hash(self._content(request, whole), end) if rest else None
        self.calls.computed(request.name, end)
        if end < request.num_tokens:
            return
        if request.num_tokens == request.total_tokens:
            del self.requests[request.name]
            self.running.remove(request)
            self._release_slots(request, self.calls.finish(request.name))
            self.finished += 1
            return
        first_chunk = request.num_tokens // (self.k * self.block_tokens)
        request.num_tokens = min(request.total_tokens, request.num_tokens + self.rng.randrange(1, 4))
        keys = request.keys(self.k, self.block_tokens, first_chunk)
        self.calls.extend(request.name, keys, request.num_tokens)

    # -- outcomes -----------------------------------------------------------------------------------------------------

    def _fail(self, failed: FailedLoad) -> None:
        """A sync load failed: its slots serve nobody, and who has them computes again."""
        blocks = failed.tokens // self.block_tokens
        for name in failed.requests:
            request = self.requests.get(name)
            if request is None or not request.tables:
                continue
            self.dropped += 1
            for cache, table in zip(self.caches, request.tables, strict=True):
                for slot in table[blocks:]:
                    cache.forget(slot)
            # What a window had before is let go already; what a load still brings has no prefix any more; and of those
            # who share the slots only one may write them again.
            has_windows = any(needed is not None for needed in self.needed)
            is_alone = failed.requests == (name,) and request.place is not Place.PARKED
            if has_windows or not is_alone or self.rng.random() < 0.5:
                self.preempt(request)
            else:
                request.computed, request.tail = min(request.computed, failed.tokens), None

    def _release(self, released: Released) -> None:
        request = self.requests[released.request]
        if released.joined:
            if request.place is not Place.JOINED:
                raise InternalError(f"{released} is {request.place}")
            request.place = Place.WAITING
            self.waiting.append(request)
            return
        if request.place is not Place.PARKED:
            raise InternalError(f"{released} is {request.place}")
        request.place = Place.RUNNING
        self.running.append(request)
        request.computed = released.tokens
        whole, rest = divmod(released.tokens, self.block_tokens)
        request.tail = self._content(request, whole) if rest else None
        if released.error is None:
            self._keep(request, released.tokens)
        elif any(needed is not None for needed in self.needed):
            self.preempt(request)

    def _release_slots(self, request: SimRequest, are_free: bool) -> None:
        tables = request.lose_slots()
        if are_free:
            self._let_go(tables)
        elif request.name in self.zombies:
            raise InternalError(f"{request.name} leaves slots to a load twice")
        else:
            self.zombies[request.name] = tables

    def _let_go(self, tables: list[list[int]]) -> None:
        for cache, table in zip(self.caches, tables, strict=False):
            cache.let_go(table)

    def _leave_queues(self, request: SimRequest) -> None:
        for queue in (self.waiting, self.running):
            if request in queue:
                queue.remove(request)

    def _snapshot(self) -> _Snapshot:
        kept = {r.name: (r.place, r.computed, [list(t) for t in r.tables], r.tail) for r in self.requests.values()}
        return _Snapshot([cache.copy() for cache in self.caches], list(self.waiting), list(self.running), kept)

    def _restore(self, before: _Snapshot) -> None:
        """Give the step up. Who joined a load in it is told when that load ends, or that it was not started."""
        self.calls.abort_step()
        joined = [r for r in self.requests.values() if r.place is Place.JOINED]
        self.caches, self.waiting, self.running = before.caches, before.waiting, before.running
        for name, (place, computed, tables, tail) in before.kept.items():
            r = self.requests[name]
            r.place, r.computed, r.tables, r.tail = place, computed, tables, tail
        for request in joined:
            request.place = Place.JOINED
            self._leave_queues(request)
