"""Stand in for the CUDA driver where there is none: remember what is pinned, refuse and delay on request."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import nullcontext

from kvmove.errors import InternalError
from kvmove.move import cudart

DEVICE_OFFSET = 1 << 40  # the device sees pinned memory this far from where the host does
OUT_OF_MEMORY = cudart.Failure(2, "out of memory")
NOT_SUPPORTED = cudart.Failure(801, "operation not supported")


class FakeDriver:
    """Takes the driver's place in `kvmove.move.cudart`.

    Attributes:
        pinned: bytes of every registration by its address.
        calls: registrations asked for so far.
    """

    def __init__(
        self,
        patch: Callable[[object, str, object], None],
        *,
        fails: int | None = None,
        failure: cudart.Failure = OUT_OF_MEMORY,
        allowed: int | None = None,
    ) -> None:
        """Replace the driver by `patch`, e.g. pytest's `monkeypatch.setattr`.

        Args:
            fails: the registration, counted from 0, that is refused with `failure`.
            allowed: registrations that go through at once; others block until `allow` is called. None: all.
        """
        self.pinned: dict[int, int] = {}
        self.calls = 0
        self._fails, self._failure = fails, failure
        self._permits = None if allowed is None else threading.Semaphore(allowed)
        patch(cudart, "host_register", self._register)
        patch(cudart, "host_unregister", self._unregister)
        patch(cudart, "device_alias", self.alias)
        patch(cudart, "index_of", lambda device: device.index or 0)
        patch(cudart, "on_device", lambda index: nullcontext())
        patch(cudart, "pci_bus_id", lambda index: "0000:1B:00.0")

    def allow(self, count: int = 1) -> None:
        """Let `count` more registrations through."""
        if self._permits is not None:
            self._permits.release(count)

    def alias(self, address: int) -> int:
        """Where the device sees `address`."""
        return address + DEVICE_OFFSET

    def _register(self, address: int, num_bytes: int) -> cudart.Failure | None:
        if self._permits is not None:
            self._permits.acquire()
        self.calls += 1
        if self.calls - 1 == self._fails:
            return self._failure
        if any(address < a + n and a < address + num_bytes for a, n in self.pinned.items()):
            raise InternalError(f"{num_bytes} bytes at {address:#x} are pinned already")
        self.pinned[address] = num_bytes
        return None

    def _unregister(self, address: int) -> None:
        if self.pinned.pop(address, None) is None:
            raise InternalError(f"{address:#x} is not pinned")
