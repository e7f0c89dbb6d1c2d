"""The cost model: fitted to what was measured, tested on what it was not fitted to."""

from __future__ import annotations

import random

import pytest

from kvmove.costs import CostModel, Sample, Terms, Work, fit
from kvmove.costs.model import Key, held_out_errors, median_error, relative_errors
from kvmove.errors import RecordError
from kvmove.transfers import JobKind, Lane

DIRECT = Key(JobKind.LOAD, "direct", Lane.EXPEDITED)
STAGED = Key(JobKind.LOAD, "staged", Lane.EXPEDITED)
TRUTH = {DIRECT: Terms(30_000.0, 0.02, 80.0, 1.5), STAGED: Terms(150_000.0, 0.018, 0.0, 0.0)}


def shapes() -> list[Work]:
    """Jobs of 1 to 1000 blocks, with pages from 1 KiB to 64 KiB."""
    return [
        Work(blocks * pages * page, blocks, blocks * pages)
        for page, pages in ((1 << 10, 64), (4 << 10, 96), (16 << 10, 96), (64 << 10, 64))
        for blocks in (1, 4, 16, 64, 250, 1000)
    ]


def samples(noise: float, seed: int = 0) -> list[Sample]:
    chance = random.Random(seed)
    return [
        Sample(key, work, terms.predict_ns(work) * (1 + chance.uniform(-noise, noise)))
        for key, terms in TRUTH.items()
        for work in shapes()
    ]


def test_terms_are_found_again() -> None:
    """Times that follow the model exactly give its terms back, the ones that are 0 included."""
    model = fit(samples(0.0))
    for key, terms in TRUTH.items():
        found = model.terms[key]
        assert found.fixed_ns == pytest.approx(terms.fixed_ns, rel=1e-3)
        assert found.ns_per_byte == pytest.approx(terms.ns_per_byte, rel=1e-3)
        assert found.ns_per_block == pytest.approx(terms.ns_per_block, abs=0.5)
        assert found.ns_per_page == pytest.approx(terms.ns_per_page, abs=0.01)


def test_no_term_is_negative() -> None:
    """Where a larger job was measured to be quicker, a term is 0 rather than a promise that more is free."""
    backwards = [Sample(DIRECT, Work(1 << 20, n, n), 1e6 / n) for n in (1, 2, 4, 8)]
    assert min(fit(backwards).terms[DIRECT].predict_ns(Work(0, n, 0)) for n in range(9)) >= 0


def test_errors_are_those_of_samples_that_were_left_out() -> None:
    """With 5% of noise the error on what was left out is of that size; a planted outlier shows as one."""
    noisy = samples(0.05)
    error = median_error(held_out_errors(noisy))
    assert error is not None
    assert 0.005 < error < 0.06
    planted = [*noisy[:-1], Sample(noisy[-1].key, noisy[-1].work, 10 * noisy[-1].elapsed_ns)]
    assert max(held_out_errors(planted)[STAGED]) > 0.8
    assert median_error(held_out_errors(noisy[:7])) is None  # too few to leave any out


def test_the_quickest_path_is_chosen_and_unmeasured_ones_never() -> None:
    """The path with less to start wins small jobs, the one with the higher rate large ones."""
    model = CostModel(TRUTH)
    small, large = Work(1 << 20, 4, 64), Work(1 << 30, 4096, 1 << 16)
    paths = ["direct", "staged", "engine"]
    assert model.quickest(JobKind.LOAD, paths, Lane.EXPEDITED, small) == "direct"
    assert model.quickest(JobKind.LOAD, paths, Lane.EXPEDITED, large) == "staged"
    assert model.quickest(JobKind.STORE, paths, Lane.BULK, small) is None
    assert model.predict_ns(JobKind.LOAD, "engine", Lane.EXPEDITED, small) is None
    assert model.load_time_ns(small) == TRUTH[DIRECT].predict_ns(small)
    assert model.load_time_ns(small, Lane.BULK) is None


def test_relative_errors_are_shares_of_the_measured_time() -> None:
    """Twice the time is an error of 1/2 of what was measured, and what has no terms is left out."""
    model = CostModel({DIRECT: Terms(1000.0, 0, 0, 0)})
    other = Sample(STAGED, Work(1, 1, 1), 5.0)
    assert relative_errors(model, [Sample(DIRECT, Work(1, 1, 1), 2000.0), other]) == [0.5]


@pytest.mark.parametrize("bad", [-1.0, float("nan"), float("inf"), True, "1"])
def test_terms_are_checked(bad: object) -> None:
    """A profile from a file cannot bring negative or endless times."""
    with pytest.raises(RecordError, match="ns_per_page is"):
        Terms(0.0, 0.0, 0.0, bad)  # type: ignore[arg-type]


def test_nothing_to_fit_is_an_error() -> None:
    """No samples, or one without a time."""
    with pytest.raises(RecordError, match="no sample"):
        fit([])
    with pytest.raises(RecordError, match="positive"):
        fit([Sample(DIRECT, Work(1, 1, 1), 0.0)])
