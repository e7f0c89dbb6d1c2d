"""Profiles as files: read back as written, refused where they do not hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvmove.costs import CostModel, Profile, Terms
from kvmove.costs.model import Key
from kvmove.errors import RecordError, Refused
from kvmove.transfers import JobKind, Lane

HERE = {"gpu": "NVIDIA H200", "driver": "580.1", "version": "0.1.0"}


def profile() -> Profile:
    terms = {
        Key(JobKind.LOAD, "direct", Lane.EXPEDITED): Terms(3e4, 0.02, 80.0, 1.5),
        Key(JobKind.STORE, "staged", Lane.BULK): Terms(1e5, 0.018, 0.0, 0.0),
    }
    return Profile(**HERE, median_error=0.04, model=CostModel(terms))


def test_a_profile_is_read_back(tmp_path: Path) -> None:
    """Every term, and whom it holds for."""
    profile().write(tmp_path / "new" / "p.json")
    read = Profile.read(tmp_path / "new" / "p.json")
    assert read.model.terms == profile().model.terms
    assert (read.gpu, read.driver, read.version, read.median_error) == (*HERE.values(), 0.04)
    read.refuse_elsewhere(**HERE)


@pytest.mark.parametrize("name", list(HERE))
def test_a_profile_of_another_machine_is_refused(name: str) -> None:
    """The message says what differs, and what to do."""
    with pytest.raises(Refused, match=rf"{name} '{HERE[name]}', and here it is 'other'.*kvmove calibrate"):
        profile().refuse_elsewhere(**{**HERE, name: "other"})


@pytest.mark.parametrize(
    "change",
    [
        {"format": "kvmove profile 0"},
        {"gpu": 3},
        {"median_error": "small"},
        {"terms": [{"kind": "load", "path": "direct", "lane": "bulk", "terms": [1, 2, 3]}]},
        {"terms": [{"kind": "load", "path": "direct", "lane": "bulk", "terms": [1, 2, 3, -4]}]},
        {"terms": [{"kind": "move", "path": "direct", "lane": "bulk", "terms": [1, 2, 3, 4]}]},
        {"terms": 5},
    ],
)
def test_what_is_no_profile_is_refused(change: dict[str, Any], tmp_path: Path) -> None:
    """The message names the file and the remedy."""
    path = tmp_path / "p.json"
    profile().write(path)
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(RecordError, match=r"p\.json: no profile .*kvmove calibrate --output"):
        Profile.read(path)
    path.write_text("[1, 2")
    with pytest.raises(RecordError, match="no profile"):
        Profile.read(path)
