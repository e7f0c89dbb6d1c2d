"""Calibration end to end on the CPU: its times mean nothing, but what is made of them does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from kvmove import Load, Mover, Profile, cli, load_batch, store_batch
from kvmove.bench import calibrate as calibrating
from kvmove.bench import device
from kvmove.bench.calibrate import Grid, calibrate
from kvmove.bench.device import HostDevice
from kvmove.bench.plan import Plan, Shape
from kvmove.bench.session import Session
from kvmove.costs import CostModel, Terms
from kvmove.costs.model import Key
from kvmove.errors import Refused
from kvmove.move import CacheLayout, HostPool
from kvmove.move.identity import identity
from kvmove.move.paths.staged import StagedPath
from kvmove.records import JobKind, Lane, Store

GRID = Grid(shapes=(Shape(48, 3), Shape(64, 4)), sizes_bytes=(256, 1024), repetitions=1, limit_s=60.0)


@pytest.fixture
def cache() -> CacheLayout:
    return CacheLayout.from_tensors([torch.zeros(6, 64, dtype=torch.uint8) for _ in range(3)], block_dim=0)


def profile(**terms: tuple[float, float]) -> Profile:
    """For the CPU; each path with what a job costs fixed, and what a byte costs."""
    keys = [(JobKind.LOAD, Lane.EXPEDITED), (JobKind.LOAD, Lane.BULK), (JobKind.STORE, Lane.BULK)]
    model = CostModel({Key(kind, path, lane): Terms(*own, 0, 0) for path, own in terms.items() for kind, lane in keys})
    return Profile(**identity(torch.device("cpu")), median_error=None, model=model)


def test_every_path_that_takes_the_caches_gets_terms(tiny: Plan) -> None:
    """Loads in both lanes and stores; tma where a shape allows it, and the copy engine only with large pages."""
    session = Session(HostDevice(), tiny)
    made = calibrate(session, GRID)
    assert session.failures == []
    loads = {(JobKind.LOAD, lane) for lane in Lane} | {(JobKind.STORE, Lane.BULK)}
    assert set(made.profile.model.terms) == {
        Key(kind, path, lane) for path in ("direct", "tma", "staged") for kind, lane in loads
    }
    assert (made.profile.gpu, made.profile.driver) == ("cpu", "none")
    assert all(s.elapsed_ns > 0 for s in made.samples)


def test_a_path_that_copies_wrongly_gets_no_terms(tiny: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is named in the failures, and never chosen."""
    monkeypatch.setattr(StagedPath, "load", lambda *arguments: None)
    session = Session(HostDevice(), tiny)
    made = calibrate(session, GRID)
    assert "staged" not in {key.path for key in made.profile.model.terms}
    assert any("the staged path is not measured" in failure for failure in session.failures)


def test_time_that_runs_out_is_said(tiny: Plan) -> None:
    """The first shape is measured whatever happens, and what is missing is named."""
    session = Session(HostDevice(), tiny)
    made = calibrate(session, replace(GRID, limit_s=0.0))
    assert {s.work.bytes // s.work.pages for s in made.samples} == {48}
    assert session.failures == ["calibrate: no time was left for pages of 64 bytes and later ones"]


def test_a_mover_goes_by_its_profile(cache: CacheLayout, monkeypatch: pytest.MonkeyPatch) -> None:
    """The path that is predicted to be the quickest for a job is taken, and the result says what was predicted."""
    monkeypatch.setattr(
        "kvmove.move.paths.Paths._only_choice", lambda self: None
    )  # as on a GPU: several to choose from
    with HostPool.for_layout(cache, 6) as pool:
        with Mover(cache, pool, profile=profile(direct=(100.0, 2.0), staged=(500.0, 1.0))) as mover:
            load_batch(mover, [Load(1, [0], [0]), Load(2, [1, 2, 3], [1, 2, 3], "bulk")])
            store_batch(mover, [Store(3, [4], [4])])
            load_batch(mover, [Load(4, [5], [5])], path="staged")
            got = {r.job: (r.path, r.predicted_ns) for r in mover.finished()}
        assert got == {
            1: ("direct", 100 + 2 * 192),
            2: ("staged", 500 + 3 * 192),
            3: ("direct", 100 + 2 * 192),
            4: ("staged", 500 + 192),
        }
        with Mover(cache, pool, profile=profile(engine=(1.0, 1.0)), path="direct") as mover:
            load_batch(mover, [Load(1, [0], [0])])
            assert [(r.path, r.predicted_ns) for r in mover.finished()] == [("direct", None)]
        with Mover(cache, pool) as mover:
            load_batch(mover, [Load(1, [0], [0])])
            assert [r.predicted_ns for r in mover.finished()] == [None]


def test_a_foreign_profile_is_refused(cache: CacheLayout) -> None:
    """A mover does not choose by what another GPU was measured to give."""
    foreign = replace(profile(direct=(1.0, 1.0)), gpu="NVIDIA H200")
    with HostPool.for_layout(cache, 6) as pool, pytest.raises(Refused, match="measured with gpu 'NVIDIA H200'"):
        Mover(cache, pool, profile=foreign)


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(cli.app, ["calibrate", *arguments])


def test_the_command_writes_a_profile(tmp_path: Path, tiny: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    """Terms and errors are on stdout, and the file is what a mover takes."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(device, "CudaDevice", HostDevice)
    monkeypatch.setattr(calibrating, "calibrate", lambda session: calibrate(session, GRID))
    result = invoke("--output", str(tmp_path / "p.json"))
    assert result.exit_code == 0, result.output
    assert "load, staged, expedited" in result.stdout
    assert "median error on samples that were left out" in result.stdout
    Profile.read(tmp_path / "p.json").refuse_elsewhere(**identity(torch.device("cpu")))


def test_without_a_gpu_the_command_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Exit status 2, and what serves instead."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    result = invoke("--output", str(tmp_path / "p.json"))
    assert result.exit_code == 2
    assert "built-in defaults serve" in result.output
    assert not (tmp_path / "p.json").exists()
