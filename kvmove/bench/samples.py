"""Repeated measurements: in turn, so that drifting clocks cancel, and summed up by median and spread."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

Name = TypeVar("Name")
Measure = Callable[[], float]  # takes one measurement


def median(values: Sequence[float]) -> float:
    """The middle value, or the mean of the two in the middle."""
    return statistics.median(values)


def spread(values: Sequence[float]) -> float:
    """Half the distance between the quartiles; 0 for fewer than two values, which have none."""
    if len(values) < 2:
        return 0.0
    low, _, high = statistics.quantiles(values, n=4)
    return (high - low) / 2


def half_range(values: Sequence[float]) -> float:
    """Half the distance between the largest and the smallest value: the spread of a few runs."""
    return (max(values) - min(values)) / 2


def in_turn(rounds: int, measures: Mapping[Name, Measure], *, warm_up: int = 2) -> dict[Name, list[float]]:
    """Each measure's values, taken in turn: round i of all before round i + 1 of any.

    The first `warm_up` rounds are not counted.
    """
    taken = [{name: measure() for name, measure in measures.items()} for _ in range(warm_up + rounds)][warm_up:]
    return {name: [values[name] for values in taken] for name in measures}


def ratios(above: Sequence[float], below: Sequence[float]) -> list[float]:
    """The quotients pair by pair."""
    return [a / b for a, b in zip(above, below, strict=True)]
