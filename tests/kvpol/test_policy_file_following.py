"""When a file that changes is read again. Time is a number here, and each look at the file is a call."""

from __future__ import annotations

import logging
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kvmove import PolicyFile, Refused
from kvmove.kvpol import following
from kvmove.kvpol.following import CAUTION, MAX_RESTLESS

DEBOUNCE_MS = 100
TINY, LATE = "sync if bytes <= 1MiB\nasync\n", "sync if bytes <= 2MiB\nasync\n"


class Following:
    """A policy file whose clock stands still, and moves by one debounce with each `wait`."""

    def __init__(self, path: Path) -> None:
        self.now_s = 0.0
        self.file = PolicyFile(path, watch=False, debounce_ms=DEBOUNCE_MS, clock=lambda: self.now_s)

    def wait(self, debounces: float = 1.0) -> bool:
        """Look, let time pass, and look again; whether another policy is in use."""
        first = self.file.poll()
        self.now_s += debounces * DEBOUNCE_MS / 1000 + 1e-6
        return self.file.poll() or first

    @property
    def text(self) -> str:
        return self.file.current.text


def replace(path: Path, text: str) -> None:
    new = path.with_name("new")
    new.write_text(text)
    os.replace(new, path)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "live.kvpol"
    path.write_text(TINY)
    return path


def test_a_change_is_used_once_it_is_at_rest(path: Path) -> None:
    """Not at first sight, not before its time, and only once."""
    following = Following(path)
    assert not following.wait()
    path.write_text(LATE)
    assert not following.file.poll()
    assert not following.wait(0.5)
    assert following.wait(0.5)
    assert following.text == LATE
    assert not following.wait(20)
    assert following.file.status().reloads == 1


def test_a_file_that_goes_on_changing_is_not_used(path: Path) -> None:
    """Each change starts the time anew; one that does not end is reported, and used when it does."""
    following = Following(path)
    for i in range(MAX_RESTLESS * 2):
        path.write_text(f"sync if bytes <= {i + 2}MiB\nasync\n")
        assert not following.wait(0.6)
    assert following.text == TINY
    assert "does not come to rest" in str(following.file.status().last_error)
    assert following.wait(1.1)
    assert f"{MAX_RESTLESS * 2 + 1}MiB" in following.text
    assert following.file.status().last_error is None


def test_a_half_written_file_is_neither_used_nor_reported(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The parts of a writer that pauses for longer than the debounce, where what is there may go on."""
    following = Following(path)
    with caplog.at_level(logging.ERROR), path.open("w") as f:
        for part in ("recompute if byt", "es > 1MiB and (tok", "ens > 3tok)\nasync\n"):
            assert not following.wait(CAUTION - 1)
            f.write(part)
            f.flush()
    assert following.wait()
    assert "recompute" in following.text
    assert caplog.records == []


def test_the_beginning_of_the_text_in_use_rests_longer(path: Path) -> None:
    """A writer that writes the same lines again may be on its way; an operator may have removed the last ones."""
    following = Following(path)
    path.write_text(TINY.splitlines(keepends=True)[0])
    assert not following.wait(CAUTION - 1)
    assert following.text == TINY
    assert following.wait(1)
    assert following.text != TINY


def test_an_empty_file_is_never_used(path: Path) -> None:
    """It is reported after a while, and what is written into it later is used."""
    following = Following(path)
    path.write_text("")
    assert not following.wait(CAUTION - 1)
    assert following.file.status().last_error is None
    assert not following.wait(2)
    assert "no rule" in str(following.file.status().last_error)
    path.write_text(LATE)
    assert following.wait()
    assert following.file.status().last_error is None


def test_a_rewrite_of_the_same_size_and_times_is_noticed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As within the resolution of a file system's clock: nothing differs but the bytes."""
    monkeypatch.setattr(following, "_stamp", lambda s: (s.st_size,))
    followed = Following(path)
    assert len(LATE) == len(TINY)
    path.write_text(LATE)
    assert followed.wait()
    assert followed.text == LATE


def test_a_touched_file_is_not_loaded_again(path: Path) -> None:
    """Its bytes are the same."""
    following = Following(path)
    loaded_at = following.file.status().loaded_at
    os.utime(path, ns=(1, 1))
    assert not following.wait(20)
    replace(path, TINY)
    assert not following.wait(20)
    assert following.file.status().loaded_at == loaded_at


def test_a_file_that_changes_while_it_is_read_is_read_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`poll` waits for it to rest, and `reload` gives up after three tries."""
    followed = Following(path)
    path.write_text(LATE)
    stamps = iter(range(1000))
    with monkeypatch.context() as patch:
        patch.setattr(following, "_stamp", lambda s: (next(stamps),))
        assert not followed.wait()
        assert not followed.file.reload()
    assert "changed each time" in str(followed.file.status().last_error)
    assert followed.wait()
    assert followed.text == LATE


def test_replacing_deleting_and_making_again(path: Path) -> None:
    """As editors save; while there is none, the last good one stays."""
    following = Following(path)
    replace(path, LATE)
    assert following.wait()
    path.unlink()
    assert not following.wait()
    assert following.text == LATE
    assert "no such file" in str(following.file.status().last_error)
    path.write_text(LATE)
    assert not following.wait()
    assert following.file.status().last_error is None
    path.unlink()
    assert not following.file.poll()
    path.write_text(TINY)
    assert following.wait()
    assert following.file.status().reloads == 2


def test_a_short_absence_is_not_reported(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An editor that moves the old file away first."""
    following = Following(path)
    with caplog.at_level(logging.ERROR):
        path.rename(path.with_suffix(".bak"))
        following.wait(0.5)
        path.write_text(LATE)
        assert following.wait()
    assert caplog.records == []


def test_a_folder_that_is_replaced(tmp_path: Path) -> None:
    """By renaming, with another file of the same name in it; and one that is gone for a while."""
    for name, text in (("live", TINY), ("next", LATE)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "p.kvpol").write_text(text)
    following = Following(tmp_path / "live" / "p.kvpol")
    (tmp_path / "live").rename(tmp_path / "old")
    (tmp_path / "next").rename(tmp_path / "live")
    assert following.wait()
    assert following.text == LATE
    shutil.rmtree(tmp_path / "live")
    assert not following.wait()
    assert following.file.status().last_error
    (tmp_path / "old").rename(tmp_path / "live")
    assert following.wait()
    assert following.text == TINY


def test_the_links_of_a_config_map(tmp_path: Path) -> None:
    """`live.kvpol -> ..data/live.kvpol`, and `..data` is swapped between folders, one of which there is not."""
    for name, text in (("..1", TINY), ("..2", LATE)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "live.kvpol").write_text(text)
    (tmp_path / "..data").symlink_to("..1")
    path = tmp_path / "live.kvpol"
    path.symlink_to("..data/live.kvpol")
    following = Following(path)
    for target, text in (("..2", LATE), ("..3", LATE), ("..1", TINY)):
        (tmp_path / "..tmp").symlink_to(target)
        os.replace(tmp_path / "..tmp", tmp_path / "..data")
        following.wait()
        assert following.text == text
        assert following.file.is_broken is (target == "..3")


def test_a_pipe_in_the_files_place_does_not_block(path: Path) -> None:
    """Nor is it read."""
    following = Following(path)
    path.unlink()
    os.mkfifo(path)
    assert not following.wait()
    assert "is no file" in str(following.file.status().last_error)


def eventually(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < end, "it never came true"
        time.sleep(0.005)


def test_the_watching_thread_does_all_that(tmp_path: Path) -> None:
    """Rewritten in place, replaced, deleted and made again, its folder replaced; no thread is left."""
    pytest.importorskip("watchfiles")
    folder = tmp_path / "policies"
    folder.mkdir()
    path = folder / "live.kvpol"
    path.write_text(TINY)
    threads = threading.active_count()
    with PolicyFile(path, debounce_ms=5) as file:
        assert file.status().watching
        path.write_text(LATE)
        eventually(lambda: file.current.text == LATE)
        replace(path, TINY)
        eventually(lambda: file.current.text == TINY)
        path.unlink()
        eventually(lambda: file.is_broken)
        path.write_text(LATE)
        eventually(lambda: file.current.text == LATE)
        assert not file.is_broken
        folder.rename(tmp_path / "old")
        folder.mkdir()
        path.write_text(TINY)
        eventually(lambda: file.current.text == TINY)
        replace(path, LATE)
        eventually(lambda: file.current.text == LATE)
    assert not file.status().watching
    assert threading.active_count() == threads
    file.close()


def test_watching_goes_on_without_notifications(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the system has no more of them, the file is looked at every so often."""
    watchfiles = pytest.importorskip("watchfiles")

    def no_watch(*args: object, **named: object) -> None:
        raise OSError("no inotify instances left")

    monkeypatch.setattr(watchfiles, "watch", no_watch)
    monkeypatch.setattr("kvmove.kvpol.reload._LOOK_MS", 5)
    with PolicyFile(path, debounce_ms=5) as file:
        path.write_text(LATE)
        eventually(lambda: file.current.text == LATE)


def test_without_watchfiles_the_extra_is_named(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading by hand still works."""
    monkeypatch.setitem(sys.modules, "watchfiles", None)
    with pytest.raises(Refused, match=r"kvmove\[watch\]"):
        PolicyFile(path)
    assert not PolicyFile(path, watch=False).reload()
