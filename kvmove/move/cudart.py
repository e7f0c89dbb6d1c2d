"""The few CUDA runtime calls that torch does not offer, from the very library that torch has loaded."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray

_PORTABLE, _MAPPED = 1, 2  # cudaHostRegisterPortable, cudaHostRegisterMapped
_BARRED = (800, 801)  # cudaErrorNotPermitted, cudaErrorNotSupported


@dataclass(frozen=True, slots=True)
class Failure:
    """A CUDA call that failed, in the driver's words."""

    code: int
    text: str

    @property
    def barred(self) -> bool:
        """Whether the machine does not allow it at all, so that asking for less does not help."""
        return self.code in _BARRED

    def __str__(self) -> str:
        return f"{self.text} (CUDA error {self.code})"


@cache
def _runtime() -> ctypes.CDLL:
    torch.cuda.init()  # loads the library, and lets torch know of the context that registering creates
    return ctypes.CDLL(f"libcudart.so.{_major()}")


def _major() -> int:
    return int((torch.version.cuda or "0").split(".")[0])


def _failure(code: int) -> Failure:
    text = _runtime().cudaGetErrorString
    text.restype = ctypes.c_char_p
    return Failure(code, text(code).decode())


def _message(code: int) -> str:
    return str(_failure(code))


def index_of(device: torch.device) -> int:
    """The number of a CUDA device; a device without one is the calling thread's current device."""
    return torch.cuda.current_device() if device.index is None else device.index


def on_device(index: int) -> AbstractContextManager[object]:
    """Work on CUDA device `index` in this thread. A new thread would use device 0, and make a context there."""
    return torch.cuda.device(index)


def pci_bus_id(index: int) -> str | None:
    """Where CUDA device `index` is on the PCI bus (`0000:1b:00.0`), or None where the driver does not say."""
    text = ctypes.create_string_buffer(32)
    if _runtime().cudaDeviceGetPCIBusId(text, ctypes.c_int(len(text)), ctypes.c_int(index)):
        _runtime().cudaGetLastError()
        return None
    return text.value.decode()


def host_register(address: int, num_bytes: int) -> Failure | None:
    """Pin [address, address + num_bytes) for every CUDA context. Returns None, or what went wrong."""
    code = _runtime().cudaHostRegister(
        ctypes.c_void_p(address), ctypes.c_size_t(num_bytes), ctypes.c_uint(_PORTABLE | _MAPPED)
    )
    if code:
        _runtime().cudaGetLastError()  # clears it: a failed registration must not fail the next kernel
        return _failure(code)
    return None


def host_unregister(address: int) -> str | None:
    """Undo `host_register`. Returns None, or what went wrong."""
    code = _runtime().cudaHostUnregister(ctypes.c_void_p(address))
    return _message(code) if code else None


def device_alias(address: int) -> int:
    """The address by which kernels reach pinned memory; the host address is not valid on every machine."""
    alias = ctypes.c_void_p()
    code = _runtime().cudaHostGetDevicePointer(ctypes.byref(alias), ctypes.c_void_p(address), ctypes.c_uint(0))
    if code or alias.value is None:
        raise RuntimeError(f"cudaHostGetDevicePointer: {_message(code)}")
    return alias.value


@contextmanager
def beside_captures() -> Iterator[None]:
    """Let this thread's calls not invalidate what other threads capture into CUDA graphs, as asking an event would."""
    mode = ctypes.c_int(2)  # cudaStreamCaptureModeRelaxed
    exchange = _runtime().cudaThreadExchangeStreamCaptureMode
    exchange(ctypes.byref(mode))
    try:
        yield
    finally:
        exchange(ctypes.byref(mode))  # the thread's own mode again


class _Location(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class _BatchAttributes(ctypes.Structure):  # cudaMemcpyAttributes
    _fields_ = (("order", ctypes.c_int), ("source", _Location), ("destination", _Location), ("flags", ctypes.c_uint))


# cudaMemcpySrcAccessOrderStream: the source is read in stream order, so after what the stream waited for. With
# cudaMemcpySrcAccessOrderAny it may be read sooner, which keeps the link busy between copies.
_IN_STREAM_ORDER, _IN_ANY_ORDER = 1, 3
_DEFAULT_KIND = 4  # cudaMemcpyDefault: the direction follows from the addresses


def memcpy_batch(
    destination: NDArray[np.int64], source: NDArray[np.int64], sizes: NDArray[np.int64], stream: int, *,
    source_rests: bool = False,
) -> None:  # fmt: skip
    """Queue copies of `sizes[i]` bytes from `source[i]` to `destination[i]`, contiguous int64 arrays, on a stream.

    `source_rests` says that nothing that is still queued anywhere writes the source.

    One driver call where the driver has it (CUDA 12.8 and later), one a run elsewhere.

    Raises:
        RuntimeError: the driver refused.
    """
    runtime = _runtime()
    count = len(sizes)
    if not hasattr(runtime, "cudaMemcpyBatchAsync"):
        copy = runtime.cudaMemcpyAsync
        for to, origin, size in zip(destination.tolist(), source.tolist(), sizes.tolist(), strict=True):
            code = copy(
                *map(ctypes.c_void_p, (to, origin)), ctypes.c_size_t(size), _DEFAULT_KIND, ctypes.c_void_p(stream)
            )
            if code:
                raise RuntimeError(f"cudaMemcpyAsync: {_message(code)}")
        return
    order = _IN_ANY_ORDER if source_rests else _IN_STREAM_ORDER
    attributes = _BatchAttributes(order, _Location(0, 0), _Location(0, 0), 0)
    first = ctypes.c_size_t(0)
    arrays = [ctypes.c_void_p(a.ctypes.data) for a in (destination, source, sizes)]
    # CUDA 13 dropped the argument that received the index of a failing copy.
    failed = [] if _major() >= 13 else [ctypes.byref(ctypes.c_size_t(0))]
    code = runtime.cudaMemcpyBatchAsync(
        *arrays, ctypes.c_size_t(count), ctypes.byref(attributes), ctypes.byref(first), ctypes.c_size_t(1),
        *failed, ctypes.c_void_p(stream),
    )  # fmt: skip
    if code:
        runtime.cudaGetLastError()
        raise RuntimeError(f"cudaMemcpyBatchAsync of {count} runs: {_message(code)}")
