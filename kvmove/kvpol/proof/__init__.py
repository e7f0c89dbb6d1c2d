"""Proofs about policies, for all hits and steps that the schema admits. They need the extra `prove` (z3).

`model` turns a checked program into formulas over the variables of `inputs`; `search` asks z3, within a time;
`shrinking` makes an example readable, and `confirm` runs it through the tree evaluator before anybody sees it.
`rules`, `claims` and `difference` hold the questions. Nothing is imported from z3 before a question is asked.
"""

from __future__ import annotations

from kvmove.kvpol.policy import Policy
from kvmove.kvpol.proof.results import Comparison, Example, Report, RuleProof, Status, SyncOrder, Verdict

__all__ = [
    "TIMEOUT_S",
    "Comparison",
    "Example",
    "Report",
    "RuleProof",
    "Status",
    "SyncOrder",
    "Verdict",
    "always",
    "compare",
    "equivalent",
    "monotone",
    "prove",
]

TIMEOUT_S = 2.0  # for each question; a policy is asked one for each rule and each assert


def prove(policy: Policy, *, monotone: bool = False, timeout_s: float = TIMEOUT_S) -> Report:
    """Whether every rule can decide something and every `assert` holds; with `monotone`, whether that holds too.

    Raises:
        Refused: z3 is not installed.
    """
    from kvmove.kvpol.proof.report import prove_policy

    return prove_policy(policy, monotone, timeout_s)


def always(policy: Policy, claim: str, *, timeout_s: float = TIMEOUT_S) -> Verdict:
    """Whether `claim`, written as after `assert`, holds of every decision; it can name lets and params of the policy.

    Raises:
        PolicyError: the claim has a mistake.
        Refused: z3 is not installed.
    """
    from kvmove.kvpol.proof.claims import prove_always

    return prove_always(policy, claim, timeout_s)


def monotone(policy: Policy, *, timeout_s: float = TIMEOUT_S) -> Verdict:
    """Whether a smaller hit is loaded inside the step wherever a larger one is.

    Of two hits in one step, the smaller has no more bytes, blocks, tokens and load_time; `prompt_tokens`, which
    is a sum, differs by the tokens, and all else is equal.

    Raises:
        Refused: z3 is not installed.
    """
    from kvmove.kvpol.proof.claims import prove_monotone

    return prove_monotone(policy, timeout_s)


def equivalent(first: Policy, second: Policy, where: str | None = None, *, timeout_s: float = TIMEOUT_S) -> Verdict:
    """Whether two policies ask for the same action and the same blocks, for every hit and step with `where`.

    Raises:
        PolicyError: the condition `where` has a mistake.
        Refused: z3 is not installed.
    """
    from kvmove.kvpol.proof.difference import prove_equivalent

    return prove_equivalent(first, second, where, timeout_s)


def compare(first: Policy, second: Policy, where: str | None = None, *, timeout_s: float = TIMEOUT_S) -> Comparison:
    """How two policies differ, and which of them loads more hits inside the step.

    Raises:
        PolicyError: the condition `where` has a mistake.
        Refused: z3 is not installed.
    """
    from kvmove.kvpol.proof.difference import compare_policies

    return compare_policies(first, second, where, timeout_s)
