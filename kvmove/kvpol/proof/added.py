"""Claims and conditions that come from outside a policy, checked with the policy's own checker."""

from __future__ import annotations

from kvmove.errors import PolicyError
from kvmove.kvpol import tree
from kvmove.kvpol.analyse import Analysis, analyse
from kvmove.kvpol.policy import Policy
from kvmove.kvpol.source import Source, quoted


def with_claim(policy: Policy, claim: str) -> tuple[Analysis, tree.Assert]:
    """The policy with one more assert, whose names are those of the policy, and that assert.

    Raises:
        PolicyError: the claim has a mistake, or is more than one claim.
    """
    source = policy.analysis.source
    overrides = dict(policy.program.params)
    analysis = analyse(Source(source.name, f"{source.text}\nassert {claim}\n"), overrides)
    analysis.usable()
    last = analysis.file.statements[-1]
    if len(analysis.file.statements) != len(policy.analysis.file.statements) + 1 or not isinstance(last, tree.Assert):
        raise PolicyError(f"{quoted(claim)} is not one claim; write it as after `assert`")
    return analysis, last


def condition(text: str) -> Analysis:
    """A policy with one rule whose condition is `text`: a condition about the variables of hits and steps.

    Raises:
        PolicyError: it has a mistake, or is more than a condition.
    """
    analysis = analyse(Source("<where>", f"sync if {text}\n"))
    analysis.usable()
    if len(analysis.file.statements) != 1 or analysis.file.header is not None:
        raise PolicyError(f"{quoted(text)} is not one condition; write it as after `if`")
    return analysis
