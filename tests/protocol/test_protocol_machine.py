"""The state machine over scheduler, tier and workers: a short run, and bugs planted to see that it finds them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from kvmove.errors import InternalError
from kvmove.offload.endings import Endings
from kvmove.offload.loads import LoadBook
from kvmove.offload.scheduler import OffloadScheduler
from kvmove.offload.stores import StoreBook
from kvmove.testing import protocol_checked
from kvmove.testing.protocol_machine import ProtocolMachine

SHORT = settings(
    max_examples=30, stateful_step_count=40, deadline=None, database=None, suppress_health_check=list(HealthCheck)
)
HUNT = settings(SHORT, max_examples=50, phases=[Phase.generate], print_blob=False)


def test_scheduler_tier_and_workers_do_what_the_model_says() -> None:
    """Anything in any order; and the run was not idle."""
    before = ProtocolMachine.totals.copy()
    for number in range(2):
        run_state_machine_as_test(seed(number)(ProtocolMachine), settings=SHORT)
    done = ProtocolMachine.totals - before
    assert done["machines"] >= 60
    assert done["requests finished"] > 100
    assert done["blocks compared"] > 1000
    for what in ("hits", "joins", "loads released", "stores made", "stores failed", "keys evicted"):
        assert done[what] > 2, what


def slots_are_given_away_under_a_load(patch: pytest.MonkeyPatch) -> None:
    """An aborted request's slots are called free although a load still writes them."""
    leave = Endings.leave

    def leave_at_once(self: Endings, request: Any) -> bool:
        leave(self, request)
        return True

    patch.setattr(Endings, "leave", leave_at_once)


def nothing_is_flushed(patch: pytest.MonkeyPatch) -> None:
    """A step overwrites slots that a store still reads."""
    patch.setattr(StoreBook, "flushes", lambda self, written: ())


def a_failed_store_is_served(patch: pytest.MonkeyPatch) -> None:
    """A key becomes ready although a rank could not write its block."""
    end = StoreBook.end
    patch.setattr(StoreBook, "end", lambda self, job, *, failed: end(self, job, failed=False))


def a_dead_load_is_joined(patch: pytest.MonkeyPatch) -> None:
    """The keys of an aborted load stay marked: who hits them joins a load that releases nobody."""

    def unmark_nothing(self: LoadBook, load: Any) -> Any:
        joined = list(load.joined.values())
        load.joined.clear()
        return joined

    patch.setattr(LoadBook, "unmark", unmark_nothing)


BUGS = [slots_are_given_away_under_a_load, nothing_is_flushed, a_failed_store_is_served, a_dead_load_is_joined]


def hunt() -> None:
    for number in range(8):
        run_state_machine_as_test(seed(number)(ProtocolMachine), settings=HUNT)


@pytest.mark.parametrize("plant", BUGS, ids=lambda plant: plant.__name__)
def test_a_planted_bug_is_found(plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """By the model, by the scheduler's own checks, or by the bytes."""
    plant(monkeypatch)
    with pytest.raises(Exception) as found:  # noqa: PT011  # any kind: what is wrong shows where it shows
        hunt()
    assert found.type is not AssertionError  # the hunt itself went wrong


@pytest.mark.parametrize("plant", BUGS[1:3], ids=lambda plant: plant.__name__)
def test_a_planted_bug_shows_in_the_bytes_alone(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where nobody compares answers and nobody checks invariants: a read finds what it should not."""
    plant(monkeypatch)
    monkeypatch.setattr(protocol_checked, "require", lambda holds, *what: None)
    monkeypatch.setattr("kvmove.testing.protocol_model.require", lambda holds, *what: None)
    monkeypatch.setattr(OffloadScheduler, "check_integrity", lambda self: None)
    monkeypatch.setattr(ProtocolMachine, "require_at_rest_is_at_rest", lambda self: None)
    with pytest.raises(InternalError, match="blocks did not hold what they have to"):
        hunt()
