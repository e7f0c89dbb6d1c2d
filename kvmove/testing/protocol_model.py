"""The whole protocol as a model of sets and dicts: what the scheduler and the tier may answer, call by call.

The model knows no arrays, free lists or orders of eviction. It says what follows from the calls so far, and learns the
rest (which keys were evicted, which blocks were granted) from the answers, after checking that they are allowed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from kvmove.errors import InternalError
from kvmove.offload.records import Group, GroupBlocks, LoadSpec, Lookup, LookupKind, OffloadPlan, Outcome, StoreSpec
from kvmove.records import Action, Decision, Lane

Key = tuple[int, object]  # group, and the engine's key of the chunk
Place = tuple[int, int]  # group, slot


class ModelMismatch(InternalError):
    """An answer is not what follows from the calls before it."""


def require(holds: object, message: str, *values: object) -> None:
    """Raise `ModelMismatch` unless it holds. The message is only made then: what it shows is large."""
    if not holds:
        raise ModelMismatch(message.format(*values))


@dataclass(slots=True)
class ModelRequest:
    """A request. `waits` says for which load: 'own', 'other' or nothing, with the job once it is known."""

    keys: list[object]
    num_tokens: int
    tables: list[list[int]] = field(default_factory=list)
    is_parked: bool = False
    joined: ModelJob | None = None
    is_stale: bool = False
    first: int = 0  # cached blocks at the last lookup
    end: int = 0  # of the hit found then
    decision: Decision | None = None
    before: list[list[int]] | None = None  # its tables before the open step


@dataclass(slots=True, eq=False)
class ModelJob:
    """A load or a store that was admitted and has not been reported by every rank."""

    request: str
    keys: set[Key]
    places: set[Place]
    lane: Lane | None  # None: a store
    first: int = 0  # blocks that the request had before the load
    tokens: int = 0  # that a load brings
    number: int = -1
    is_submitted: bool = False  # it is in a plan
    waiting: set[int] = field(default_factory=set)  # ranks
    failed: bool = False
    joined: set[str] = field(default_factory=set)
    sharers: set[str] = field(default_factory=set)
    is_marked: bool = False  # others join it
    is_abandoned: bool = False
    is_stale: bool = False  # a store from before a reset: not served when it ends

    @property
    def is_sync(self) -> bool:
        return self.lane is Lane.EXPEDITED


class ProtocolModel:
    """What is so, by the calls so far. Methods are named after the call whose answer they check."""

    def __init__(
        self, groups: Sequence[Group], *, block_tokens: int, blocks_per_chunk: int, ranks: int, budget_bytes: int
    ) -> None:
        self.groups = list(groups)
        self.block_tokens = block_tokens
        self.k = blocks_per_chunk
        self.ranks = set(range(ranks))
        self.budget = budget_bytes
        self.has_windows = any(g.needed_blocks is not None for g in groups)
        self.requests: dict[str, ModelRequest] = {}
        self.served: set[Key] = set()
        self.pins: Counter[Key] = Counter()
        self.jobs: list[ModelJob] = []
        self.lost: set[int] = set()
        self.offers: dict[str, list[tuple[list[list[int]], int]]] = {}  # computed tokens, with the slots of then
        self.key_lists: dict[str, list[object]] = {}  # also of requests that ended
        self.released_later: set[tuple[str, int]] = set()
        self.freed_later: set[str] = set()
        self.written: set[Place] = set()

    # -- what follows -------------------------------------------------------------------------------------------------

    def blocks_needed(self, group: int, first: int, end: int) -> range:
        """The blocks of a hit [first, end) that a group loads."""
        needed = self.groups[group].needed_blocks
        return range(first if needed is None else max(first, end - needed), end)

    def can_have(self, keys: Sequence[object], first: int, end: int) -> bool:
        """Whether every group finds what it needs to go on after block `end`."""
        return all(
            b // self.k < len(keys) and (g, keys[b // self.k]) in self.served
            for g in range(len(self.groups))
            for b in self.blocks_needed(g, first, end)
        )

    def longest(self, request: ModelRequest, first: int) -> int:
        """The end of the longest hit beyond the cached blocks."""
        last = request.num_tokens - 1
        most = last // self.block_tokens if self.has_windows else -(-last // self.block_tokens)
        return next((end for end in range(most, first, -1) if self.can_have(request.keys, first, end)), first)

    def bytes_of(self, first: int, end: int) -> int:
        return sum(len(self.blocks_needed(g, first, end)) * group.block_bytes for g, group in enumerate(self.groups))

    def keys_of(self, keys: Sequence[object], group: int, blocks: Iterable[int]) -> set[Key]:
        return {(group, keys[b // self.k]) for b in blocks}

    def is_leaving(self, name: str) -> bool:
        return any(job.request == name and job.is_abandoned for job in self.jobs)

    # -- calls without an answer --------------------------------------------------------------------------------------

    def on_request(self, name: str, keys: Sequence[object], num_tokens: int) -> None:
        self.key_lists[name] = list(keys)
        self.requests[name] = ModelRequest(self.key_lists[name], num_tokens)

    def extend(self, name: str, keys: Sequence[object], num_tokens: int) -> None:
        self.key_lists[name] += keys
        self.requests[name].num_tokens = num_tokens

    def computed(self, name: str, num_tokens: int) -> None:
        self.offers.setdefault(name, []).append(([list(table) for table in self.requests[name].tables], num_tokens))

    def take_back(self, name: str) -> None:
        """The request does not take part in the open step."""
        self.withdraw(name)
        request = self.requests[name]
        if request.before is not None:
            request.tables = request.before
            for job in self.jobs:
                if not request.tables:
                    job.sharers.discard(name)
        request.decision = request.before = None

    # -- checks of answers --------------------------------------------------------------------------------------------

    def lookup(self, name: str, first: int, answer: Lookup) -> None:
        request = self.requests[name]
        request.first, request.decision, request.end = first, None, first
        end = first if self.lost or self.is_leaving(name) else self.longest(request, first)
        if end <= first:
            require(
                answer.kind is LookupKind.MISS, "lookup of {}: {}, nothing is served beyond {}", name, answer, first
            )
            return
        chunks = request.keys[first // self.k : -(-end // self.k)]
        ahead = {(g, key) for key in chunks for g in range(len(self.groups))}
        marking = [job for job in self.jobs if job.is_marked and job.keys & ahead]
        if marking:
            require(answer.kind is LookupKind.JOINED, "lookup of {}: {}, its keys are being loaded", name, answer)
            job = next((j for j in marking if j.number == answer.joined_job), None)
            require(job is not None, "lookup of {}: {}, which is not loading its keys", name, answer)
            assert job is not None
            job.joined.add(name)
            request.joined = job
            return
        tokens = min(end * self.block_tokens, request.num_tokens - 1) - first * self.block_tokens
        expected = Lookup(LookupKind.HIT, end - first, tokens, self.bytes_of(first, end))
        require(answer == expected, "lookup of {}: {}, expected {}", name, answer, expected)
        request.end = end

    def sync_bytes(self) -> int:
        decisions = (r.decision for r in self.requests.values())
        return sum(d.bytes for d in decisions if d is not None and d.action is Action.SYNC)

    def decide(self, name: str, answer: Decision) -> None:
        request = self.requests[name]
        request.decision = answer
        first, end = request.first, request.first + answer.blocks
        require(self.sync_bytes() <= self.budget, "decide: {} is over the budget of {} bytes", answer, self.budget)
        if not answer.blocks:
            require(answer.action in (Action.RECOMPUTE, Action.DEFER), "decide: {}", answer)
            return
        require(
            answer.action in (Action.SYNC, Action.ASYNC) and end <= request.end, "decide: {} of {}", answer, request
        )
        require(
            answer.bytes == self.bytes_of(first, end), "decide: {} moves {} bytes", answer, self.bytes_of(first, end)
        )
        require(self.can_have(request.keys, first, end), "decide: {} cuts where a window has not what it needs", answer)
        cached = first * self.block_tokens
        require(cached + answer.tokens < request.num_tokens, "decide: {} leaves nothing to compute", answer)
        require(answer.tokens == min(end * self.block_tokens, request.num_tokens - 1) - cached, "decide: {}", answer)

    def update_after_alloc(self, name: str, tables: Sequence[Sequence[int]], number: int) -> None:
        """The request has these tables; where that admits its load, the load has this number."""
        request = self.requests[name]
        request.before = request.tables if request.before is None else request.before
        own: set[Place] = set()
        for group, table in enumerate(tables):
            old = request.tables[group] if request.tables else [None] * request.first + [-1] * len(table)
            for position, slot in enumerate(table):
                if slot < 0:
                    continue
                own.add((group, slot))
                is_old = old[position] in (None, slot) if position < len(old) else False
                if not is_old:
                    self.written.add((group, slot))
        request.tables = [list(table) for table in tables]
        for job in self.jobs:
            if job.lane is not None and job.places & own:
                require(job.is_sync, "{} has slots that an async load writes: {}", name, job)
                job.sharers.add(name)
        decision = request.decision
        if decision is None or not decision.blocks or any(j.request == name and not j.is_submitted for j in self.jobs):
            return
        first, end = request.first, request.first + decision.blocks
        keys: set[Key] = set()
        places: set[Place] = set()
        for group, table in enumerate(tables):
            blocks = self.blocks_needed(group, first, end)
            keys |= self.keys_of(request.keys, group, blocks)
            places |= {(group, table[b]) for b in blocks}
        is_sync = decision.action is Action.SYNC
        lane = Lane.EXPEDITED if is_sync else Lane.BULK
        job = ModelJob(name, keys, places, lane, first, decision.tokens, number, is_marked=not is_sync, sharers={name})
        self.written |= places
        self.pins.update(keys)
        self.jobs.append(job)
        request.is_parked = not is_sync

    def build_step(self, plan: OffloadPlan, numbers: Iterable[int]) -> None:
        """Check a plan; `numbers` are those of the jobs that were known before it."""
        distinct = set(plan.jobs)
        require(not distinct & set(numbers) and len(distinct) == len(plan.jobs), "jobs are named twice: {}", plan)
        sync = sum(spec.bytes for spec in plan.sync_loads)
        require(sync <= plan.sync_bytes <= plan.budget_bytes == self.budget, "{} bytes of sync loads in {}", sync, plan)
        admitted = {job.request: job for job in self.jobs if not job.is_submitted}
        specs = [*plan.sync_loads, *plan.async_loads]
        require(sorted(admitted) == sorted(s.request for s in specs), "loads {}, admitted were {}", specs, admitted)
        for spec in specs:
            self._number(admitted[spec.request], spec, spec in plan.sync_loads)
        for store in plan.stores:
            self._take_store(store)
        stores = {job.number: job for job in self.jobs if job.lane is None}
        must = {number for number, job in stores.items() if job.places & self.written}
        require(must <= set(plan.flushes), "stores {} read what the step writes, flushed are {}", must, plan.flushes)
        require(set(plan.flushes) <= set(stores), "flushed are {}, stores under way {}", plan.flushes, set(stores))
        self.close_step()

    def close_step(self) -> None:
        self.written.clear()
        for request in self.requests.values():
            request.decision = request.before = None

    def _number(self, job: ModelJob, spec: LoadSpec, is_sync: bool) -> None:
        require(is_sync == job.is_sync and spec.lane is job.lane, "{} has another lane than was decided", spec)
        request = self.key_lists[spec.request]
        keys: set[Key] = set()
        places: set[Place] = set()
        for part in spec.groups:
            keys |= self._keys_of_part(request, part)
            places |= {(part.group, slot) for slot in part.slots.tolist()}
        require((keys, places, spec.tokens) == (job.keys, job.places, job.tokens), "{} is not what was decided", spec)
        require(spec.job == job.number, "{} has another number than {}", spec, job)
        job.is_submitted, job.waiting = True, self.ranks - self.lost

    def _take_store(self, spec: StoreSpec) -> None:
        owner = self.requests.get(spec.request)
        require(owner is None or not owner.is_stale, "{} stores what was computed before a reset", spec)
        require(not self.lost, "{} while a rank is lost", spec)
        job = ModelJob(spec.request, set(), set(), None, number=spec.job, is_submitted=True, waiting=set(self.ranks))
        storing = {key for other in self.jobs if other.lane is None for key in other.keys}
        for part in spec.groups:
            keys = self._keys_of_part(self.key_lists[spec.request], part)
            require(not keys & (self.served | storing | job.keys), "{} stores what is there or on its way", spec)
            job.keys |= keys
            end = part.position + len(part.slots)
            slots = part.slots.tolist()
            require(
                any(
                    tokens >= end * self.block_tokens and tables[part.group][part.position : end] == slots
                    for tables, tokens in self.offers.get(spec.request, ())
                ),
                "{} stores slots that do not hold what was computed",
                spec,
            )
            job.places |= {(part.group, slot) for slot in slots}
        self.jobs.append(job)

    def _keys_of_part(self, keys: Sequence[object], part: GroupBlocks) -> set[Key]:
        require(part.first == part.position % self.k, "{} begins elsewhere in its chunk", part)
        chunks = range(part.position // self.k, -(-(part.position + len(part.slots)) // self.k))
        require(len(chunks) == len(part.keys) == len(part.blocks), "{} has not one host block for each chunk", part)
        return {(part.group, keys[c]) for c in chunks}

    # -- how jobs end -------------------------------------------------------------------------------------------------

    def report(self, job_number: int, rank: int, error: str | None) -> None:
        job = next(j for j in self.jobs if j.number == job_number)
        job.waiting.discard(rank)
        job.failed = job.failed or error is not None

    def lose_rank(self, rank: int) -> None:
        self.lost.add(rank)
        for job in self.jobs:
            if job.is_submitted and rank in job.waiting:
                job.waiting.discard(rank)
                job.failed = True

    def outcome(self, answer: Outcome) -> None:
        """Every job that all ranks have reported ends now, and what that means is told, each thing once."""
        ended = [job for job in self.jobs if job.is_submitted and not job.waiting]
        released, freed = self.released_later, self.freed_later
        self.released_later, self.freed_later = set(), set()
        failed_loads, failed_stores = set(), set()
        for job in ended:
            self.jobs.remove(job)
            if job.lane is None:
                if job.failed:
                    failed_stores.add(job.number)
                elif not job.is_stale:
                    self.served |= job.keys
                continue
            self.pins -= Counter(job.keys)
            if job.failed and not self.lost:
                self.served -= job.keys
            for name in job.joined:
                self.requests[name].joined = None
                released.add((name, job.number))
            if job.is_abandoned:
                freed.add(job.request)
            elif not job.is_sync:
                released.add((job.request, job.number))
                self.requests[job.request].is_parked = False
            if job.is_sync and job.failed:
                failed_loads.add(job.number)
                told = next((f for f in answer.failed_loads if f.job == job.number), None)
                require(told is not None, "sync load {} failed, and nobody is told: {}", job, answer)
                assert told is not None
                alive = {name for name in job.sharers if name in self.requests}
                require(alive <= {*told.requests}, "{} does not name all of {}", told, alive)
                require(told.tokens == job.first * self.block_tokens, "{} of {}", told, job)
                for name in told.requests:
                    self.offers.pop(name, None)
        told_released = [(r.request, r.job) for r in answer.released]
        expected = [(name, job) for name, job in released if name in self.requests]
        require(Counter(told_released) == Counter(expected), "released are {}, expected {}", told_released, expected)
        require(sorted(answer.freed) == sorted(freed), "freed are {}, expected {}", answer.freed, freed)
        require(
            {f.job for f in answer.failed_loads} == failed_loads, "{}, expected {}", answer.failed_loads, failed_loads
        )
        require({f.job for f in answer.failed_stores} == failed_stores, "{}: {}", answer.failed_stores, failed_stores)
        by_number = {job.number: job for job in ended}
        for r in answer.released:
            job_there = by_number.get(r.job)
            if job_there is None or r.joined:
                require(r.joined and r.tokens == 0, "{} has no load of its own that ended", r)
                continue
            tokens = job_there.first * self.block_tokens + (0 if job_there.failed else job_there.tokens)
            require(
                r.tokens == tokens and (r.error is not None) == job_there.failed, "{}: {} tokens are there", r, tokens
            )

    def withdraw(self, name: str) -> None:
        """The open step's load of a request is taken back; who joined it is told with the next results."""
        for job in [j for j in self.jobs if j.request == name and not j.is_submitted]:
            self.jobs.remove(job)
            self.pins -= Counter(job.keys)
            self._release_joined(job)
            self.requests[name].is_parked = False

    def leave(self, name: str, are_free: bool) -> None:
        """A request lets go of its slots; they are free at once unless a load writes them."""
        request = self.requests[name]
        self.withdraw(name)
        if request.joined is not None:
            request.joined.joined.discard(name)
        under_way = [j for j in self.jobs if j.request == name and j.lane is not None and not j.is_abandoned]
        require(are_free != bool(under_way), "slots of {} are free: {}, under way {}", name, are_free, under_way)
        for job in under_way:
            job.is_abandoned, job.is_marked = True, False
            self._release_joined(job)
        self.released_later = {(n, job) for n, job in self.released_later if n != name}
        request.tables, request.joined, request.is_parked, request.is_stale = [], None, False, False
        request.decision = request.before = None

    def _release_joined(self, job: ModelJob) -> None:
        for other in job.joined:
            self.requests[other].joined = None
            self.released_later.add((other, job.number))
        job.joined.clear()

    def reset(self) -> None:
        self.served.clear()
        self.offers.clear()
        for job in self.jobs:
            job.is_marked = False
            job.is_stale = job.lane is None
        for request in self.requests.values():
            request.is_stale = bool(request.tables)
