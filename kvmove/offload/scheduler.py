"""The scheduler side of KV offload: what each request loads, what is stored, and what the results mean."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import TYPE_CHECKING

from kvmove.errors import Refused
from kvmove.offload.endings import Endings
from kvmove.offload.hits import MISS, HitFinder
from kvmove.offload.integrity import check_jobs, check_requests
from kvmove.offload.loads import LoadBook
from kvmove.offload.ranks import RankBoard
from kvmove.offload.records import Group, JobResult, LoadSpec, Lookup, LookupKind, OffloadPlan, Outcome, StoreSpec
from kvmove.offload.requests import Request, RequestState
from kvmove.offload.reuse import ReuseFilter
from kvmove.offload.statistics import OffloadCounters, OffloadStatistics
from kvmove.offload.step_book import StepBook
from kvmove.offload.stores import StoreBook
from kvmove.records import Action, Decision, JobKind, Lane
from kvmove.schedule import HitPolicy, PolicySource, StepScheduler
from kvmove.tier import HostTier

if TYPE_CHECKING:
    from kvmove.transfers import IndexLike

_KEYS_COUNTED = 1 << 18


class OffloadScheduler:
    """Decides what an engine's requests load from the host tier and store in it, step by step.

    A step: `begin_step`; for each waiting request `lookup`, and on a hit `decide`; for each request that runs, or that
    is to load, `update_after_alloc` with its block tables; `build_step`, whose plan goes to every rank. Then, when the
    step's output is there, `on_results` with what the ranks reported, and `computed` for each request that ran.

    What holds, whatever the policy says:

    - Sync loads of a step fit its budget, and are never reported as released; async ones are, exactly once.
    - Keys that an async load brings are not loaded again: who hits them joins that load and is released with it.
    - A store is made at the start of the step after its blocks were computed, once for each key; a plan's `flushes`
      names the stores under way that read slots which the step writes.
    - What was computed from a sync load is stored only once that load is known to have succeeded.
    - The tier serves a key after every rank has reported its store, and keeps it while a rank reads it.
    - A job ends when every rank has reported it, and fails when one of them failed.

    For one thread at a time. Results are taken between steps, not between `begin_step` and `build_step`. A call that is
    refused changes nothing.

    Args:
        policy: what `StepScheduler` takes: a `kvmove.Policy`, or a `kvmove.PolicyFile` that follows its file.
        tier: the host tier, of this scheduler alone.
        groups: the cache's groups of layers, in the order of the layout's.
        block_tokens: tokens of a block, the same in all groups.
        blocks_per_chunk: blocks that a host block holds; keys are of whole chunks.
        ranks: workers that each report every job, numbered from 0.
        budget_bytes: see `StepScheduler`.
        max_deferrals: see `StepScheduler`.
        explain_every: see `StepScheduler`.
        store_threshold: store a key from the so-many-th request with it on; 1 stores every key.

    Raises:
        Refused: an argument is out of range.
    """

    def __init__(
        self,
        policy: HitPolicy | PolicySource,
        tier: HostTier,
        groups: Sequence[Group],
        *,
        block_tokens: int,
        blocks_per_chunk: int = 1,
        ranks: int = 1,
        budget_bytes: int | None = None,
        max_deferrals: int = 16,
        store_threshold: int = 1,
        explain_every: int = 0,
    ) -> None:
        for name, value in (
            ("block_tokens", block_tokens),
            ("blocks_per_chunk", blocks_per_chunk),
            ("store_threshold", store_threshold),
        ):
            if type(value) is not int or value < 1:
                raise Refused(f"{name} is {value!r}; an int of at least 1 is needed")
        if not groups or not all(isinstance(group, Group) for group in groups):
            raise Refused(f"groups is {groups!r}; a Group for each group of layers is needed")
        self.tier = tier
        self.steps = StepScheduler(
            policy, budget_bytes=budget_bytes, max_deferrals=max_deferrals, explain_every=explain_every
        )
        self._num_groups = len(groups)
        self._chunk_tokens = block_tokens * blocks_per_chunk
        self._finder = HitFinder(tier, groups, block_tokens=block_tokens, blocks_per_chunk=blocks_per_chunk)
        self._reuse = ReuseFilter(store_threshold, _KEYS_COUNTED)
        self._board = RankBoard(ranks)
        self._loads = LoadBook(tier, groups, blocks_per_chunk)
        self._stores = StoreBook(tier, groups, blocks_per_chunk, self._reuse)
        self._endings = Endings(
            self._board, self._loads, self._stores, blocks_per_chunk=blocks_per_chunk, block_tokens=block_tokens
        )
        self._step = StepBook(self.steps, tier, self._loads, self._endings, groups, block_tokens)
        self._counters = OffloadCounters()
        self._requests: dict[str, Request] = {}
        self._next_job = 0
        self._now_ns = 0

    def set_policy(self, policy: HitPolicy | PolicySource) -> None:
        """Use another policy from the next `begin_step` on.

        Raises:
            Refused: the policy has no usable rules or a budget out of range; the present one stays.
        """
        self.steps.set_policy(policy)

    def on_request(self, request: str, keys: Sequence[Hashable], num_tokens: int) -> None:
        """Make a request known.

        Args:
            request: its name, unique among those that are not finished or aborted.
            keys: one for each whole chunk of its tokens, or for leading ones; a key stands for all tokens before its
                chunk's end (a chain of hashes does), and for whatever else the KV depends on.
            num_tokens: all tokens known now.

        Raises:
            Refused: the name is in use, a key is given twice, or the keys do not fit the tokens.
        """
        if request in self._requests:
            raise Refused(f"on_request: {request} is known already; finish or abort it first, or use another name")
        if self._loads.is_leaving(request):
            raise Refused(
                f"on_request: a load still writes slots of the last {request}; wait until Outcome.freed names it, or "
                "use another name"
            )
        record = Request(request, self._num_groups, self._now_ns)
        record.add_keys(keys, num_tokens, self._chunk_tokens)
        self._requests[request] = record
        for group_keys in record.keys:
            self._reuse.saw(group_keys)

    def extend(self, request: str, keys: Sequence[Hashable], num_tokens: int) -> None:
        """Take in what the request has grown by: its new number of tokens, and the keys of chunks that became whole.

        Raises:
            Refused: the request is unknown, a key is given twice, or the keys do not fit the tokens.
        """
        record = self._require(request, "extend")
        have = len(record.keys[0])
        record.add_keys(keys, num_tokens, self._chunk_tokens)
        for group_keys in record.keys if keys else ():
            self._reuse.saw(group_keys[have:])

    def begin_step(
        self,
        *,
        now_ns: int = 0,
        running: int = 0,
        waiting: int = 0,
        free_slots: int = 0,
        step_time_ns: int | None = None,
        async_delay_ns: int | None = None,
        drain_time_ns: int | None = None,
    ) -> None:
        """Open a step with its whole budget; one that was left open is aborted first. The rest is for the policy.

        Args:
            now_ns: a clock in nanoseconds that never goes back; requests have waited since the step before they came.
            running, waiting: requests.
            free_slots: free block slots of the GPU cache.
            step_time_ns, async_delay_ns, drain_time_ns: the engine's estimates, where it has them.

        Raises:
            RecordError: a value is out of the schema's range; no step is open then.
        """
        if self._step.is_open:
            self._step.abort()
        self.steps.begin_step(
            inflight_bytes=self._loads.inflight_bytes,
            inflight_loads=self._loads.inflight_loads,
            drain_time_ns=drain_time_ns,
            step_time_ns=step_time_ns,
            async_delay_ns=async_delay_ns,
            running=running,
            waiting=waiting,
            free_slots=free_slots,
        )
        self._now_ns = max(self._now_ns, now_ns)
        self._step.is_open = True

    def lookup(self, request: str, cached_tokens: int) -> Lookup:
        """What the tier has beyond the GPU cache, over all groups.

        A hit whose keys another request is loading joins that load: the request is parked, without slots, until
        `Outcome.released` names it. While a rank is lost, or a load still writes slots that the request has lost,
        everything is a miss.

        Args:
            request: known, and not parked.
            cached_tokens: leading tokens that are in the GPU cache; whole blocks.

        Raises:
            Refused: no step is open, the request is unknown or parked or loads in this step, or `cached_tokens` is out
                of range or no whole number of blocks.
        """
        record = self._require_active(request, "lookup")
        if self._step.load_of(record) is not None:
            raise Refused(f"lookup: {request} loads in this step already; refund() it first")
        self._step.looks_up(record, self._finder.cached_blocks(record, cached_tokens))
        found = self._looked_up(record)
        self._counters.looked_up(found.kind)
        return found

    def decide(
        self,
        request: str,
        *,
        load_time_ns: int | None = None,
        recompute_time_ns: int | None = None,
        priority: int = 0,
        deadline_left_ns: int | None = None,
    ) -> Decision:
        """What the request does with the hit that `lookup` found in this step.

        - sync: it runs in this step. Allocate slots for it, then `update_after_alloc`.
        - async: allocate slots for the decision's blocks, then `update_after_alloc`; it is parked until released.
        - recompute: it runs, and computes all its tokens beyond the GPU cache.
        - defer: it waits, and is looked up again in the next step.

        Raises:
            Refused: no step is open, or the request has no hit in this step or loads in it already.
            RecordError: an estimate is out of the schema's range.
        """
        record = self._require_active(request, "decide")
        found = record.found
        if found is None:
            raise Refused(f"decide: {request} has no hit in this step; call lookup() first, and this only on a hit")
        hit = self._finder.hit(
            record,
            found,
            load_time_ns=load_time_ns,
            recompute_time_ns=recompute_time_ns,
            waited_ns=max(0, self._now_ns - record.arrival_ns),
            priority=priority,
            deadline_left_ns=deadline_left_ns,
        )
        record.decision = self.steps.decide(hit)
        return record.decision

    def update_after_alloc(self, request: str, slots: Sequence[IndexLike]) -> None:
        """Take the request's block tables, and admit the load that was decided for it in this step.

        Call it for every request that got slots in this step, whether it loads or not, before the next `lookup`.

        Args:
            request: known, and not parked.
            slots: for each group the slots of the request's blocks, by position from its first token on; a negative
                entry is a block without a slot, such as one that has left a window.

        Raises:
            Refused: no step is open, the request is parked, a load under way writes one of its new slots, a block of
                the load has no slot, or its keys are being loaded since the lookup.
        """
        record = self._require_active(request, "update_after_alloc")
        if self._step.allocate(record, slots, self._next_job):
            self._next_job += 1

    def refund(self, request: str) -> None:
        """Take this step's hit and decision back: the engine neither runs nor parks the request in this step.

        The slots that it got in this step are the engine's again.

        Raises:
            Refused: no step is open, the request is unknown, or another one got slots that its sync load brings.
        """
        self._require_open("refund")
        self._step.refund(self._require(request, "refund"))

    def build_step(self) -> OffloadPlan:
        """Close the step and return what the ranks do: its loads, the stores of what earlier steps computed, and the
        stores under way whose slots this step writes.

        The engine submits the plan on every rank; where it cannot, it reports each of its jobs as failed.

        Raises:
            Refused: no step is open.
        """
        self._require_open("build_step")
        plan = self.steps.end_step()
        stores = self._make_stores()
        by_lane: dict[Lane, list[LoadSpec]] = {lane: [] for lane in Lane}
        for load in self._loads.unsubmitted():
            self._loads.submit(load)
            self._board.expect(load.spec.job, JobKind.LOAD, load.spec.lane)
            by_lane[load.spec.lane].append(load.spec)
        for decision in plan.decisions:
            if decision.action is Action.DEFER and decision.request in self._requests:
                self._requests[decision.request].deferrals += 1
        flushes = self._stores.flushes(self._step.written)
        self._step.close()
        return OffloadPlan(
            step=plan.step,
            decisions=plan.decisions,
            sync_loads=tuple(by_lane[Lane.EXPEDITED]),
            async_loads=tuple(by_lane[Lane.BULK]),
            stores=tuple(stores),
            flushes=flushes,
            budget_bytes=plan.budget_bytes,
            sync_bytes=plan.sync_bytes,
        )

    def abort_step(self) -> None:
        """Forget the open step: nothing is reserved, pinned or marked for it any more, and the slots that requests got
        in it are the engine's again. Deferred stores stay deferred; who joined a load of an earlier step stays parked.

        Raises:
            Refused: no step is open.
        """
        self._require_open("abort_step")
        self._step.abort()

    def on_results(self, results: Iterable[JobResult] = ()) -> Outcome:
        """Take in what ranks report, in any order and grouping, and say what it means for requests.

        Raises:
            Refused: a step is open, or a result is of no job under way, of a rank that there is not, or comes twice.
        """
        self._require_closed("on_results")
        return self._counters.ended(self._endings.report(list(results)))

    def worker_died(self, rank: int, error: str) -> Outcome:
        """Fail every job that the rank has not reported, and load and store nothing more until `worker_replaced`.

        The dead worker must not touch slots or host blocks any more: end its process first. Its GPU's cache is lost:
        nothing is stored of what was computed so far, and nothing of what requests compute in the slots that they have.
        Preempt them, and let your prefix cache forget all.

        Raises:
            Refused: a step is open, or there is no such rank.
        """
        self._require_closed("worker_died")
        return self._counters.ended(self._endings.lost(rank, error, self._requests.values()))

    def worker_replaced(self, rank: int, *, kept_pool: bool) -> None:
        """The rank has a worker again.

        Args:
            rank: one that was lost.
            kept_pool: its host blocks still hold what was stored; otherwise nothing that was stored is served any more.

        Raises:
            Refused: a step is open, or the rank is not lost.
        """
        self._require_closed("worker_replaced")
        self._board.replaced(rank)
        if not kept_pool:
            self.reset_cache()

    def computed(self, request: str, num_tokens: int) -> None:
        """The KV of the request's leading `num_tokens` tokens is in its slots: the next step stores its whole chunks.

        Raises:
            Refused: the request is unknown, parked or without slots, or has not so many tokens.
        """
        record = self._require(request, "computed")
        if record.state is not RequestState.ACTIVE or not record.tables:
            where = "without slots" if record.state is RequestState.ACTIVE else str(record.state)
            raise Refused(f"computed: {request} is {where}; only a request that ran has computed something")
        if type(num_tokens) is not int or not 0 <= num_tokens <= record.num_tokens:
            raise Refused(
                f"computed: {num_tokens!r} tokens of {request}, which has {record.num_tokens}; extend() it first"
            )
        record.computed_tokens = num_tokens
        chunks = num_tokens // self._chunk_tokens
        if chunks > record.offered_chunks and self._board.is_whole:
            self._stores.defer(record, min(chunks, len(record.keys[0])))

    def preempt(self, request: str) -> bool:
        """The request loses its slots and waits again. What it computed is still stored in the next step.

        Returns whether its slots are free now; where a load still writes them, `Outcome.freed` names the request when
        they are.

        Raises:
            Refused: the request is unknown.
        """
        return self._step.leave(self._require(request, "preempt"))

    def finish(self, request: str) -> bool:
        """The request ended. What it computed is still stored in the next step. Returns what `preempt` does.

        Raises:
            Refused: the request is unknown.
        """
        record = self._require(request, "finish")
        if record.tables:
            computed_chunks = record.computed_tokens // self._chunk_tokens
            for keys in record.keys:  # a prefix as a whole, or its head, stored first, would be evicted first
                self.tier.touch(keys[:computed_chunks])
        return self._end(record)

    def abort(self, request: str) -> bool:
        """The request was cancelled, in whatever state it is. Returns what `preempt` does.

        Who had joined its load is released by the next `on_results`.

        Raises:
            Refused: the request is unknown.
        """
        return self._end(self._require(request, "abort"))

    def reset_cache(self) -> None:
        """Serve nothing of what was computed so far: not what is stored or being stored, nor what was to be stored.

        What requests that hold slots now compute further depends on what they hold, and is not stored either.

        Raises:
            Refused: a step is open.
        """
        self._require_closed("reset_cache")
        self.tier.clear()
        self._endings.reset(self._requests.values())

    def statistics(self) -> OffloadStatistics:
        """Return what is under way, and what happened since the scheduler was made."""
        states = [record.state for record in self._requests.values()]
        return self._counters.snapshot(
            requests=len(states),
            parked=states.count(RequestState.PARKED),
            joined=states.count(RequestState.JOINED),
            loads=len(self._loads),
            stores=len(self._stores),
            inflight_bytes=self._loads.inflight_bytes,
        )

    @property
    def num_jobs(self) -> int:
        """Jobs that not all ranks have reported."""
        return len(self._loads) + len(self._stores)

    def state(self, request: str) -> RequestState:
        """Where a request is.

        Raises:
            Refused: the request is unknown.
        """
        return self._require(request, "state").state

    def check_integrity(self) -> None:
        """Raise `InternalError` where an invariant is broken; O(blocks of the tier), for tests and debugging."""
        self.tier.check_integrity()
        self.steps.check_integrity()
        check_jobs(self._board, self._loads, self._stores)
        check_requests(self._requests.values(), self._loads)

    def _looked_up(self, record: Request) -> Lookup:
        if not self._board.is_whole or self._loads.is_leaving(record.name):
            return MISS
        end = self._finder.find(record)
        if end <= record.cached_blocks:
            return MISS
        load = self._loads.marked_by(record.keys, record.cached_blocks, end)
        if load is not None:
            load.joined[record.name] = record
            record.state, record.joined_job = RequestState.JOINED, load.spec.job
            return Lookup(LookupKind.JOINED, joined_job=load.spec.job)
        record.found = self._finder.found(record, end)
        return record.found

    def _make_stores(self) -> list[StoreSpec]:
        """The stores of what is deferred, each with a job that every rank is to report."""
        if not self._board.is_whole:
            self._stores.put_off_all()
            return []
        stores = []
        for deferred in self._stores.take_deferred(self._loads.sync_jobs()):
            spec = self._stores.make(self._next_job, deferred)
            if spec is not None:
                self._next_job += 1
                self._board.expect(spec.job, JobKind.STORE)
                self._counters.stored(spec)
                stores.append(spec)
        return stores

    def _end(self, record: Request) -> bool:
        are_free = self._step.leave(record)
        del self._requests[record.name]
        return are_free

    def _require(self, request: str, call: str) -> Request:
        record = self._requests.get(request)
        if record is None:
            raise Refused(f"{call}: there is no request {request}; on_request() makes it known")
        return record

    def _require_open(self, call: str) -> None:
        if not self._step.is_open:
            raise Refused(f"{call}: no step is open; call begin_step() first")

    def _require_closed(self, call: str) -> None:
        if self._step.is_open:
            raise Refused(f"{call}: a step is open; call build_step() or abort_step() first")

    def _require_active(self, request: str, call: str) -> Request:
        self._require_open(call)
        record = self._require(request, call)
        if record.state is not RequestState.ACTIVE:
            raise Refused(f"{call}: {request} is {record.state}; wait until Outcome.released names it")
        return record
