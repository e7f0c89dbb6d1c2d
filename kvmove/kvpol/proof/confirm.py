"""Runs what the solver found through the tree evaluator, which knows nothing of the solver."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from kvmove.kvpol import tree
from kvmove.kvpol.analyse import Analysis
from kvmove.kvpol.evaluate import Evaluator, Situation
from kvmove.kvpol.policy import Policy
from kvmove.kvpol.proof.results import Example
from kvmove.records import Action

LOADS = (Action.SYNC, Action.ASYNC)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a policy asks for, before any guard rail.

    Attributes:
        rule: index of the rule that decides.
        blocks: leading blocks to load; 0 for `recompute` and `defer`.
        bytes: what they move to one GPU, in bytes.
        tokens: what they cover.
    """

    rule: int
    action: Action
    blocks: int
    bytes: int
    tokens: int


def outcome(policy: Policy, example: Example) -> Outcome:
    """What `policy` asks for, by the evaluator."""
    return outcome_of(policy.analysis, example)


def outcome_of(analysis: Analysis, example: Example) -> Outcome:
    """What the checked policy asks for, by the evaluator."""
    program, hit = analysis.usable(), example.hit
    verdict = Evaluator(analysis.file, program.params).verdict(hit, example.step)
    rule = verdict & 0xFF
    action = program.rules[rule].action if rule < len(program.rules) else Action.ASYNC
    if action not in LOADS:
        return Outcome(rule, action, 0, 0, 0)
    blocks = verdict >> 8 or hit.blocks
    return Outcome(rule, action, blocks, hit.prefix_bytes(blocks), hit.prefix_tokens(blocks))


def assert_holds(analysis: Analysis, statement: tree.Assert, example: Example) -> bool:
    """Whether an assert of the policy holds, by the evaluator."""
    decided = outcome_of(analysis, example)
    here = Situation.of(analysis.file, analysis.usable().params, example.hit, example.step)
    here.amounts["load_bytes"] = Fraction(decided.bytes)
    here.amounts["load_tokens"] = Fraction(decided.tokens)

    def holds(claim: tree.Claim) -> bool:
        if isinstance(claim, tree.Outcome):
            return (decided.action in claim.actions) != claim.negated
        return here.holds(claim)

    is_claimed = statement.premise is None or holds(statement.premise)
    return not is_claimed or holds(statement.conclusion)


def condition_holds(analysis: Analysis, example: Example) -> bool:
    """Whether the first rule of the checked policy matches."""
    return outcome_of(analysis, example).rule == 0
