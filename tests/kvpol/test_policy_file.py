"""A policy that follows its file: what replaces it, what does not, and that no step sees two policies."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kvmove import Hit, Policy, PolicyError, PolicyFile, Refused, StepScheduler
from kvmove.kvpol.sighup import reload_on_sighup

GOOD, OTHER = "sync if bytes <= budget_remaining\nasync\n", "async\n"
BAD = "sync if bites <= budget_remaining\n"


def hit(request: str) -> Hit:
    return Hit(request=request, bytes=1, tokens=1, blocks=1, prompt_tokens=2, cached_tokens=0, compute_tokens=1)


def eventually(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < end, "it never came true"
        time.sleep(0.005)


def replace(path: Path, text: str) -> None:
    new = path.with_name("new")
    new.write_text(text)
    os.replace(new, path)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "live.kvpol"
    path.write_text(GOOD)
    return path


def test_reload_swaps_a_good_file_and_keeps_the_last_good_one_of_a_bad(path: Path) -> None:
    """`status` tells both."""
    file = PolicyFile(path, watch=False)
    first = file.current
    assert not file.reload()
    path.write_text(OTHER)
    assert file.reload()
    good = file.status()
    assert (good.reloads, good.last_error, good.watching) == (1, None, False)
    assert good.hash == file.current.hash != first.hash
    path.write_text(BAD)
    assert not file.reload()
    bad = file.status()
    assert bad.hash == good.hash
    assert bad.last_error is not None
    assert "bites" in bad.last_error
    assert bad.last_error_at is not None
    path.write_text(OTHER)
    assert not file.reload()
    assert file.status().last_error is None


@pytest.mark.parametrize("data", [b"\0\1\2", b"\xff\xfe", b"# " + b"x" * (65 << 10), None])
def test_what_is_no_policy_keeps_the_last_good_one(path: Path, data: bytes | None) -> None:
    """Binary, not UTF-8, over 64 KiB, a folder in its place."""
    file = PolicyFile(path, watch=False)
    before = file.current
    path.unlink()
    assert not file.reload()
    if data is None:
        path.mkdir()
    else:
        path.write_bytes(data)
    assert not file.reload()
    assert file.current is before
    assert file.status().last_error


def test_a_bad_file_at_the_start_raises(path: Path) -> None:
    """There is no earlier policy to keep."""
    path.write_text(BAD)
    with pytest.raises(PolicyError, match="bites"):
        PolicyFile(path)


def test_strict_refuses_what_strict_checking_fails_on(path: Path) -> None:
    """Here the last rule is not written."""
    path.write_text("sync if bytes <= budget_remaining\n")
    PolicyFile(path, watch=False)
    with pytest.raises(PolicyError):
        PolicyFile(path, watch=False, check_strict=True)


def test_params_hold_for_every_version(path: Path) -> None:
    """An operator's value outlives the file's edits."""
    file = PolicyFile(path, {"budget": "3MiB"}, watch=False)
    path.write_text(OTHER)
    assert file.reload()
    assert file.current.budget_bytes == 3 << 20


def test_watching_follows_editors_deletion_and_links(tmp_path: Path, path: Path) -> None:
    """Rewritten in place, replaced by renaming, deleted and made again, bad in between; no thread is left."""
    threads = threading.active_count()
    with PolicyFile(path, debounce_ms=20) as file:
        assert file.status().watching
        first = file.current.hash
        path.write_text(OTHER)
        eventually(lambda: file.current.hash != first)
        replace(path, GOOD)
        eventually(lambda: file.current.hash == first)
        path.unlink()
        eventually(lambda: file.status().last_error is not None)
        path.write_text(OTHER)
        eventually(lambda: file.current.hash != first)
        assert file.status().last_error is None
    assert not file.status().watching
    assert threading.active_count() == threads


def test_watching_follows_the_links_of_a_config_map(tmp_path: Path) -> None:
    """`live.kvpol -> ..data/live.kvpol`, and `..data` is swapped from one folder to the next."""
    for name, text in (("..1", GOOD), ("..2", OTHER)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "live.kvpol").write_text(text)
    (tmp_path / "..data").symlink_to("..1")
    path = tmp_path / "live.kvpol"
    path.symlink_to("..data/live.kvpol")
    with PolicyFile(path, debounce_ms=20) as file:
        first = file.current.hash
        (tmp_path / "..tmp").symlink_to("..2")
        os.replace(tmp_path / "..tmp", tmp_path / "..data")
        eventually(lambda: file.current.hash != first)


def test_a_half_written_file_is_not_reported(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Parts that follow each other within the debounce are read as one."""
    with caplog.at_level(logging.ERROR), PolicyFile(path, debounce_ms=400) as file:
        first = file.current.hash
        with path.open("w") as f:
            for part in ("recompute if byt", "es > 1MiB and (tok", "ens > 3tok)\nasync\n"):
                f.write(part)
                f.flush()
                time.sleep(0.02)
        eventually(lambda: file.current.hash != first)
    assert caplog.records == []


def test_sighup_reloads_and_calls_the_handler_before(path: Path) -> None:
    """And the function that it returned puts that handler back."""
    called: list[int] = []
    old = signal.signal(signal.SIGHUP, lambda number, frame: called.append(number))
    try:
        file = PolicyFile(path, watch=False)
        first = file.current.hash
        restore = reload_on_sighup(file)
        path.write_text(OTHER)
        os.kill(os.getpid(), signal.SIGHUP)
        eventually(lambda: file.current.hash != first)
        assert called == [signal.SIGHUP]
        restore()
        path.write_text(GOOD)
        os.kill(os.getpid(), signal.SIGHUP)
        assert len(called) == 2
        assert file.current.hash != first
    finally:
        signal.signal(signal.SIGHUP, old)


def test_sighup_is_refused_on_another_thread(path: Path) -> None:
    """Python lets only the main one set handlers."""
    caught: list[Exception] = []

    def ask() -> None:
        try:
            reload_on_sighup()
        except Refused as e:
            caught.append(e)

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    assert "main" in str(caught[0])


def test_without_watchfiles_the_extra_is_named(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading by hand still works."""
    monkeypatch.setitem(sys.modules, "watchfiles", None)
    with pytest.raises(Refused, match=r"kvmove\[watch\]"):
        PolicyFile(path)
    assert not PolicyFile(path, watch=False).reload()


@pytest.fixture
def frequent_switches() -> Iterator[None]:
    """Threads take turns as often as can be."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("frequent_switches")
def test_a_storm_of_reloads_never_mixes_two_policies_in_a_step(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """1,000 swaps on one thread while another makes 100,000 decisions; each text is parsed only once, for time."""
    texts = [GOOD, OTHER]
    parsed = {text: Policy.parse(text) for text in texts}
    monkeypatch.setattr(Policy, "load", lambda path, params: parsed[path.read_text()])
    file = PolicyFile(path, watch=False)
    done = threading.Event()
    swaps = 0

    def storm() -> None:
        nonlocal swaps
        while swaps < 1000:
            path.write_text(texts[swaps % 2 == 0])
            swaps += file.reload()
        done.set()

    thread = threading.Thread(target=storm)
    scheduler = StepScheduler(file.current)
    applied = None
    hits = [hit(f"r{i}") for i in range(50)]
    decisions, seen = 0, set()
    thread.start()
    while decisions < 100_000 or not done.is_set():
        applied = file.apply_to(scheduler, applied)
        scheduler.begin_step()
        hashes = {scheduler.decide(h).policy_hash for h in hits}
        scheduler.abort_step()
        assert hashes == {applied.hash}
        seen |= hashes
        decisions += len(hits)
    thread.join()
    assert file.status().reloads == swaps == 1000
    assert len(seen) == 2
