"""One rank of a simulated engine: a small cache, a host pool and a worker between them, with real bytes in it.

What a block has to hold follows from its rank, group and hash, so a block that is missing, stale, swapped or from
another rank shows.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from kvmove.move import CacheLayout, HostPool, Mover
from kvmove.offload.worker import OffloadWorker
from kvmove.testing.protocol_queues import LateQueues

POISON = 0xA5A5_A5A5_A5A5_A5A5  # the hashes below are odd
_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Wrong:
    """A block that does not hold what it has to."""

    rank: int
    request: str
    group: int
    position: int  # of the block, in the request
    slot: int


class Rank:
    """The memory and the worker of one rank. Each group has tensors, and so slots, of its own.

    Args:
        num_slots: of each group.
        words: 64-bit words of a page; a block has two pages in each group.
    """

    def __init__(
        self, rank: int, *, num_slots: Sequence[int], num_host_blocks: int, blocks_per_chunk: int, words: int,
        rng: random.Random,
    ) -> None:  # fmt: skip
        self.rank = rank
        self._words = [np.full((2, n, words), POISON, np.uint64) for n in num_slots]
        self._salt = np.arange(1, 2 * words + 1, dtype=np.uint64).reshape(2, 1, words) * np.uint64(0x9E3779B97F4A7C15)
        tensors = [torch.from_numpy(w.view(np.uint8)) for w in self._words]  # shared with the arrays
        self._layout = layout = CacheLayout.from_tensors(
            tensors, block_dim=1, groups=[[g] for g in range(len(tensors))], blocks_per_chunk=blocks_per_chunk
        )
        self.pool = HostPool.for_layout(layout, num_host_blocks)
        self._rng = rng
        self.queues = LateQueues(rng)
        self.worker = self._new_worker()
        self.wrong: list[Wrong] = []
        self.compared = 0

    def poison(self, slots: Sequence[tuple[int, int]]) -> None:
        """In the engine's stream: make these (group, slot) hold what no block holds."""

        def write() -> None:
            for group, slot in slots:
                self._words[group][:, slot] = POISON

        self.queues.engine(write)

    def compute(self, blocks: Sequence[tuple[int, int, int]]) -> None:
        """In the engine's stream: write into each (group, slot) the block with this hash."""

        def write() -> None:
            for group, slot, block_hash in blocks:
                self._words[group][:, slot] = self._expected(group, block_hash)

        self.queues.engine(write)

    def verify(self, blocks: Sequence[tuple[str, int, int, int, int]]) -> None:
        """In the engine's stream: compare each (request, group, position, slot, hash), as attention would read it."""

        def read() -> None:
            self.compared += len(blocks)
            for request, group, position, slot, block_hash in blocks:
                if not np.array_equal(self._words[group][:, slot], self._expected(group, block_hash)):
                    self.wrong.append(Wrong(self.rank, request, group, position, slot))

        self.queues.engine(read)

    def forward(
        self, request: str, reads: Sequence[tuple[int, int, int, int]], writes: Sequence[tuple[int, int, int]]
    ) -> None:
        """In the engine's stream: attend to the blocks (group, position, slot, hash) and write the blocks (group, slot,
        hash). What is computed from a wrong block is wrong too, so it shows wherever it goes.
        """

        def run() -> None:
            self.compared += len(reads)
            is_wrong = False
            for group, words in enumerate(self._words):
                own = [r for r in reads if r[0] == group]
                if not own:
                    continue
                differs = words[:, [slot for _, _, slot, _ in own]] != self._all_expected(group, [h for *_, h in own])
                for i in np.flatnonzero(differs.any(axis=(0, 2))):
                    self.wrong.append(Wrong(self.rank, request, group, own[i][1], own[i][2]))
                    is_wrong = True
            for group, words in enumerate(self._words):
                slots = [slot for g, slot, _ in writes if g == group]
                hashes = [block_hash for g, _, block_hash in writes if g == group]
                words[:, slots] = POISON if is_wrong else self._all_expected(group, hashes)

        self.queues.engine(run)

    def synchronize(self) -> None:
        """Block until the engine's stream has run, as at the output sync of a step."""
        self.queues.here().synchronize()

    def restart(self, *, kept_pool: bool) -> None:
        """A new worker takes the place of one that died: the cache is lost, and the pool too unless it is kept."""
        self.queues.break_down()
        self.worker.shutdown()
        self.queues = LateQueues(self._rng)
        for words in self._words:
            words.fill(POISON)
        if not kept_pool:
            self.pool.blocks.fill_(POISON & 0xFF)
        self.wrong = []
        self.worker = self._new_worker()

    def _new_worker(self) -> OffloadWorker:
        return OffloadWorker(Mover(self._layout, self.pool, path="reference", queues=self.queues))

    def close(self) -> None:
        """Let what is queued run, and release the memory."""
        self.worker.shutdown()
        self.pool.close()

    def _expected(self, group: int, block_hash: int) -> NDArray[np.uint64]:
        return self._all_expected(group, [block_hash])[:, 0]

    def _all_expected(self, group: int, hashes: Sequence[int]) -> NDArray[np.uint64]:
        """What blocks with these hashes hold: pages, blocks, words."""
        own = (self.rank + 1) * 0xD6E8FEB86659FD93 ^ (group + 1) * 0xCA5A826395121157
        seeds = np.array([(h * 0x2545F4914F6CDD1D ^ own) & _MASK for h in hashes], np.uint64)
        words: NDArray[np.uint64] = (self._salt ^ seeds[:, None]) | np.uint64(1)
        return words
