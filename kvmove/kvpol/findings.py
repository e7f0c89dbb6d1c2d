"""What is wrong, or looks wrong, in a policy: one record per mistake, apart from how it is shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvmove.kvpol.codes import Code, Severity
from kvmove.kvpol.source import Span

__all__ = ["Finding", "Findings", "Fix", "Note", "Severity"]


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

    `message` says what is wrong; `help` says what to do about it, and `fix` does it. `code` is the stable name of
    this kind of finding, such as `KV201`; only what is wrong with the file itself, not its text, has none.
    """

    severity: Severity
    message: str
    span: Span
    help: str | None = None
    fix: Fix | None = None
    notes: tuple[Note, ...] = ()
    code: str | None = None

    @classmethod
    def of(
        cls,
        code: Code,
        message: str,
        span: Span,
        *,
        help: str | None = None,
        fix: Fix | None = None,
        notes: tuple[Note, ...] = (),
    ) -> Finding:
        """A finding of the kind `code`, as severe as that kind is."""
        return cls(code.severity, message, span, help, fix, notes, code.name)

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

    def report(
        self,
        code: Code,
        message: str,
        span: Span,
        *,
        help: str | None = None,
        fix: Fix | None = None,
        notes: tuple[Note, ...] = (),
    ) -> None:
        """Record a mistake, or what is probably not meant: the code tells which."""
        kept = self._errors if code.severity is Severity.ERROR else self._warnings
        if len(kept) < self.MOST:
            kept.append(Finding.of(code, message, span, help=help, fix=fix, notes=notes))

    def add(self, finding: Finding) -> None:
        """Record a finding that was made elsewhere."""
        kept = self._errors if finding.is_error else self._warnings
        if len(kept) < self.MOST:
            kept.append(finding)

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

    def any_in(self, span: Span, kinds: Sequence[Code]) -> bool:
        """Whether a finding of one of `kinds` starts in `span`."""
        names = {code.name for code in kinds}
        return any(span.start <= f.span.start < span.end and f.code in names for f in (*self._errors, *self._warnings))

    def sorted(self) -> tuple[Finding, ...]:
        """Every finding once, by its place in the text."""
        unique = dict.fromkeys([*self._errors, *self._warnings])
        return tuple(sorted(unique, key=lambda f: (f.span, f.message)))
