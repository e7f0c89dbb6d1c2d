"""The ceiling of every copy: one contiguous DMA of the same bytes."""

from __future__ import annotations

from functools import partial

import torch

from kvmove.bench.device import Device


class Ceiling:
    """A pinned host buffer and a device buffer of `most_bytes`.

    The host buffer is torch's own, in one registration: a DMA must not cross two, as those of a host pool would.
    """

    def __init__(self, device: Device, most_bytes: int) -> None:
        self.device, self.most_bytes = device, most_bytes
        on_cuda = device.torch_device.type == "cuda"
        self._device = torch.empty(most_bytes, dtype=torch.uint8, device=device.torch_device)
        self._device.random_(0, 256)  # zeros can move faster than data does
        self._host = torch.empty(most_bytes, dtype=torch.uint8, pin_memory=on_cuda)
        self._host.copy_(self._device)

    def _copy(self, num_bytes: int, to_device: bool, stream: torch.cuda.Stream | None) -> None:
        device, host = self._device[:num_bytes], self._host[:num_bytes]
        if to_device:
            device.copy_(host, non_blocking=True)
        else:
            host.copy_(device, non_blocking=True)

    def load(self, num_bytes: int) -> partial[None]:
        """Work that copies to the device."""
        return partial(self._copy, num_bytes, True)

    def store(self, num_bytes: int) -> partial[None]:
        """Work that copies to the host."""
        return partial(self._copy, num_bytes, False)

    def load_ns(self, num_bytes: int) -> float:
        """Device time of one copy to the device."""
        return self.device.start("copy", self.load(num_bytes)).wait()

    def store_ns(self, num_bytes: int) -> float:
        """Device time of one copy to the host."""
        return self.device.start("copy", self.store(num_bytes)).wait()

    def load_wall_ns(self, num_bytes: int) -> float:
        """From the call of one copy to the device until its data is there, by the host's clock."""
        return self.device.wall_ns("copy", self.load(num_bytes))
