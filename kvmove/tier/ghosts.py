"""A memory of keys that were evicted not long ago, at sixteen bytes each or less."""

from __future__ import annotations

from array import array
from collections.abc import Hashable
from zlib import crc32

_MASK = (1 << 32) - 1


def fingerprint(key: Hashable) -> int:
    """32 bits of a key. For bytes and ints the same in every process, as the order of eviction then is too."""
    if type(key) is bytes:
        return crc32(key)
    # Ints hash to themselves: mixed, so that neighbours do not share the table's slots with far ones in runs.
    return (hash(key) * 0x9E3779B97F4A7C15 >> 24) & _MASK


class GhostQueue:
    """The last `capacity` keys that were added, or nearly: a table by fingerprint, where a newcomer replaces.

    Two keys that share a slot lose one of them, and one key in some thousands is taken for another: both only move
    a block to the better or worse queue. A queue of the keys themselves would take a hundred bytes for each.
    """

    __slots__ = ("_added", "_capacity", "_fingerprints", "_mask", "_stamps")

    def __init__(self, capacity: int) -> None:
        num_slots = 1 << max(0, capacity - 1).bit_length()
        self._mask = num_slots - 1
        self._capacity = capacity
        self._fingerprints = array("I", bytes(4 * num_slots))
        self._stamps = array("I", bytes(4 * num_slots))
        self._added = capacity + 1  # further than `capacity` from the stamp 0 of an empty slot

    def add(self, fingerprint: int) -> None:
        """Remember a key that goes."""
        slot = fingerprint & self._mask
        self._fingerprints[slot] = fingerprint
        self._stamps[slot] = self._added & _MASK
        self._added += 1

    def take(self, fingerprint: int) -> bool:
        """Whether the key is remembered; it is forgotten then."""
        slot = fingerprint & self._mask
        if self._fingerprints[slot] != fingerprint or (self._added - self._stamps[slot]) & _MASK > self._capacity:
            return False
        self._stamps[slot] = (self._added - self._capacity - 1) & _MASK
        return True
