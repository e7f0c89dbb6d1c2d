"""The seam to the device: streams and their clock on a GPU; on the CPU the same calls run at once.

The CPU's side exists so that every section runs in tests on machines without a GPU. Its times mean nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

import torch

Work = Callable[["torch.cuda.Stream | None"], None]  # queues something on the stream; None: does it at once


class Stretch(Protocol):
    """A piece of work that was started."""

    def done(self) -> bool:
        """Whether it has ended; does not block."""

    def wait(self) -> float:
        """Block until it has ended. Returns what it took, in nanoseconds of the device's clock."""


class Device(Protocol):
    """Where things are measured.

    Attributes:
        torch_device: for tensors.
        asynchronous: whether work goes on while the caller does something else.
    """

    torch_device: torch.device
    asynchronous: bool

    def start(self, stream: str, work: Work) -> Stretch:
        """Queue `work` on the stream of that name: `copy`, `urgent` (of high priority) or `compute`."""

    def wall_ns(self, stream: str, work: Work) -> float:
        """Nanoseconds of the host's clock from the call of `work` until what it queued is done."""

    def synchronize(self) -> None:
        """Block until nothing is running."""


class _CudaStretch:
    def __init__(self, begin: torch.cuda.Event, end: torch.cuda.Event) -> None:
        self._begin, self._end = begin, end

    def done(self) -> bool:
        return bool(self._end.query())

    def wait(self) -> float:
        self._end.synchronize()
        return float(self._begin.elapsed_time(self._end)) * 1e6


class CudaDevice:
    """The current CUDA device."""

    asynchronous = True

    def __init__(self) -> None:
        self.torch_device = torch.device("cuda", torch.cuda.current_device())
        self._streams = {
            "copy": torch.cuda.Stream(),
            "urgent": torch.cuda.Stream(priority=-1),
            "compute": torch.cuda.Stream(),
        }
        self._end = torch.cuda.Event()

    def start(self, stream: str, work: Work) -> Stretch:
        on = self._streams[stream]
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        with torch.cuda.stream(on):
            begin.record(on)
            work(on)
            end.record(on)
        return _CudaStretch(begin, end)

    def wall_ns(self, stream: str, work: Work) -> float:
        on = self._streams[stream]
        with torch.cuda.stream(on):  # switching streams takes microseconds that are not the copy's
            began = time.perf_counter_ns()
            work(on)
            self._end.record(on)
            self._end.synchronize()
            return float(time.perf_counter_ns() - began)

    def synchronize(self) -> None:
        torch.cuda.synchronize()


class _HostStretch:
    def __init__(self, took_ns: float) -> None:
        self._took_ns = took_ns

    def done(self) -> bool:
        return True

    def wait(self) -> float:
        return self._took_ns


class HostDevice:
    """The CPU: whatever is started has ended when `start` returns."""

    asynchronous = False

    def __init__(self) -> None:
        self.torch_device = torch.device("cpu")

    def start(self, stream: str, work: Work) -> Stretch:
        return _HostStretch(self.wall_ns(stream, work))

    def wall_ns(self, stream: str, work: Work) -> float:
        began = time.perf_counter_ns()
        work(None)
        return float(max(1, time.perf_counter_ns() - began))  # a rate needs some time

    def synchronize(self) -> None:
        return
