"""A policy's file through random histories: what is in use was once a whole file, and the last whole one wins.

The writers are those that exist: some write in place and in parts, some rename, some delete first, some swap links or
folders, some only touch. Time is a number; a writer that pauses within a line may pause for long, since such a part is
told by its open end, and one that pauses between lines of another text goes on before the debounce is over.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kvmove import PolicyFile, StepScheduler
from kvmove.kvpol.following import CAUTION

DEBOUNCE_S = 0.1
WHOLE = [
    "async\n",
    "sync if bytes <= 1MiB\nasync\n",
    "sync if bytes <= 2MiB\nasync\n",  # as long as the one before
    "sync if bytes <= 1MiB\ndefer if deferrals < 3\nasync\n",
    "# why\nrecompute if tokens < 9tok\nasync\n",
]
WRONG = ["sync if bites <= 1MiB\nasync\n", "", "# nothing\n", "sync\nasync\n"]


class Histories(RuleBasedStateMachine):
    """`live/p.kvpol` is a link through `live/..data`, as in a mounted ConfigMap, or after a rename a file by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp())
        self.folders = 0
        self.now_s = 0.0
        folder = self.root / "live"
        folder.mkdir()
        self.path = folder / "p.kvpol"
        self.swap_links(WHOLE[0])
        self.path.symlink_to("..data/p.kvpol")
        self.unwritten = ""  # what a writer in place has still to write
        self.file = PolicyFile(self.path, watch=False, debounce_ms=int(DEBOUNCE_S * 1000), clock=lambda: self.now_s)
        self.scheduler = StepScheduler(self.file)
        self.wholes = {WHOLE[0]}

    def teardown(self) -> None:
        shutil.rmtree(self.root)

    def swap_links(self, text: str) -> None:
        self.folders += 1
        target = self.path.parent / f"..{self.folders}"
        target.mkdir()
        (target / "p.kvpol").write_text(text)
        (self.path.parent / "..tmp").symlink_to(target.name)
        os.replace(self.path.parent / "..tmp", self.path.parent / "..data")

    def chosen(self, text: str) -> str:
        """Note that there is a whole file of this text now."""
        if text in WHOLE:
            self.wholes.add(text)
        self.unwritten = ""
        return text

    @rule(text=st.sampled_from(WHOLE + WRONG))
    def rename(self, text: str) -> None:
        new = self.path.with_name("new")
        new.write_text(self.chosen(text))
        os.replace(new, self.path)

    @rule(text=st.sampled_from(WHOLE + WRONG), is_linked=st.booleans())
    def swap(self, text: str, is_linked: bool) -> None:
        self.swap_links(self.chosen(text))
        if not self.path.is_symlink() or is_linked:
            self.path.unlink(missing_ok=True)
            self.path.symlink_to("..data/p.kvpol")

    @rule(text=st.sampled_from(WHOLE + WRONG))
    def replace_folder(self, text: str) -> None:
        self.path.parent.rename(self.root / f"old{self.folders}")
        self.path.parent.mkdir()
        self.folders += 1
        self.path.write_text(self.chosen(text))

    @rule()
    def delete(self) -> None:
        self.path.unlink(missing_ok=True)
        self.unwritten = ""

    @precondition(lambda self: self.path.exists())
    @rule()
    def touch(self) -> None:
        os.utime(self.path)

    @rule(text=st.sampled_from(WHOLE[1:]), cut=st.sampled_from([0, -1, 0, -1, -9, 1]), then=st.sampled_from("rw "))
    def begin_to_write(self, text: str, cut: int, then: str) -> None:
        """Up to the end of the first rule, where the part is a policy by itself, or beside it; and look."""
        self.path.unlink(missing_ok=True)
        at = text.index("\n", 7) + 1 + cut
        self.path.write_text(text[:at])
        self.unwritten = text[at:]
        self.file.poll()
        if not self.ends_between_lines():
            if then == "r":
                self.file.reload()
            elif then == "w":
                self.now_s += (CAUTION + 1) * DEBOUNCE_S
                self.file.poll()

    @precondition(lambda self: self.unwritten)
    @rule(cut=st.sampled_from([1, 5, 30]))
    def write_on(self, cut: int) -> None:
        part, self.unwritten = self.unwritten[:cut], self.unwritten[cut:]
        with self.path.open("a") as f:
            f.write(part)
        if not self.unwritten:
            self.chosen(self.path.read_text())

    def ends_between_lines(self) -> bool:
        return bool(self.unwritten) and self.path.exists() and self.path.read_text().endswith("\n")

    @rule(debounces=st.sampled_from([0.3, 0.9, 1.1, 3.0, CAUTION + 0.1]))
    def wait(self, debounces: float) -> None:
        if self.ends_between_lines():
            while self.unwritten:
                self.write_on(30)
        self.now_s += debounces * DEBOUNCE_S
        self.file.poll()

    @rule()
    def look(self) -> None:
        self.file.poll()

    @precondition(lambda self: not self.ends_between_lines())
    @rule()
    def reload(self) -> None:
        self.file.reload()

    @invariant()
    def what_is_in_use_was_a_whole_file(self) -> None:
        self.scheduler.begin_step()
        assert self.file.current.text in self.wholes

    @precondition(lambda self: not self.unwritten)
    @rule()
    def rest(self) -> None:
        """At rest the file decides: it is in use, or the last error says why not."""
        for _ in range(3):
            self.file.poll()
            self.now_s += (CAUTION + 1) * DEBOUNCE_S
        status = self.file.status()
        text = self.path.read_text() if self.path.exists() else None
        assert (status.last_error is None) is (text in WHOLE)
        if text in WHOLE:
            assert self.file.current.text == text


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=40, stateful_step_count=20)
