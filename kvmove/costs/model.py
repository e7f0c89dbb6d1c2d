"""The cost model: four terms for each kind of job, path and lane, fitted to measured times.

    time = fixed + bytes * per byte + blocks * per block + pages * per page

The fixed term is what starting and ending take, the second is the link's rate, the third what a block costs on its own
(a descriptor of the copy engine), and the fourth what a page does (an address that a kernel computes).
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from itertools import combinations
from typing import NamedTuple

from kvmove.errors import RecordError
from kvmove.transfers import JobKind, Lane


class Work(NamedTuple):
    """What a job moves, of all its groups: payload bytes, GPU blocks, and the blocks' pages."""

    bytes: int
    blocks: int
    pages: int


@dataclass(frozen=True, slots=True)
class Terms:
    """Nanoseconds; none is negative, so that more of anything never costs less.

    Raises:
        RecordError: a term is negative or not finite.
    """

    fixed_ns: float
    ns_per_byte: float
    ns_per_block: float
    ns_per_page: float

    def __post_init__(self) -> None:
        for name, value in zip(("fixed_ns", "ns_per_byte", "ns_per_block", "ns_per_page"), astuple(self), strict=True):
            if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < float("inf"):
                raise RecordError(f"cost model: {name} is {value!r}; a number of at least 0 is needed")

    def predict_ns(self, work: Work) -> int:
        """The time that `work` is predicted to take on the device, in nanoseconds."""
        num_bytes, blocks, pages = work
        return round(
            self.fixed_ns + num_bytes * self.ns_per_byte + blocks * self.ns_per_block + pages * self.ns_per_page
        )


class Key(NamedTuple):
    """What has terms of its own. The lane decides how many kernel programs a job may hold."""

    kind: JobKind
    path: str
    lane: Lane


@dataclass(frozen=True, slots=True)
class Sample:
    """One measured shape of job: the median of its device times."""

    key: Key
    work: Work
    elapsed_ns: float


class CostModel:
    """Predictions for the kinds, paths and lanes that were measured."""

    def __init__(self, terms: Mapping[Key, Terms]) -> None:
        self.terms = dict(terms)

    def predict_ns(self, kind: JobKind, path: str, lane: Lane, work: Work) -> int | None:
        """The device time of a job, in nanoseconds; None where this path was not measured."""
        terms = self.terms.get(Key(kind, path, lane))
        return None if terms is None else terms.predict_ns(work)

    def quickest(self, kind: JobKind, paths: Iterable[str], lane: Lane, work: Work) -> str | None:
        """Of these paths the one that is predicted to end first; None where none was measured."""
        best: tuple[int, str] | None = None
        for path in paths:
            taken = self.predict_ns(kind, path, lane, work)
            if taken is not None and (best is None or taken < best[0]):
                best = (taken, path)
        return None if best is None else best[1]

    def load_time_ns(self, work: Work, lane: Lane = Lane.EXPEDITED) -> int | None:
        """A policy's `load_time`: what the quickest path takes to load `work`; None where none was measured."""
        times = [t.predict_ns(work) for key, t in self.terms.items() if (key.kind, key.lane) == (JobKind.LOAD, lane)]
        return min(times, default=None)


def fit(samples: Sequence[Sample]) -> CostModel:
    """The model with the least squared relative error, every term at least 0, for each key of the samples.

    Raises:
        RecordError: a key has no sample, or a sample's time is not positive.
    """
    by_key: dict[Key, list[Sample]] = {}
    for sample in samples:
        if not sample.elapsed_ns > 0:
            raise RecordError(f"cost model: a time of {sample.elapsed_ns!r} ns; a positive one is needed")
        by_key.setdefault(sample.key, []).append(sample)
    if not by_key:
        raise RecordError("cost model: no sample to fit it to")
    return CostModel({key: _fit_terms(own) for key, own in by_key.items()})


def relative_errors(model: CostModel, samples: Iterable[Sample]) -> list[float]:
    """How far each prediction is from the sample's time, as a share of that time."""
    errors = []
    for s in samples:
        predicted = model.predict_ns(*s.key, s.work)
        if predicted is not None:
            errors.append(abs(predicted - s.elapsed_ns) / s.elapsed_ns)
    return errors


def held_out_errors(samples: Sequence[Sample], *, folds: int = 4) -> dict[Key, list[float]]:
    """Relative errors on samples that the model was not fitted to: each fold is predicted from the others.

    Keys with fewer than two samples a fold are left out, because what remained would not determine four terms.
    """
    by_key: dict[Key, list[Sample]] = {}
    for sample in samples:
        by_key.setdefault(sample.key, []).append(sample)
    errors: dict[Key, list[float]] = {}
    for key, own in by_key.items():
        if len(own) < 2 * folds:
            continue
        errors[key] = []
        for fold in range(folds):
            rest = [s for i, s in enumerate(own) if i % folds != fold]
            errors[key] += relative_errors(fit(rest), own[fold::folds])
    return errors


def median_error(errors: Mapping[Key, Sequence[float]]) -> float | None:
    """The median over all keys' errors; None where there are none."""
    together = [e for own in errors.values() for e in own]
    return statistics.median(together) if together else None


def _fit_terms(samples: Sequence[Sample]) -> Terms:
    """Least squares under non-negativity. With four terms every set of terms that are not 0 can be tried."""
    import numpy as np

    times = np.array([s.elapsed_ns for s in samples], dtype=np.float64)
    # Divided by the time, so that 10% of a short load counts as much as 10% of a long one.
    rows = np.array([[1.0, *s.work] for s in samples]) / times[:, None]
    scale = np.abs(rows).max(axis=0)  # bytes and ones differ by nine orders of magnitude
    scale[scale == 0] = 1.0
    best, best_error = np.zeros(4), np.inf
    for size in range(1, 5):
        for chosen in combinations(range(4), size):
            columns = list(chosen)
            solution, *_ = np.linalg.lstsq(rows[:, columns] / scale[columns], np.ones(len(samples)), rcond=None)
            if (solution < 0).any():
                continue
            error = float(((rows[:, columns] / scale[columns] @ solution - 1) ** 2).sum())
            if error < best_error - 1e-12:
                best, best_error = np.zeros(4), error
                best[columns] = solution / scale[columns]
    return Terms(*(float(value) for value in best))
