"""The index ring never hands out indices that a job in flight still reads."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kvmove import Refused
from kvmove.move.indices import IndexRing, Span


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 3)), max_size=60))
def test_a_span_stays_as_it_is_until_its_job_ended(history: list[tuple[int, int]]) -> None:
    """Takes of any size, and ends in any order: every span in flight keeps its numbers, and the ring never jams."""
    ring = IndexRing(16, pinned=False)
    live: dict[int, tuple[Span, np.ndarray]] = {}
    for number, (length, ends) in enumerate(history):
        values = np.arange(number * 100, number * 100 + length)
        try:
            live[number] = (ring.take(number, [values[:1], values[1:]]), values)
        except Refused:
            assert live, "an empty ring takes what fits"
        for span, expected in live.values():
            assert np.array_equal(span.array, expected)
        for victim in sorted(live, key=lambda n: (n * 7919) % 13)[:ends]:
            ring.give_back(victim)
            del live[victim]
    for number in list(live):
        ring.give_back(number)
    assert ring.in_flight == 0
    assert len(ring.take(10**6, [np.arange(16)]).array) == 16


def test_the_address_is_where_the_numbers_are() -> None:
    """Kernels read the very numbers that the reference path sees."""
    ring = IndexRing(16, pinned=False)
    ring.take(1, [np.arange(5)])
    span = ring.take(2, [np.array([7, 8]), np.array([9])])
    assert span.array.ctypes.data == span.address
    assert span.array.tolist() == [7, 8, 9]
