"""The memory that really moves: a scaled-down KV cache, its host pool and a mover between them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import TracebackType

import numpy as np
import torch
from numpy.typing import NDArray

from kvmove.errors import Refused
from kvmove.move import CacheLayout, HostPool, Mover
from kvmove.replay.contents import POISON, expected_words
from kvmove.replay.settings import Settings

_ROW = 64  # bf16 values; a page is (tokens, 1 head, 64)
_PASS_BYTES = 16 << 20  # how much is filled or compared at once; bounds the memory that a step with many blocks takes


class Replica:
    """A cache of `num_slots` slots in `replica_layers` tensors (2, slots, tokens, 1, 64), as an engine would have it.

    On a CUDA device the mover takes the best path there is; on the CPU the reference path.
    """

    def __init__(self, settings: Settings, device: str) -> None:
        """Allocate the memory, all of it poisoned.

        Raises:
            Refused: there is no such device.
            PinningError: the host pool cannot be pinned.
        """
        self._num_pages = settings.replica_pages
        self._page_words = settings.replica_page_bytes // 8
        self._pass_blocks = max(1, _PASS_BYTES // settings.replica_block_bytes)
        self._device = _device(device)
        # One allocation, so that a step's blocks are filled and compared in one operation for all pages.
        shape = (self._num_pages, settings.num_slots, self._page_words)
        self._words = torch.full(shape, int(POISON.view(np.int64)), dtype=torch.int64, device=self._device)
        layers = self._words.view(torch.bfloat16).view(settings.replica_layers, 2, settings.num_slots, -1, 1, _ROW)
        layout = CacheLayout.from_tensors(list(layers), block_dim=1)
        self.pool = HostPool.for_layout(layout, settings.num_host_blocks)
        self.mover = Mover(layout, self.pool, path=None if self._device.type == "cuda" else "reference")
        # Copies of a few KiB gain nothing from threads, and on a busy machine lose seconds to waking them.
        self._threads = torch.get_num_threads()
        torch.set_num_threads(1)

    @property
    def device_name(self) -> str:
        """What moves the bytes, for people."""
        if self._device.type == "cuda":
            return torch.cuda.get_device_name(self._device)
        return "CPU"

    def poison(self, slots: Sequence[int]) -> None:
        """Overwrite these slots with what no block holds, so that a page which does not arrive shows."""
        self._words[:, self._index(slots)] = int(POISON.view(np.int64))

    def fill(self, slots: Sequence[int], block_hashes: Sequence[int]) -> None:
        """Write what these blocks hold: slot i gets block i. This stands for the model's computing them."""
        for part in self._passes(len(slots)):
            words = expected_words(block_hashes[part], self._num_pages, self._page_words)
            self._words[:, self._index(slots[part])] = torch.from_numpy(words.view(np.int64)).to(self._device)

    def wrong_pages(self, slots: Sequence[int], block_hashes: Sequence[int]) -> NDArray[np.int64]:
        """Compare slot i with block i and return int64 (wrong pages, 2): the position i and the page of each."""
        found = [np.empty((0, 2), dtype=np.int64)]
        for part in self._passes(len(slots)):
            expected = expected_words(block_hashes[part], self._num_pages, self._page_words)
            held = self._words[:, self._index(slots[part])].cpu().numpy().view(np.uint64)
            wrong = (held != expected).any(axis=2).T
            if wrong.any():
                found.append(np.argwhere(wrong) + np.array([part.start, 0]))
        return np.concatenate(found)

    def close(self) -> None:
        """Wait for what is in flight, release the pool, and let torch use as many threads as before."""
        self.mover.close()
        self.pool.close()
        torch.set_num_threads(self._threads)

    def _passes(self, count: int) -> Iterator[slice]:
        for start in range(0, count, self._pass_blocks):
            yield slice(start, start + self._pass_blocks)

    def _index(self, slots: Sequence[int]) -> torch.Tensor:
        return torch.tensor(slots, dtype=torch.int64, device=self._device)

    def __enter__(self) -> Replica:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name not in ("cpu", "cuda"):
        raise Refused(f"there is no device {name!r} to replay on; choose from: auto, cpu, cuda")
    if name == "cuda" and not torch.cuda.is_available():
        raise Refused("there is no CUDA device here; leave --device out, or use --device cpu")
    return torch.device(name)
