"""Put host memory on the NUMA node that its GPU hangs on, where both can be known."""

from __future__ import annotations

import ctypes
import platform

from kvmove.move.mapping import Mapping, last_error, libc

PCI_DEVICES = "/sys/bus/pci/devices"
_MBIND = {"x86_64": 237, "aarch64": 235}  # the system call's number; libc has no function for it
# Not MPOL_BIND: on a node without room it has the kernel kill the process, and memory further away still works.
_PREFERRED = 1
_WORD_BITS = 64


def node_of(bus_id: str) -> int | None:
    """The NUMA node of the PCI device `bus_id` (`0000:1b:00.0`); None where the system does not know one."""
    try:
        with open(f"{PCI_DEVICES}/{bus_id.lower()}/numa_node") as file:
            node = int(file.read())
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None


def prefer(mapping: Mapping, node: int) -> str:
    """Let pages of `mapping` that are touched from now on come from `node` while it has room.

    Returns what the system said, for people.
    """
    number = _MBIND.get(platform.machine())
    if number is None:
        return f"unknown (no number for mbind on {platform.machine()})"
    words = (ctypes.c_ulong * (node // _WORD_BITS + 1))()
    words[node // _WORD_BITS] = 1 << node % _WORD_BITS
    bits = ctypes.c_ulong(len(words) * _WORD_BITS + 1)  # the kernel reads one bit less than it is told
    result = libc.syscall(
        ctypes.c_long(number), ctypes.c_void_p(mapping.address), ctypes.c_size_t(mapping.mapped_bytes),
        ctypes.c_int(_PREFERRED), ctypes.byref(words), bits, ctypes.c_uint(0),
    )  # fmt: skip
    return f"refused ({last_error().strerror})" if result else "preferred"
