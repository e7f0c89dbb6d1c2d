"""Where a request's blocks come from: the GPU cache, the host tier, or computing. Owns both caches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum, auto

from kvmove.errors import InternalError
from kvmove.records import Action, Decision, Hit, Store
from kvmove.replay.gpu_cache import GpuCache
from kvmove.replay.sequence import Placed
from kvmove.replay.sequence import Sequence as Seq
from kvmove.replay.settings import Settings
from kvmove.replay.step_work import StepWork
from kvmove.replay.tally import Tally
from kvmove.schedule import StepScheduler
from kvmove.schema import MAX_TIME
from kvmove.tier import HostTier


class Outcome(Enum):
    """What came of trying to place a request."""

    PLACED = auto()
    DEFERRED = auto()
    JOINED = auto()  # it waits for the load of another request, which `loading_for` names
    NO_ROOM = auto()


class Placement:
    """The GPU cache, the host tier and the scheduler that decides between them.

    A host block is pinned from the decision to load it until `end_load`. A key that an async load brings is marked
    until then, so that a second request with the same prefix waits for that load instead of loading it again.
    """

    def __init__(self, scheduler: StepScheduler, settings: Settings, tally: Tally) -> None:
        self._scheduler, self._settings, self._tally = scheduler, settings, tally
        self.gpu = GpuCache(settings.num_slots)
        self.tier = HostTier(settings.num_host_blocks)
        self._loading: dict[int, int] = {}  # block hash -> the async job that brings it

    def place(self, seq: Seq, work: StepWork, now_ns: int) -> Outcome:
        """Give the request its slots, and decide where its prefix comes from; `work` gets what is to be done."""
        if seq.first_tried_ns is None:
            seq.first_tried_ns = now_ns
        reusable = seq.block_hashes[: seq.num_reusable]
        cached_slots = self.gpu.match(reusable)
        beyond = reusable[len(cached_slots) :]
        hit = beyond[: self.tier.lookup(beyond)]
        if self._job_that_loads(hit) is not None:
            self._tally.joined += 1
            return Outcome.JOINED
        decision = self._scheduler.decide(self._hit(seq, len(cached_slots), len(hit), now_ns)) if hit else None
        if decision is not None and decision.action is Action.DEFER:
            seq.deferrals += 1
            return Outcome.DEFERRED
        self.gpu.share(cached_slots)  # before anything is allocated, which could evict them
        new_slots = self.gpu.allocate(seq.num_blocks - len(cached_slots))
        if new_slots is None:
            self.gpu.release(cached_slots)
            if decision is not None:
                self._scheduler.refund(seq.name)
            return Outcome.NO_ROOM
        self._start(seq, cached_slots, new_slots, decision, work)
        return Outcome.PLACED

    def loading_for(self, seq: Seq) -> int:
        """The async job that brings part of this request's prefix. Only for a request that just joined one."""
        job = self._job_that_loads(seq.block_hashes[: seq.num_reusable])
        if job is None:
            raise InternalError(f"{seq.name} waits for a load of its prefix, and there is none")
        return job

    def store(self, slots: dict[int, int]) -> tuple[Store, list[int]] | None:
        """Keep these blocks (hash -> slot) in the host tier as far as they are missing and there is room.

        Returns the store and the hashes it keeps, to be ended with `end_store`; None where there is nothing to do.
        """
        grant = self.tier.prepare_store(list(slots))
        hashes = [key for key in grant.keys if isinstance(key, int)]
        if not hashes:
            return None
        return self._scheduler.store([slots[block] for block in hashes], grant.blocks), hashes

    def end_store(self, hashes: Sequence[int]) -> None:
        """The blocks are in the host tier now."""
        self.tier.complete_store(hashes)

    def end_load(self, placed: Placed) -> None:
        """The loaded blocks are in their slots now: others may use them."""
        self.tier.complete_load(placed.block_hashes)
        for block in placed.block_hashes:
            self._loading.pop(block, None)
        self.publish(placed)

    def publish(self, placed: Placed) -> None:
        """Let other requests find these blocks in the GPU cache."""
        for slot, block in zip(placed.slots, placed.block_hashes, strict=True):
            self.gpu.publish(slot, block)

    def release(self, seq: Seq) -> None:
        """The request is over: its slots keep their blocks until they are needed."""
        self.gpu.release(seq.slots)
        self.tier.touch(seq.block_hashes)  # as a whole: it was stored in parts, and its head shall outlive its tail

    def check_end(self) -> None:
        """Raise `InternalError` where something is held, pinned or under way, or an index is broken."""
        self.gpu.check_integrity()
        self.tier.check_integrity()
        tier = self.tier.statistics()
        if self.gpu.held or tier.pinned_blocks or tier.storing_blocks or self._loading:
            raise InternalError(
                f"at the end {self.gpu.held} slots are held, {tier.pinned_blocks} host blocks pinned, "
                f"{tier.storing_blocks} being stored and {len(self._loading)} being loaded"
            )

    def _job_that_loads(self, hashes: Iterable[int]) -> int | None:
        if self._loading:
            for block in hashes:
                if block in self._loading:
                    return self._loading[block]
        return None

    def _hit(self, seq: Seq, cached_blocks: int, blocks: int, now_ns: int) -> Hit:
        block_tokens, model = self._settings.block_tokens, self._settings.model
        tokens, cached_tokens = blocks * block_tokens, cached_blocks * block_tokens
        num_bytes = blocks * self._settings.block_bytes
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
            waited_ns=min(now_ns - (seq.first_tried_ns or 0), MAX_TIME),
            deferrals=seq.deferrals,
        )

    def _start(
        self, seq: Seq, cached_slots: list[int], new_slots: list[int], decision: Decision | None, work: StepWork
    ) -> None:
        """The request holds its slots: do what the decision says."""
        num_cached = len(cached_slots)
        end = num_cached + (decision.blocks if decision else 0)
        block_tokens = self._settings.block_tokens
        seq.slots = cached_slots + new_slots
        seq.had_hit = decision is not None
        seq.computed_tokens = end * block_tokens
        self._tally.hits += seq.had_hit
        self._tally.cached_tokens += num_cached * block_tokens
        self._tally.loaded_tokens += (end - num_cached) * block_tokens
        if num_cached:
            work.cached.append(seq.blocks(0, num_cached))
        if decision is None or end == num_cached:
            work.begin(seq)
            return
        placed = seq.blocks(num_cached, end)
        load = self._scheduler.admit(seq.name, self.tier.prepare_load(placed.block_hashes), placed.slots)
        if decision.action is Action.SYNC:
            work.sync_loads.append(placed)
            work.begin(seq)
        else:
            work.async_loads.append((seq, placed))
            self._loading.update(dict.fromkeys(placed.block_hashes, load.job))
