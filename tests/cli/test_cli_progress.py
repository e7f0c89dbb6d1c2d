"""When a progress bar shows."""

from __future__ import annotations

import io

import pytest

from kvmove.cli.progress import progress_bar


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_shows_only_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bar is on stderr when that is a terminal and --quiet was not asked for; its label is no markup."""
    terminal, log = Terminal(), io.StringIO()
    monkeypatch.setattr("sys.stderr", terminal)
    with progress_bar("[x] mine", 10, quiet=True) as progress:
        assert progress is None
    assert terminal.getvalue() == ""
    with progress_bar("[x] mine", 10, quiet=False) as progress:
        assert progress is not None
        progress(10)
    assert "[x] mine" in terminal.getvalue()
    monkeypatch.setattr("sys.stderr", log)
    with progress_bar("mine", 10, quiet=False) as progress:
        assert progress is None
    assert log.getvalue() == ""
