"""The few CUDA runtime calls that torch does not offer, from the very library that torch has loaded."""

from __future__ import annotations

import ctypes
from functools import cache

import torch

_PORTABLE, _MAPPED = 1, 2  # cudaHostRegisterPortable, cudaHostRegisterMapped


@cache
def _runtime() -> ctypes.CDLL:
    torch.cuda.init()  # loads the library, and lets torch know of the context that registering creates
    major = (torch.version.cuda or "").split(".")[0]
    return ctypes.CDLL(f"libcudart.so.{major}")


def _message(code: int) -> str:
    text = _runtime().cudaGetErrorString
    text.restype = ctypes.c_char_p
    return f"{text(code).decode()} (CUDA error {code})"


def host_register(address: int, num_bytes: int) -> str | None:
    """Pin [address, address + num_bytes) for every CUDA context. Returns None, or what went wrong."""
    code = _runtime().cudaHostRegister(
        ctypes.c_void_p(address), ctypes.c_size_t(num_bytes), ctypes.c_uint(_PORTABLE | _MAPPED)
    )
    if code:
        _runtime().cudaGetLastError()  # clears it: a failed registration must not fail the next kernel
        return _message(code)
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
