"""S3-FIFO: against a model of lists, and against scans."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Hashable, Sequence

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvmove import HostTier
from kvmove.tier.ghosts import GhostQueue, fingerprint
from kvmove.tier.s3fifo import MAX_USES, S3Fifo


class S3FifoHistory(RuleBasedStateMachine):
    """Queues are lists, the oldest block first; ghosts are a dict, where a key replaces one of the same slot."""

    @initialize(num_blocks=st.integers(1, 24))
    def start(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.capacity = num_blocks - num_blocks // 10
        self.policy = S3Fifo(num_blocks)
        self.small: list[int] = []
        self.main: list[int] = []
        self.uses: dict[int, int] = {}
        self.key_of: dict[int, int] = {}
        self.held: dict[int, list[int]] = {}  # block -> the queue it left
        self.ghosts: dict[int, tuple[int, int]] = {}  # slot -> key, and the number of its eviction
        self.num_gone = 0

    def slot(self, key: int) -> int:
        return fingerprint(key) % (1 << max(0, self.capacity - 1).bit_length())

    def candidates(self) -> list[int]:
        return self.small + self.main

    @rule(data=st.data())
    def insert(self, data: st.DataObject) -> None:
        free = [b for b in range(self.num_blocks) if b not in self.key_of]
        keys = [k for k in range(40) if k not in self.key_of.values()]
        if not free:
            return
        block, key = data.draw(st.sampled_from(free)), data.draw(st.sampled_from(keys))
        self.policy.insert(block, key)
        self.key_of[block], self.uses[block] = key, 0
        ghost, number = self.ghosts.get(self.slot(key), (None, 0))
        if ghost == key and self.num_gone - number <= self.capacity:
            del self.ghosts[self.slot(key)]
            self.main.append(block)
        else:
            self.small.append(block)

    @precondition(lambda self: self.candidates())
    @rule(data=st.data(), verb=st.sampled_from(["touch", "touch", "hold", "discard"]))
    def use(self, data: st.DataObject, verb: str) -> None:
        block = data.draw(st.sampled_from(self.candidates()))
        getattr(self.policy, verb)(block if verb == "discard" else [block])
        queue = self.small if block in self.small else self.main
        if verb == "touch":
            self.uses[block] = min(MAX_USES, self.uses[block] + 1)
            return
        queue.remove(block)
        if verb == "hold":
            self.held[block] = queue
        else:
            del self.key_of[block]

    @precondition(lambda self: self.held)
    @rule(data=st.data(), dropped=st.booleans())
    def end_load(self, data: st.DataObject, dropped: bool) -> None:
        block = data.draw(st.sampled_from(sorted(self.held)))
        queue = self.held.pop(block)
        if dropped:
            del self.key_of[block]
            return
        self.policy.release([block])
        queue.append(block)
        self.uses[block] = min(MAX_USES, self.uses[block] + 1)

    @rule(count=st.integers(0, 4), data=st.data())
    def evict(self, count: int, data: st.DataObject) -> None:
        spared = set(data.draw(st.lists(st.integers(0, self.num_blocks - 1), max_size=3)))
        expected: list[int] = []
        passed: set[int] = set()  # spared blocks, which are looked at once
        while len(expected) < count:
            small = [b for b in self.small if b not in passed]
            main = [b for b in self.main if b not in passed]
            if small and (len(self.small) + len(expected) >= max(1, self.num_blocks // 10) or not main):
                block = small[0]
                if block in spared:
                    passed.add(block)
                elif self.uses[block]:
                    self.small.remove(block)
                    self.uses[block] = 0
                    self.main.append(block)
                else:
                    self.small.remove(block)
                    expected.append(block)
                    key = self.key_of.pop(block)
                    self.ghosts[self.slot(key)] = (key, self.num_gone)
                    self.num_gone += 1
            elif main:
                block = main[0]
                if block in spared:
                    passed.add(block)
                    continue
                self.main.remove(block)
                if self.uses[block]:
                    self.uses[block] -= 1
                    self.main.append(block)
                else:
                    expected.append(block)
                    del self.key_of[block]
            else:
                break
        assert self.policy.evict(count, spared) == expected

    @invariant()
    def the_queues_are_the_models(self) -> None:
        if hasattr(self, "policy"):
            assert list(self.policy) == self.candidates()
            assert len(self.policy) == len(self.candidates())


TestS3FifoHistory = S3FifoHistory.TestCase
TestS3FifoHistory.settings = settings(max_examples=60, stateful_step_count=50)


def test_ghosts_remember_the_last_keys_and_forget_what_is_taken() -> None:
    """As many as the capacity, each once."""
    ghosts = GhostQueue(3)
    prints = [16, 33, 50, 67]  # four slots of their own
    assert not any(ghosts.take(p) for p in (0, *prints))
    for p in prints:
        ghosts.add(p)
    assert [ghosts.take(p) for p in prints] == [False, True, True, True]
    assert not any(ghosts.take(p) for p in prints)


def replay(tier: HostTier, prompts: Sequence[Sequence[Hashable]]) -> int:
    """Blocks found when every prompt is looked up, loaded and stored in turn."""
    found = 0
    for keys in prompts:
        hit = tier.lookup(keys)
        tier.prepare_load(keys[:hit])
        tier.complete_load(keys[:hit])
        tier.complete_store(tier.prepare_store(keys).keys)
        found += hit
    return found


def test_a_scan_flushes_lru_and_not_s3fifo() -> None:
    """Between two turns of ten conversations comes three times the tier in prompts that never return."""
    conversations = [[b"c%d.%d" % (c, i) for i in range(8)] for c in range(10)]
    prompts = [*conversations, *conversations]
    for turn in range(10):
        prompts += [[b"s%d.%d.%d" % (turn, s, i) for i in range(20)] for s in range(15)]
        prompts += conversations
    tiers = {name: HostTier(100, eviction=name) for name in ("lru", "s3fifo")}
    found = {name: replay(tier, prompts) for name, tier in tiers.items()}
    assert found["lru"] == 80  # the second turn, before the first scan
    assert found["s3fifo"] == 11 * 80
    for tier in tiers.values():
        tier.check_integrity()


def test_a_key_that_returns_soon_after_it_went_is_not_on_probation_again() -> None:
    """The queue of ghosts is what lets a working set in that is reused at a longer distance than the small queue."""
    tier = HostTier(20, eviction="s3fifo")
    keys = [b"%d" % n for n in range(21)]
    for key in keys:
        tier.complete_store(tier.prepare_store([key]).keys)
    assert tier.lookup(keys[:1]) == 0
    tier.complete_store(tier.prepare_store(keys[:1]).keys)  # in the main queue now
    for n in range(100):
        tier.complete_store(tier.prepare_store([b"scan %d" % n]).keys)
    assert tier.lookup(keys[:1]) == 1
    assert tier.lookup(keys[1:2]) == 0


def test_the_order_of_eviction_is_the_same_in_every_process() -> None:
    """Python's hashes of bytes differ from process to process; the fingerprints do not."""
    code = """
from kvmove import HostTier
tier = HostTier(30, eviction="s3fifo")
gone = []
for n in range(300):
    keys = [b"%d.%d" % (n * n % 37, i) for i in range(4)]
    hit = tier.lookup(keys)
    tier.touch(keys)
    grant = tier.prepare_store(keys)
    tier.complete_store(grant.keys)
    gone += [key.decode() for key in grant.evicted_keys]
print(gone)
"""
    said = {
        subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(said) == 1
    assert len(said.pop()) > 1000
