"""An eviction order that a scan of prompts which never return does not flush: S3-FIFO."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Hashable, Iterator, Sequence

from kvmove.tier.ghosts import GhostQueue, fingerprint
from kvmove.tier.rings import BlockRings

SMALL, MAIN = 0, 1
MAX_USES = 3  # what a block's counter is capped at, as in the paper


class S3Fifo:
    """Three queues in order of arrival: a small one on probation, the main one, and one of keys that are gone.

    After Yang, Zhang, Qiu, Yue and Vinayak, "FIFO queues are all you need for cache eviction", SOSP 2023
    (https://doi.org/10.1145/3600006.3613147):

    - What is stored enters the small queue; a key that was evicted from there not long ago enters the main one.
    - While the small queue has a tenth of the blocks or more, its oldest block goes, unless it was used since it was
      stored: then it moves to the main queue.
    - Otherwise the oldest block of the main queue goes, unless it has uses left: then it loses one of them and moves
      to the newest end.

    So prompts that never return push each other out of the small queue, and leave the rest alone.

    Different here: one use lets a block move to the main queue, where the paper asks for two, because the GPU cache
    already absorbs the uses that follow quickly; and a block that a load held comes back at the newest end of its
    queue. Of blocks that must be spared, the order among the queues stays as it is.
    """

    __slots__ = ("_fingerprints", "_ghosts", "_is_main", "_rings", "_small_target", "_uses")

    def __init__(self, num_blocks: int) -> None:
        self._rings = BlockRings(num_blocks, 2)
        self._is_main = bytearray(num_blocks)
        self._uses = bytearray(num_blocks)
        self._fingerprints = array("I", bytes(4 * num_blocks))
        self._small_target = max(1, num_blocks // 10)
        self._ghosts = GhostQueue(num_blocks - num_blocks // 10)

    def __len__(self) -> int:
        return sum(self._rings.sizes)

    def __iter__(self) -> Iterator[int]:
        """The small queue, then the main one, each in its order; uses, which delay a block, are left out of it."""
        yield from self._rings.blocks(SMALL)
        yield from self._rings.blocks(MAIN)

    def insert(self, block: int, key: Hashable) -> None:
        self._fingerprints[block] = print_of_key = fingerprint(key)
        self._uses[block] = 0
        self._is_main[block] = ring = MAIN if self._ghosts.take(print_of_key) else SMALL
        self._rings.append((block,), ring)

    def touch(self, blocks: Sequence[int]) -> None:
        uses = self._uses
        for block in blocks:
            if uses[block] < MAX_USES:
                uses[block] += 1

    def hold(self, blocks: Sequence[int]) -> None:
        for ring in (SMALL, MAIN):
            self._rings.remove([block for block in blocks if self._is_main[block] == ring], ring)

    def release(self, blocks: Sequence[int]) -> None:
        for ring in (SMALL, MAIN):
            self._rings.append([block for block in blocks if self._is_main[block] == ring], ring)
        self.touch(blocks)

    def discard(self, block: int) -> None:
        self._rings.remove((block,), self._is_main[block])

    def evict(self, count: int, spared: Collection[int]) -> list[int]:
        """As `EvictionPolicy.evict`; in the mean, since every block that is passed over had a use that paid for it."""
        rings, newer = self._rings, self._rings.newer
        small_end, main_end = rings.anchor(SMALL), rings.anchor(MAIN)
        small, main = newer[small_end], newer[main_end]  # where each queue is looked at next
        chosen: list[int] = []
        while len(chosen) < count:
            # What comes in place of the chosen blocks counts already: stores come many blocks at a time.
            is_small_full = rings.sizes[SMALL] + len(chosen) >= self._small_target
            if small != small_end and (is_small_full or main == main_end):
                block, small = small, newer[small]
                if block in spared:
                    continue
                rings.remove((block,), SMALL)
                if self._uses[block]:
                    self._uses[block] = 0
                    self._is_main[block] = MAIN
                    rings.append((block,), MAIN)
                    main = block if main == main_end else main
                    continue
                self._ghosts.add(self._fingerprints[block])
            elif main != main_end:
                block, main = main, newer[main]
                if block in spared:
                    continue
                rings.remove((block,), MAIN)
                if self._uses[block]:
                    self._uses[block] -= 1
                    rings.append((block,), MAIN)
                    main = block if main == main_end else main
                    continue
            else:
                break
            chosen.append(block)
        return chosen
