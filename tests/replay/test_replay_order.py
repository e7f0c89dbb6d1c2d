"""The replay keeps the mover's order rules also where copies run late, as they do on a GPU.

On the CPU every copy runs when it is submitted, so a step that forgets to wait would show no mistake there. Here
loads and stores run at random times, as late as the marks allow; what the engine itself does runs at once.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from functools import partial

import pytest

from kvmove.kvpol import Policy
from kvmove.move import CacheLayout, HostPool, Mover
from kvmove.move.queues import Mark
from kvmove.records import Result
from kvmove.replay import replica
from kvmove.replay.engine import replay
from kvmove.replay.report import PolicyReport
from kvmove.replay.settings import Model, Settings
from kvmove.replay.trace import Request
from kvmove.testing.queues import ManualMark, ManualQueues

# Slots and host blocks change hands in nearly every step.
SETTINGS = Settings(
    model=Model(max_batched_tokens=16),
    block_tokens=4,
    num_slots=12,
    num_host_blocks=20,
    budget_bytes=1 << 40,
    replica_layers=1,
    replica_page_bytes=128,
)
POLICIES = {
    "in the step": Policy.parse("sync"),
    "in the background": Policy.parse("async"),
    "both": Policy.parse("sync if sync_loads < 1\nasync"),
}


class LateQueues(ManualQueues):
    """Copies run at random; whoever waits for one lets others run until it is done."""

    def here(self) -> Mark:
        return ManualMark(done=True)

    def wait(self, mark: Mark) -> None:
        while not mark.done():
            self.run(1)

    def _append(self, queue: int, after: Iterable[Mark], work: Callable[[], None]) -> ManualMark:
        mark = super()._append(queue, after, work)
        mark.synchronize = partial(self.wait, mark)  # type: ignore[method-assign]
        return mark


class LateMover(Mover):
    """A mover with late copies. Whoever asks what has finished gives one of them time, or none."""

    def __init__(self, layout: CacheLayout, pool: HostPool, *, path: str | None = None) -> None:
        self.rng = random.Random(layout.num_slots)
        self.late = LateQueues(self.rng)
        super().__init__(layout, pool, path=path, queues=self.late)

    def finished(self) -> list[Result]:
        self.late.run(self.rng.randint(0, 1))
        return super().finished()


def _requests(seed: int) -> list[Request]:
    rng, requests = random.Random(seed), []
    for i in range(40):
        num_blocks = rng.randint(1, 8)
        shared = rng.randint(0, num_blocks)
        family, own = 100 * rng.randrange(4), 1_000 * (i + 1)
        hash_ids = (*range(family, family + shared), *range(own, own + num_blocks - shared))
        requests.append(Request(f"r{i}", 20 * i, num_blocks * 4, 1, hash_ids))
    return requests


def _late_replay(policy: Policy, seed: int, patch: pytest.MonkeyPatch) -> PolicyReport:
    patch.setattr(replica, "Mover", LateMover)
    return replay(policy, _requests(seed), SETTINGS, device="cpu")


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
@pytest.mark.parametrize("seed", range(4))
def test_late_copies_change_nothing(policy: Policy, seed: int, monkeypatch: pytest.MonkeyPatch):
    """The report is that of copies that run at once: every byte right, and simulated time untouched."""
    at_once = replay(policy, _requests(seed), SETTINGS, device="cpu")
    assert _late_replay(policy, seed, monkeypatch) == at_once
    assert at_once.mismatches == 0
    assert at_once.loaded_pages > 0


def test_rewriting_slots_that_are_still_stored_would_show(monkeypatch: pytest.MonkeyPatch):
    """Without the wait before slots are rewritten, late stores keep other blocks than they should."""
    monkeypatch.setattr(LateMover, "wait_for_slots", lambda self, slots: None)
    assert any(_late_replay(POLICIES["in the background"], seed, monkeypatch).mismatches for seed in range(4))
