"""Kernels for the techniques of `sections.peers`. Addresses and sizes are multiples of 16 bytes."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

CHUNK_BYTES = 8 << 10
NUM_WARPS = 8


@triton.jit(do_not_specialize=["count"])
def copy_listed(sources_address, targets_address, words_address, count, CHUNK: tl.constexpr):
    """Copy i goes from `sources[i]` to `targets[i]`, `words[i]` words; a program takes every n-th, chunk by chunk."""
    for i in range(tl.program_id(0), count, tl.num_programs(0)):
        source = tl.load(sources_address.to(tl.pointer_type(tl.int64)) + i).to(tl.pointer_type(tl.int64))
        target = tl.load(targets_address.to(tl.pointer_type(tl.int64)) + i).to(tl.pointer_type(tl.int64))
        # Said to be even, or the mask would keep a thread from moving 16 bytes at once.
        words = tl.multiple_of(tl.load(words_address.to(tl.pointer_type(tl.int64)) + i), 2)
        for begin in range(0, words, CHUNK):
            at = begin + tl.arange(0, CHUNK)
            mask = at < words
            tl.store(tl.multiple_of(target, 16) + at, tl.load(tl.multiple_of(source, 16) + at, mask=mask), mask=mask)


@triton.jit(do_not_specialize=["count", "host_address", "slots_base", "blocks_address", "slots_address"])
def copy_layer(
    host_address,
    host_block_bytes,
    slots_base,
    slot_stride_bytes,
    blocks_address,
    slots_address,
    count,
    words,
    CHUNK: tl.constexpr,
):
    """One page of every block: from `host_address + blocks[i] * host_block_bytes` to the page of slot `slots[i]`."""
    chunks = tl.cdiv(words, CHUNK)
    for w in range(tl.program_id(0), count * chunks, tl.num_programs(0)):
        i = w // chunks
        block = tl.load(blocks_address.to(tl.pointer_type(tl.int64)) + i)
        slot = tl.load(slots_address.to(tl.pointer_type(tl.int64)) + i)
        source = (host_address + block * host_block_bytes).to(tl.pointer_type(tl.int64))
        target = (slots_base + slot * slot_stride_bytes).to(tl.pointer_type(tl.int64))
        at = (w % chunks) * CHUNK + tl.arange(0, CHUNK)
        mask = at < words
        tl.store(tl.multiple_of(target, 16) + at, tl.load(tl.multiple_of(source, 16) + at, mask=mask), mask=mask)


class Launcher:
    """Launches one of the kernels, after the first time without Triton's own look-up, which costs more than the rest.

    That is sound because what changes between launches is either excluded from specialisation or a multiple of 16.
    """

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel
        self._compiled: Any = None

    def __call__(self, programs: int, stream: int, *arguments: int) -> None:
        """Start the kernel on a CUDA stream (its handle; torch's current one at the first launch)."""
        arguments = (*arguments, CHUNK_BYTES // 8)
        grid = (programs, 1, 1)
        if self._compiled is None:
            self._compiled = self._kernel[grid](*arguments, num_warps=NUM_WARPS)  # None under the interpreter
        else:
            self._compiled[grid](*arguments, stream=stream)
