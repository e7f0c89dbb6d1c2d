"""A policy's text through every pass before code is made: what `kvmove check` and `Policy` share."""

from __future__ import annotations

from dataclasses import dataclass

from kvmove.errors import PolicyError
from kvmove.kvpol import tree
from kvmove.kvpol.checked import Program
from kvmove.kvpol.checker import check
from kvmove.kvpol.findings import Finding, Findings
from kvmove.kvpol.limits import check_text
from kvmove.kvpol.params import Overrides
from kvmove.kvpol.parser import parse
from kvmove.kvpol.render import render_all
from kvmove.kvpol.source import Source


@dataclass(frozen=True, slots=True)
class Analysis:
    """What is known of a policy's text. `program` is None when a finding is an error."""

    source: Source
    file: tree.File
    findings: tuple[Finding, ...]
    override_problems: tuple[str, ...]
    program: Program | None

    def report(self) -> str:
        """Every finding as text."""
        return render_all(self.findings, self.source)

    def usable(self) -> Program:
        """The program.

        Raises:
            PolicyError: the policy has errors, or an override cannot be used.
        """
        errors = [f for f in self.findings if f.is_error]
        if errors:
            raise PolicyError(render_all(errors, self.source), errors)
        if self.override_problems or self.program is None:
            raise PolicyError("\n".join(f"{self.source.name}: {p}" for p in self.override_problems))
        return self.program


def analyse(source: Source, overrides: Overrides | None = None, *, strict: bool = False) -> Analysis:
    """Parse and check `source`, with the operator's values for its params.

    Raises:
        PolicyError: `source` is no text, or over the size limit.
    """
    check_text(source)
    findings = Findings()
    file = parse(source, findings)
    if not file.statements and findings.has_errors:
        return Analysis(source, file, findings.sorted(), (), None)
    checked = check(file, source, findings, overrides, strict=strict)
    return Analysis(source, file, findings.sorted(), checked.override_problems, checked.program)
