"""The policy language: text to tokens and limits, to a tree, to a checked program, to one compiled function.

`Policy` is what an engine uses. The passes, in order: `source` and `limits`, `lexer`, `parser` with `lalr` and
`build` (giving `tree`), `checker` with `definitions` and `expressions` (giving `checked`, on the exact arithmetic of
`whole` and `exact`), `compiler`. `evaluate` says what is correct; `analyse` runs every pass but the last.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from kvmove.kvpol.policy import Policy, Rule

if TYPE_CHECKING:
    from kvmove.kvpol.findings import Finding, Fix, Note, Severity
    from kvmove.kvpol.source import Source, Span

__all__ = ["Finding", "Fix", "Note", "Policy", "Rule", "Severity", "Source", "Span"]

_FINDINGS, _SOURCE = "kvmove.kvpol.findings", "kvmove.kvpol.source"
_HOME = {
    "Finding": _FINDINGS,
    "Fix": _FINDINGS,
    "Note": _FINDINGS,
    "Severity": _FINDINGS,
    "Source": _SOURCE,
    "Span": _SOURCE,
}


def __getattr__(name: str) -> Any:
    # What findings are made of is imported when it is asked for: a scheduler that decides needs none of it.
    if name not in _HOME:
        raise AttributeError(f"module 'kvmove.kvpol' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOME[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
