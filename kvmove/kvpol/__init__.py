"""The policy language: text to tokens and limits, to a tree, to a checked program, to one compiled function.

`Policy` is what an engine uses. The passes, in order: `source` and `limits`, `lexer`, `parser` with `build`
(giving `tree`), `checker` with `definitions` and `expressions` (giving `checked`, on the exact arithmetic of
`whole` and `exact`), `compiler`. `evaluate` says what is correct; `analyse` runs every pass but the last.
"""

from kvmove.kvpol.findings import Finding, Fix, Note, Severity
from kvmove.kvpol.policy import Policy, Rule
from kvmove.kvpol.source import Source, Span

__all__ = ["Finding", "Fix", "Note", "Policy", "Rule", "Severity", "Source", "Span"]
