"""What is wrong, or looks wrong, in a policy: one record per mistake, apart from how it is shown."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from kvmove.kvpol.source import Span


class Severity(StrEnum):
    """Whether a policy can be used in spite of a finding."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class Note:
    """Something that explains a finding, with the place it speaks of where it has one."""

    message: str
    span: Span | None = None


@dataclass(frozen=True, slots=True)
class Fix:
    """An edit that would repair the mistake: replace `span` by `text`."""

    span: Span
    text: str


@dataclass(frozen=True, slots=True)
class Finding:
    """One mistake (an error) or suspicion (a warning), with its place in the text.

    `message` says what is wrong; `help` says what to do about it, and `fix` does it. `code` is kept for a
    stable name of this kind of finding.
    """

    severity: Severity
    message: str
    span: Span
    help: str | None = None
    fix: Fix | None = None
    notes: tuple[Note, ...] = ()
    code: str | None = None

    @property
    def is_error(self) -> bool:
        """Whether the policy cannot be used."""
        return self.severity is Severity.ERROR


class Findings:
    """Collects the findings of one pass. Order of discovery does not matter: `sorted` gives source order.

    At most `MOST` errors and as many warnings are kept; a reader of more fixes those first.
    """

    MOST = 100

    def __init__(self) -> None:
        self._errors: list[Finding] = []
        self._warnings: list[Finding] = []

    def error(
        self, message: str, span: Span, *, help: str | None = None, fix: Fix | None = None, notes: tuple[Note, ...] = ()
    ) -> None:
        """Record a mistake that keeps the policy from being used."""
        if not self.full:
            self._errors.append(Finding(Severity.ERROR, message, span, help, fix, notes))

    def warn(
        self, message: str, span: Span, *, help: str | None = None, fix: Fix | None = None, notes: tuple[Note, ...] = ()
    ) -> None:
        """Record what is probably not meant."""
        if len(self._warnings) < self.MOST:
            self._warnings.append(Finding(Severity.WARNING, message, span, help, fix, notes))

    @property
    def has_errors(self) -> bool:
        """Whether a mistake was recorded."""
        return bool(self._errors)

    @property
    def full(self) -> bool:
        """Whether no more mistakes are kept, so that looking for a suggestion is wasted work."""
        return len(self._errors) >= self.MOST

    def touches(self, low: int, high: int) -> bool:
        """Whether a mistake was recorded that starts in [low, high)."""
        return any(low <= f.span.start < high for f in self._errors)

    def sorted(self) -> tuple[Finding, ...]:
        """Every finding once, by its place in the text."""
        unique = dict.fromkeys([*self._errors, *self._warnings])
        return tuple(sorted(unique, key=lambda f: (f.span, f.message)))
