"""Which keys were asked for often enough to be worth storing."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence


class ReuseFilter:
    """Lets a key be stored once it was asked for often enough; most prompts never come back.

    Counts are kept for the `num_counted` keys that were asked for last, in about 120 bytes each.

    Args:
        threshold: requests with the key, the present one included, from which on it is stored; 1 stores every key.
        num_counted: keys whose counts are kept.
    """

    def __init__(self, threshold: int, num_counted: int) -> None:
        self._threshold = threshold
        self._num_counted = num_counted
        self._counts: OrderedDict[Hashable, int] = OrderedDict()

    def saw(self, keys: Sequence[Hashable]) -> None:
        """A request with these keys, in the order of its prefix, arrived."""
        if self._threshold <= 1:
            return
        counts = self._counts
        for key in reversed(keys):  # the head is forgotten last: without it the rest is of no use
            counts[key] = counts.pop(key, 0) + 1
        while len(counts) > self._num_counted:
            counts.popitem(last=False)

    def lets(self, key: Hashable) -> bool:
        """Whether the key was asked for often enough."""
        return self._threshold <= 1 or self._counts.get(key, 0) >= self._threshold

    def leading(self, keys: Sequence[Hashable]) -> Sequence[Hashable]:
        """The leading keys that were asked for often enough."""
        if self._threshold <= 1:
            return keys
        for i, key in enumerate(keys):
            if not self.lets(key):
                return keys[:i]
        return keys
