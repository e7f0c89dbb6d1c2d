"""A small LLM engine: requests in, steps of a scheduler and a worker, every loaded byte compared.

Time is simulated: nothing here reads a clock, and the same trace and settings give the same report.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum, auto

from kvmove.errors import InternalError
from kvmove.records import Action, Decision, Hit
from kvmove.replay.gpu_cache import GpuCache
from kvmove.replay.replica import Replica
from kvmove.replay.report import PolicyReport, report
from kvmove.replay.sequence import Sequence as Seq
from kvmove.replay.settings import Settings
from kvmove.replay.tally import Tally
from kvmove.replay.trace import Request
from kvmove.replay.transfers import Link, Transfers
from kvmove.replay.worker import Placed, Worker
from kvmove.schedule import HitPolicy, StepScheduler
from kvmove.schema import MAX_TIME
from kvmove.tier import HostTier

Progress = Callable[[int], None]  # gets the number of requests that are done


def replay(
    policy: HitPolicy,
    requests: Sequence[Request],
    settings: Settings | None = None,
    *,
    device: str = "auto",
    progress: Progress | None = None,
) -> PolicyReport:
    """Run the requests through a simulated engine under this policy, and report what happened.

    Args:
        requests: in the order of their arrival.
        device: where the replica of the cache is: `cpu`, `cuda`, or `auto` for a GPU where there is one.
        progress: called with the number of requests that are done, whenever it has grown.

    Raises:
        Refused: the device is not there, or the policy has no usable rules.
        PinningError: the replica's host pool cannot be pinned.
        MoveFailed: a load or store failed.
        InternalError: something leaked, or never ended: a bug of kvmove.
    """
    settings = settings or Settings()
    with Replica(settings, device) as replica:
        engine = Engine(policy, requests, settings, replica)
        engine.run(progress)
        return engine.report()


class _Outcome(Enum):
    """What came of trying to place the request at the head of the queue."""

    PLACED = auto()
    DEFERRED = auto()
    JOINED = auto()
    NO_ROOM = auto()


class Engine:
    """The scheduler's side of the simulated engine; see `run` for a step's order."""

    def __init__(self, policy: HitPolicy, requests: Sequence[Request], settings: Settings, replica: Replica) -> None:
        self._settings, self._model = settings, settings.model
        self._policy, self._replica = policy, replica
        self._scheduler = StepScheduler(
            policy, budget_bytes=settings.budget_bytes, max_deferrals=settings.max_deferrals
        )
        self._gpu = GpuCache(settings.num_slots)
        self._tier = HostTier(settings.num_host_blocks)
        self._tally = Tally()
        self._worker = Worker(replica, self._tally)

        # Where a request is: arriving, then waiting or joined, then parked or prefilling, then decoding.
        self._arriving = deque(Seq(i, r, settings) for i, r in enumerate(requests))
        self._waiting: list[tuple[int, Seq]] = []  # a heap: first come, first served
        self._joined: dict[int, list[Seq]] = {}  # job -> those that wait for it
        self._parked: Transfers[tuple[Seq, Placed]] = Transfers()
        self._prefilling: list[Seq] = []
        self._decoding: list[tuple[int, int, Seq]] = []  # a heap of (step in which it is over, index, request)

        self._loading: dict[int, int] = {}  # block hash -> the async job that brings it
        self._inflight_bytes = 0  # modelled
        self._storing: Transfers[Sequence[int]] = Transfers()
        self._to_store: dict[int, int] = {}  # block hash -> slot: what the last step completed
        self._h2d, self._d2h = Link(self._model), Link(self._model)
        self._now_ns = 0
        self._step_number = 0

    def run(self, progress: Progress | None = None) -> None:
        """Step until every request is done and nothing is under way, then make sure that nothing leaked."""
        reported = 0
        while self._has_work():
            self._step()
            done = self._tally.finished + self._tally.refused
            if progress is not None and done > reported:
                progress(done)
                reported = done
        self._check_end()

    def report(self) -> PolicyReport:
        """What happened."""
        return report(
            self._policy, self._settings, self._replica, self._tally, self._scheduler.statistics(),
            self._tier.statistics(), self._gpu.evictions,
        )  # fmt: skip

    def _has_work(self) -> bool:
        in_engine = self._waiting or self._joined or self._prefilling or self._decoding
        return bool(self._arriving or in_engine or self._parked or self._storing or self._to_store)

    def _step(self) -> None:
        self._end_decodes()
        self._take_arrivals()
        self._end_transfers()
        self._begin_step()
        self._plan_stores()
        self._continue_prefills()
        self._place_waiting()
        self._execute()
        self._advance_time()

    # The parts of a step, in their order.

    def _end_decodes(self) -> None:
        while self._decoding and self._decoding[0][0] <= self._step_number:
            seq = heapq.heappop(self._decoding)[2]
            self._gpu.release(seq.slots)
            self._tier.touch(seq.block_hashes)
            self._tally.finished += 1

    def _take_arrivals(self) -> None:
        busy = self._waiting or self._prefilling or self._decoding or self._parked or self._storing or self._to_store
        if not busy and self._arriving:
            self._now_ns = max(self._now_ns, self._arriving[0].arrival_ns)
        while self._arriving and self._arriving[0].arrival_ns <= self._now_ns:
            seq = self._arriving.popleft()
            self._tally.requests += 1
            if seq.num_blocks > self._settings.num_slots:
                self._tally.refused += 1
                continue
            self._tally.prompt_tokens += seq.input_tokens
            heapq.heappush(self._waiting, (seq.index, seq))

    def _end_transfers(self) -> None:
        for job, hashes in self._storing.ended(self._step_number, self._now_ns):
            self._worker.end_store(job)
            self._tier.complete_store(hashes)
        for job, (seq, placed) in self._parked.ended(self._step_number, self._now_ns):
            self._worker.end_load(job, placed)
            self._tier.complete_load(placed.block_hashes)
            self._publish(placed)
            self._inflight_bytes -= len(placed.slots) * self._settings.block_bytes
            for block in placed.block_hashes:
                del self._loading[block]
            self._prefilling.append(seq)
            for waiter in self._joined.pop(job, ()):
                heapq.heappush(self._waiting, (waiter.index, waiter))
        self._prefilling.sort(key=lambda seq: seq.index)

    def _begin_step(self) -> None:
        step_time_ns = self._model.step_time_ns(self._demanded_tokens())
        self._scheduler.begin_step(
            inflight_bytes=self._inflight_bytes,
            inflight_loads=len(self._parked),
            drain_time_ns=self._h2d.drain_time_ns(self._now_ns),
            step_time_ns=step_time_ns,
            async_delay_ns=self._model.async_delay_ns(step_time_ns),
            running=len(self._prefilling) + len(self._decoding),
            waiting=len(self._waiting),
            free_slots=self._gpu.available,
        )
        self._tokens_left = max(0, self._model.max_batched_tokens - len(self._decoding))
        self._scheduled: list[tuple[Seq, int]] = []  # with the tokens that this step computes
        self._cached: list[Placed] = []
        self._sync_loads: list[Placed] = []
        self._async_loads: list[tuple[Seq, Placed]] = []
        self._deferred: list[Seq] = []

    def _demanded_tokens(self) -> int:
        """Tokens that this step would have if no request hit; what the estimate of its time assumes."""
        demanded = len(self._decoding)
        for seq in (*self._prefilling, *(seq for _, seq in self._waiting[:64])):
            if demanded >= self._model.max_batched_tokens:
                break
            demanded += seq.tokens_left
        return min(demanded, self._model.max_batched_tokens)

    def _plan_stores(self) -> None:
        """Store what the last step completed. Not in that step: its output must not wait for the store's launch."""
        slots, self._to_store = self._to_store, {}
        grant = self._tier.prepare_store(list(slots))
        if not grant.keys:
            return
        hashes = [key for key in grant.keys if isinstance(key, int)]
        store = self._scheduler.store([slots[block] for block in hashes], grant.blocks)
        due_ns = self._d2h.submit(self._now_ns, len(hashes) * self._settings.block_bytes)
        self._storing.add(store.job, hashes, due_step=self._step_number + 1, due_ns=due_ns)

    def _continue_prefills(self) -> None:
        for seq in self._prefilling:
            self._schedule(seq)

    def _place_waiting(self) -> None:
        while self._waiting and self._tokens_left > 0:
            seq = self._waiting[0][1]
            outcome = self._place(seq)
            if outcome is _Outcome.NO_ROOM:
                break
            heapq.heappop(self._waiting)
            if outcome is _Outcome.DEFERRED:
                self._deferred.append(seq)
        for seq in self._deferred:
            heapq.heappush(self._waiting, (seq.index, seq))

    def _execute(self) -> None:
        """Let the worker move and compute, and take in what the caches hold now."""
        plan = self._scheduler.end_step()
        self._tally.planned(plan)
        computed = [self._completed_blocks(seq, tokens) for seq, tokens in self._scheduled]
        self._worker.run_step(plan, loaded=self._sync_loads, cached=self._cached, computed=computed)
        for load, (seq, placed) in zip(plan.async_loads, self._async_loads, strict=True):
            num_bytes = len(placed.slots) * self._settings.block_bytes
            due_ns = self._h2d.submit(self._now_ns, num_bytes)
            self._parked.add(
                load.job, (seq, placed), due_step=self._step_number + self._model.async_steps, due_ns=due_ns
            )
            self._inflight_bytes += num_bytes
        for placed in self._sync_loads:
            self._tier.complete_load(placed.block_hashes)
            self._publish(placed)
        for placed in computed:
            self._publish(placed)
            self._to_store.update(zip(placed.block_hashes, placed.slots, strict=True))
        self._sync_bytes = plan.sync_bytes

    def _advance_time(self) -> None:
        """The step is over: its first tokens are out, and its requests go on to decode."""
        tokens = len(self._decoding) + sum(tokens for _, tokens in self._scheduled)
        self._refuse_standstill(tokens)
        self._now_ns += self._model.step_time_ns(tokens, self._sync_bytes)
        for seq, tokens in self._scheduled:
            seq.computed_tokens += tokens
            self._tally.computed_tokens += tokens
            if seq.tokens_left == 0:
                self._tally.first_token(self._now_ns - seq.arrival_ns, had_hit=seq.had_hit)
                # The first token is out; each of the others takes a step, and one step sees the end.
                over = self._step_number + max(seq.output_tokens, 1)
                heapq.heappush(self._decoding, (over, seq.index, seq))
        self._prefilling = [seq for seq in self._prefilling if seq.tokens_left]
        self._step_number += 1
        self._tally.simulated_ns = self._now_ns

    # One request.

    def _place(self, seq: Seq) -> _Outcome:
        """Give the request its slots, and decide where its prefix comes from."""
        if seq.first_tried_ns is None:
            seq.first_tried_ns = self._now_ns
        reusable = seq.block_hashes[: seq.num_reusable]
        cached_slots = self._gpu.match(reusable)
        beyond = reusable[len(cached_slots) :]
        hit = beyond[: self._tier.lookup(beyond)]
        if self._joins(seq, hit):
            return _Outcome.JOINED
        decision = self._scheduler.decide(self._hit(seq, len(cached_slots), len(hit))) if hit else None
        if decision is not None and decision.action is Action.DEFER:
            seq.deferrals += 1
            return _Outcome.DEFERRED
        self._gpu.share(cached_slots)  # before anything is allocated, which could evict them
        new_slots = self._gpu.allocate(seq.num_blocks - len(cached_slots))
        if new_slots is None:
            self._gpu.release(cached_slots)
            if decision is not None:
                self._scheduler.refund(seq.name)
            return _Outcome.NO_ROOM
        self._start(seq, cached_slots, new_slots, decision)
        return _Outcome.PLACED

    def _joins(self, seq: Seq, hit: Sequence[int]) -> bool:
        """Whether an async load brings part of this hit already; then the request waits for it, and loads nothing."""
        for block in hit:
            job = self._loading.get(block)
            if job is not None:
                self._joined.setdefault(job, []).append(seq)
                self._tally.joined += 1
                return True
        return False

    def _hit(self, seq: Seq, cached_blocks: int, blocks: int) -> Hit:
        block_tokens, model = self._settings.block_tokens, self._model
        tokens, cached_tokens = blocks * block_tokens, cached_blocks * block_tokens
        num_bytes = blocks * self._settings.block_bytes
        waited_ns = self._now_ns - (seq.first_tried_ns or 0)
        return Hit(
            request=seq.name,
            bytes=num_bytes,
            tokens=tokens,
            blocks=blocks,
            prompt_tokens=seq.input_tokens,
            cached_tokens=cached_tokens,
            compute_tokens=seq.input_tokens - cached_tokens - tokens,
            load_time_ns=model.copy_time_ns(num_bytes),
            recompute_time_ns=model.compute_time_ns(tokens),
            waited_ns=min(waited_ns, MAX_TIME),
            deferrals=seq.deferrals,
        )

    def _start(self, seq: Seq, cached_slots: list[int], new_slots: list[int], decision: Decision | None) -> None:
        """The request holds its slots: put it where the decision says."""
        num_cached, num_loaded = len(cached_slots), decision.blocks if decision else 0
        seq.slots = cached_slots + new_slots
        seq.had_hit = decision is not None
        seq.computed_tokens = (num_cached + num_loaded) * self._settings.block_tokens
        self._tally.hits += seq.had_hit
        self._tally.cached_tokens += num_cached * self._settings.block_tokens
        self._tally.loaded_tokens += num_loaded * self._settings.block_tokens
        if cached_slots:
            self._cached.append(Placed(seq.name, seq.block_hashes[:num_cached], cached_slots))
        if num_loaded:
            end = num_cached + num_loaded
            placed = Placed(seq.name, seq.block_hashes[num_cached:end], seq.slots[num_cached:end])
            load = self._scheduler.admit(seq.name, self._tier.prepare_load(placed.block_hashes), placed.slots)
            if decision is not None and decision.action is Action.ASYNC:
                self._async_loads.append((seq, placed))
                self._loading.update(dict.fromkeys(placed.block_hashes, load.job))
                return
            self._sync_loads.append(placed)
        self._prefilling.append(seq)
        self._schedule(seq)

    def _schedule(self, seq: Seq) -> None:
        """Compute as much of its prompt in this step as there is room for."""
        tokens = min(seq.tokens_left, self._tokens_left)
        if tokens:
            self._tokens_left -= tokens
            self._scheduled.append((seq, tokens))

    def _completed_blocks(self, seq: Seq, tokens: int) -> Placed:
        """The full blocks whose last token is among the next `tokens` of the prompt."""
        block_tokens = self._settings.block_tokens
        first, end = seq.computed_tokens // block_tokens, (seq.computed_tokens + tokens) // block_tokens
        return Placed(seq.name, seq.block_hashes[first:end], seq.slots[first:end])

    def _publish(self, placed: Placed) -> None:
        for slot, block in zip(placed.slots, placed.block_hashes, strict=True):
            self._gpu.publish(slot, block)

    # What must never be.

    def _refuse_standstill(self, tokens: int) -> None:
        moves = tokens or self._parked or self._storing or self._to_store or self._deferred
        if self._waiting and not moves:
            raise InternalError(f"step {self._step_number}: {len(self._waiting)} requests wait, and nothing goes on")

    def _check_end(self) -> None:
        """Raise `InternalError` where something leaked."""
        tally, tier = self._tally, self._tier.statistics()
        self._gpu.check_integrity()
        self._tier.check_integrity()
        self._worker.check_idle()
        if self._gpu.held or tier.pinned_blocks or tier.storing_blocks or self._loading or self._inflight_bytes:
            raise InternalError(
                f"at the end {self._gpu.held} slots are held, {tier.pinned_blocks} host blocks pinned, "
                f"{tier.storing_blocks} storing, {len(self._loading)} to come, {self._inflight_bytes} bytes loading"
            )
        if tally.finished + tally.refused != tally.requests:
            raise InternalError(f"of {tally.requests} requests {tally.finished} finished, {tally.refused} were refused")
