"""SIGHUP makes policy files be read again. Signals are raised in this process, and the thread is waited for."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import pytest

from kvmove import PolicyFile, Refused
from kvmove.kvpol import sighup
from kvmove.kvpol.sighup import THREAD_NAME, reload_on_sighup

TINY, LATE = "sync if bytes <= 1MiB\nasync\n", "sync if bytes <= 2MiB\nasync\n"


@pytest.fixture
def calls() -> Iterator[list[int]]:
    """What a handler that was there before was called with."""
    calls: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:
        calls.append(number)

    old = signal.signal(signal.SIGHUP, handle)
    yield calls
    signal.signal(signal.SIGHUP, old)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "live.kvpol"
    path.write_text(TINY)
    return path


def hang_up() -> None:
    signal.raise_signal(signal.SIGHUP)
    for thread in threading.enumerate():
        if thread.name == THREAD_NAME:
            thread.join(10)


def test_every_file_is_reloaded_and_the_handler_before_is_called(path: Path, calls: list[int]) -> None:
    """And the function that it returned puts that handler back."""
    files = [PolicyFile(path, watch=False), PolicyFile(path, watch=False)]
    restore = reload_on_sighup(*files)
    path.write_text(LATE)
    hang_up()
    assert [file.current.text for file in files] == [LATE, LATE]
    assert calls == [signal.SIGHUP]
    restore()
    path.write_text(TINY)
    hang_up()
    assert calls == [signal.SIGHUP] * 2
    assert [file.current.text for file in files] == [LATE, LATE]


def test_a_bad_file_keeps_its_policy(path: Path, calls: list[int]) -> None:
    """And does not keep the next file from being read."""
    second = path.with_name("second.kvpol")
    second.write_text(TINY)
    files = [PolicyFile(path, watch=False), PolicyFile(second, watch=False)]
    restore = reload_on_sighup(*files)
    path.write_text("sync if bites\n")
    second.write_text(LATE)
    hang_up()
    restore()
    assert [file.current.text for file in files] == [TINY, LATE]
    assert [file.is_broken for file in files] == [True, False]


def test_a_handler_that_was_set_later_is_kept(path: Path, calls: list[int]) -> None:
    """Ending is no reason to take it away."""
    restore = reload_on_sighup(PolicyFile(path, watch=False))
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    restore()
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


def test_signals_that_come_while_one_waits_are_one_reload(path: Path, calls: list[int]) -> None:
    """However many: one reload under way, and one after it."""
    file = PolicyFile(path, watch=False)
    reloads = 0
    is_reloading, may_end = threading.Event(), threading.Event()

    def slow() -> bool:
        nonlocal reloads
        reloads += 1
        is_reloading.set()
        return may_end.wait(10)

    file.reload = slow  # type: ignore[method-assign]
    restore = reload_on_sighup(file)
    signal.raise_signal(signal.SIGHUP)
    assert is_reloading.wait(10)
    for _ in range(20):
        signal.raise_signal(signal.SIGHUP)
    may_end.set()
    hang_up()
    restore()
    assert len(calls) == 22
    assert 2 <= reloads <= 3  # the last signal may find the second reload begun


def test_a_signal_that_can_start_no_thread_raises_nothing(
    path: Path, calls: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It interrupts the engine's thread; the next signal reloads."""
    file = PolicyFile(path, watch=False)
    restore = reload_on_sighup(file)
    path.write_text(LATE)

    def refuse(*args: object, **named: object) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(sighup.threading, "Thread", refuse)
        signal.raise_signal(signal.SIGHUP)
    assert file.current.text == TINY
    hang_up()
    restore()
    assert file.current.text == LATE


def test_it_is_refused_on_another_thread() -> None:
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
