"""A small LLM engine: requests in, steps of a scheduler and a worker, every loaded byte compared.

Time is simulated: nothing here reads a clock, and the same trace and settings give the same report.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Sequence, Sized

from kvmove.errors import InternalError
from kvmove.replay.placement import Outcome, Placement
from kvmove.replay.replica import Replica
from kvmove.replay.report import PolicyReport, report
from kvmove.replay.sequence import Placed
from kvmove.replay.sequence import Sequence as Seq
from kvmove.replay.settings import Settings
from kvmove.replay.step_work import StepWork
from kvmove.replay.tally import Tally
from kvmove.replay.trace import Request
from kvmove.replay.transfers import Link, Transfers
from kvmove.replay.worker import Worker
from kvmove.schedule import HitPolicy, StepScheduler
from kvmove.schema import MAX_TIME

Progress = Callable[[int], None]  # gets the number of requests that are done


def replay(
    policy: HitPolicy,
    requests: Sequence[Request],
    settings: Settings | None = None,
    *,
    device: str = "auto",
    progress: Progress | None = None,
    shadow: HitPolicy | None = None,
    explain: bool = False,
) -> PolicyReport:
    """Run the requests through a simulated engine under this policy, and report what happened.

    Args:
        requests: in the order of their arrival.
        device: where the replica of the cache is: `cpu`, `cuda`, or `auto` for a GPU where there is one.
        progress: called with the number of requests that are done, whenever it has grown.
        shadow: a policy that decides beside this one, and is only counted.
        explain: count why each rule did not match; about a millisecond for each decision.

    Raises:
        Refused: the device is not there, or the policy has no usable rules.
        PinningError: the replica's host pool cannot be pinned.
        MoveFailed: a load or store failed.
        InternalError: something leaked, or never ended: a bug of kvmove.
    """
    settings = settings or Settings()
    with Replica(settings, device) as replica:
        engine = Engine(policy, requests, settings, replica, shadow=shadow, explain=explain)
        engine.run(progress)
        return engine.report()


class Engine:
    """The scheduler's side of the simulated engine. `_step` is what happens, in its order."""

    def __init__(
        self,
        policy: HitPolicy,
        requests: Sequence[Request],
        settings: Settings,
        replica: Replica,
        *,
        shadow: HitPolicy | None = None,
        explain: bool = False,
    ) -> None:
        self._settings, self._model = settings, settings.model
        self._policy, self._shadow, self._replica = policy, shadow, replica
        self._scheduler = StepScheduler(
            policy,
            budget_bytes=settings.budget_bytes,
            max_deferrals=settings.max_deferrals,
            shadow=shadow,
            explain_every=1 if explain else 0,
        )
        self._tally = Tally()
        self._caches = Placement(self._scheduler, settings, self._tally)
        self._worker = Worker(replica, self._tally)

        # Where a request is: arriving, then waiting or joined, then parked or prefilling, then decoding.
        self._arriving = deque(Seq(i, r, settings) for i, r in enumerate(requests))
        self._waiting: list[tuple[int, Seq]] = []  # a heap: first come, first served
        self._joined: dict[int, list[Seq]] = {}  # job -> those that wait for it
        self._parked: Transfers[tuple[Seq, Placed]] = Transfers()
        self._prefilling: list[Seq] = []
        self._decoding: list[tuple[int, int, Seq]] = []  # a heap of (step in which it is over, index, request)

        self._to_store: dict[int, int] = {}  # block hash -> slot: what the last step completed
        self._storing: Transfers[Sequence[int]] = Transfers()
        self._inflight_bytes = 0  # modelled, of the parked requests' loads
        self._h2d, self._d2h = Link(self._model), Link(self._model)
        self._now_ns = 0
        self._usual_step_ns = self._model.step_time_ns(self._model.max_batched_tokens)
        self._step_number = 0

    def run(self, progress: Progress | None = None) -> None:
        """Step until every request is done and nothing is under way, then make sure that nothing leaked."""
        reported = 0
        while self._arriving or self._waiting or self._busy() or self._joined:
            self._step()
            done = self._tally.finished + self._tally.refused
            if progress is not None and done > reported:
                progress(done)
                reported = done
        self._check_end()

    def report(self) -> PolicyReport:
        """What happened."""
        return report(
            self._policy,
            self._settings,
            self._replica,
            self._tally,
            self._scheduler.statistics(),
            self._caches.tier.statistics(),
            self._caches.gpu.evictions,
            self._shadow,
        )

    def _step(self) -> None:
        self._end_decodes()
        self._take_arrivals()
        self._end_transfers()
        work = self._begin_step()
        self._plan_stores()
        self._continue_prefills(work)
        self._place_waiting(work)
        self._execute(work)
        self._step_number += 1

    def _end_decodes(self) -> None:
        while self._decoding and self._decoding[0][0] <= self._step_number:
            self._caches.release(heapq.heappop(self._decoding)[2])
            self._tally.finished += 1

    def _take_arrivals(self) -> None:
        if self._arriving and not (self._waiting or self._busy()):
            # Nothing else to do: the engine sleeps until the next request comes.
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
            self._caches.end_store(hashes)
        for job, (seq, placed) in self._parked.ended(self._step_number, self._now_ns):
            self._worker.end_load(job, placed)
            self._caches.end_load(placed)
            self._inflight_bytes -= self._modelled_bytes(placed.slots)
            self._prefilling.append(seq)
            for waiter in self._joined.pop(job, ()):
                heapq.heappush(self._waiting, (waiter.index, waiter))
        self._prefilling.sort(key=lambda seq: seq.index)

    def _begin_step(self) -> StepWork:
        step_time_ns = self._usual_step_ns
        self._scheduler.begin_step(
            inflight_bytes=self._inflight_bytes,
            inflight_loads=len(self._parked),
            drain_time_ns=min(self._h2d.drain_time_ns(self._now_ns), MAX_TIME),
            step_time_ns=step_time_ns,
            async_delay_ns=self._model.async_delay_ns(step_time_ns),
            running=len(self._prefilling) + len(self._decoding),
            waiting=len(self._waiting),
            free_slots=self._caches.gpu.available,
        )
        return StepWork(max(0, self._model.max_batched_tokens - len(self._decoding)))

    def _plan_stores(self) -> None:
        """Store what the last step completed. Not in that step: its output must not wait for the store's launch.

        Nothing can have taken the slots since, because slots are given out below.
        """
        slots, self._to_store = self._to_store, {}
        stored = self._caches.store(slots)
        if stored is not None:
            store, hashes = stored
            due_ns = self._d2h.submit(self._now_ns, self._modelled_bytes(hashes))
            self._storing.add(store.job, hashes, due_step=self._step_number + 1, due_ns=due_ns)

    def _continue_prefills(self, work: StepWork) -> None:
        for seq in self._prefilling:
            work.schedule(seq)

    def _place_waiting(self, work: StepWork) -> None:
        """First come, first served, while there are tokens and slots; those that defer let others pass."""
        deferred = []
        while self._waiting and work.tokens_left > 0:
            seq = self._waiting[0][1]
            outcome = self._caches.place(seq, work, self._now_ns)
            if outcome is Outcome.NO_ROOM:
                self._refuse_standstill()
                break
            heapq.heappop(self._waiting)
            if outcome is Outcome.DEFERRED:
                deferred.append((seq.index, seq))
            elif outcome is Outcome.JOINED:
                self._joined.setdefault(self._caches.loading_for(seq), []).append(seq)
        for entry in deferred:
            heapq.heappush(self._waiting, entry)

    def _execute(self, work: StepWork) -> None:
        """Let the worker move and compute; then the step's time has passed and its tokens are out."""
        plan = self._scheduler.end_step()
        self._tally.planned(plan)
        computed = work.completed()
        self._worker.run_step(plan, loaded=work.sync_loads, cached=work.cached, computed=computed)
        for load, (seq, placed) in zip(plan.async_loads, work.async_loads, strict=True):
            num_bytes = self._modelled_bytes(placed.slots)
            due_ns = self._h2d.submit(self._now_ns, num_bytes)
            due_step = self._step_number + self._model.async_steps
            self._parked.add(load.job, (seq, placed), due_step=due_step, due_ns=due_ns)
            self._inflight_bytes += num_bytes
        for placed in work.sync_loads:
            self._caches.end_load(placed)
        for placed in computed:
            self._caches.publish(placed)
            self._to_store.update(zip(placed.block_hashes, placed.slots, strict=True))
        step_time_ns = self._model.step_time_ns(work.scheduled_tokens + len(self._decoding), plan.sync_bytes)
        self._usual_step_ns = self._model.usual_step_ns(self._usual_step_ns, step_time_ns)
        self._now_ns += step_time_ns
        self._tally.simulated_ns = self._now_ns
        self._emit_tokens(work)

    def _emit_tokens(self, work: StepWork) -> None:
        """Requests whose whole prompt is computed now have their first token, and go on to decode."""
        for seq, tokens in work.scheduled:
            seq.computed_tokens += tokens
            self._tally.computed_tokens += tokens
            if seq.tokens_left == 0:
                self._tally.first_token(self._now_ns - seq.arrival_ns, had_hit=seq.had_hit)
                # Each token after the first takes a step; the step after the last one finds that it is over.
                over = self._step_number + max(seq.output_tokens, 1)
                heapq.heappush(self._decoding, (over, seq.index, seq))
        self._prefilling = [seq for seq in (*self._prefilling, *work.begun) if seq.tokens_left]

    def _busy(self) -> bool:
        """Whether something goes on that ends by itself."""
        return bool(self._prefilling or self._decoding or self._parked or self._storing or self._to_store)

    def _modelled_bytes(self, blocks: Sized) -> int:
        return len(blocks) * self._settings.block_bytes

    def _refuse_standstill(self) -> None:
        """Raise `InternalError` where no slot will ever become free; every request fits an empty cache."""
        if self._caches.gpu.held == 0:
            raise InternalError(f"step {self._step_number}: a request finds no room, and nobody holds a slot")

    def _check_end(self) -> None:
        """Raise `InternalError` where something leaked or was lost."""
        tally = self._tally
        self._caches.check_end()
        self._worker.check_idle()
        if self._inflight_bytes or tally.finished + tally.refused != tally.requests:
            raise InternalError(
                f"at the end {self._inflight_bytes} bytes are in flight; of {tally.requests} requests "
                f"{tally.finished} finished and {tally.refused} were refused"
            )
