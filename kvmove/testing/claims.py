"""A claim about a policy's decisions, written as after `assert`, and whether it holds of one of them."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from kvmove.kvpol import tree
from kvmove.kvpol.evaluate import Situation
from kvmove.kvpol.proof.added import condition, with_claim
from kvmove.records import Action, Hit, StepState

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvmove.kvpol.policy import Policy


@dataclass(frozen=True, slots=True)
class Asked:
    """What a policy asks for, before any guard rail.

    Attributes:
        rule: the index of the rule that decides; `label` is its label, if it has one.
        blocks: leading blocks to load; 0 unless the action is sync or async.
        bytes: what these weigh on one GPU; `tokens` is what they cover.
    """

    action: Action
    rule: int
    label: str | None
    blocks: int
    tokens: int
    bytes: int


def ask(policy: Policy, hit: Hit, step: StepState) -> Asked:
    """What `policy` asks for."""
    verdict = policy.decide(hit, step)
    rule = policy.rules[verdict & 0xFF]
    blocks = verdict >> 8 or hit.blocks
    if rule.action not in (Action.SYNC, Action.ASYNC):
        return Asked(rule.action, rule.index, rule.label, 0, 0, 0)
    return Asked(rule.action, rule.index, rule.label, blocks, hit.prefix_tokens(blocks), hit.prefix_bytes(blocks))


@dataclass(frozen=True, slots=True)
class WrittenClaim:
    """A claim, which can name the lets and params of its policy."""

    file: tree.File
    params: Mapping[str, Fraction | bool]
    premise: tree.Claim | None
    conclusion: tree.Claim

    @classmethod
    def of(cls, policy: Policy, text: str) -> WrittenClaim:
        """Read a claim.

        Raises:
            PolicyError: it has a mistake, or is more than one claim.
        """
        analysis, statement = with_claim(policy, text)
        return cls(analysis.file, policy.program.params, statement.premise, statement.conclusion)

    @classmethod
    def condition(cls, text: str) -> WrittenClaim:
        """Read a condition on hits and steps.

        Raises:
            PolicyError: it has a mistake, or is more than one condition.
        """
        file = condition(text).file
        rule = next(file.rules)
        assert rule.condition is not None
        return cls(file, {}, None, rule.condition)

    @property
    def expressions(self) -> tuple[tree.Expr, ...]:
        """The conditions that it is made of."""
        parts = (self.premise, self.conclusion)
        return tuple(p for p in parts if p is not None and not isinstance(p, tree.Outcome))

    def holds(self, hit: Hit, step: StepState, asked: Asked | None) -> bool:
        """Whether it holds of what was asked for; without `asked` it is a condition on the hit and step alone."""
        here = Situation.of(self.file, self.params, hit, step)
        here.amounts["load_bytes"] = Fraction(asked.bytes if asked else 0)
        here.amounts["load_tokens"] = Fraction(asked.tokens if asked else 0)
        if self.premise is not None and not _part_holds(self.premise, here, asked):
            return True
        return _part_holds(self.conclusion, here, asked)


def _part_holds(part: tree.Claim, here: Situation, asked: Asked | None) -> bool:
    if isinstance(part, tree.Outcome):
        return asked is not None and (asked.action in part.actions) != part.negated
    return here.holds(part)
