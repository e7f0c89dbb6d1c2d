"""A policy that answers what a test says, and hits of a round size: for tests of what asks a policy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kvmove.records import Action, Hit

MIB = 1 << 20
ORDER = (Action.SYNC, Action.ASYNC, Action.RECOMPUTE, Action.DEFER)


@dataclass(frozen=True, slots=True)
class ScriptedRule:
    """A rule that only has an action."""

    action: Action


class ScriptedPolicy:
    """A policy with one rule for each of `ORDER`, whose answers are a test's.

    Args:
        answer: an action; any raw verdict, valid or not; or a function of the hit and the step that gives one of
            these, or raises.
        budget_bytes: what the policy names as the step's budget.
        policy_hash: what its decisions carry.

    Attributes:
        calls: how often it was asked.
    """

    def __init__(
        self, answer: Callable[[Hit, Any], Any] | Any, *, budget_bytes: Any = None, policy_hash: str = "scripted"
    ) -> None:
        self.answer = answer
        self.name = "scripted"
        self.hash = policy_hash
        self.budget_bytes = budget_bytes
        self.rules: tuple[Any, ...] = tuple(ScriptedRule(action) for action in ORDER)
        self.calls = 0

    def decide(self, hit: Hit, step: Any) -> Any:
        """Answer with the rule of an action, or with the raw verdict."""
        self.calls += 1
        answer = self.answer(hit, step) if callable(self.answer) else self.answer
        return ORDER.index(answer) if isinstance(answer, Action) else answer


def hit_of(request: str = "r", mib: int = 1, *, blocks: int = 2, compute: int = 8, **fields: Any) -> Hit:
    """A hit of `mib` MiB in `blocks` equal blocks, of 1024 tokens a MiB, with `compute` tokens after it."""
    tokens = mib * 1024
    return Hit(
        request=request,
        bytes=mib * MIB,
        tokens=tokens,
        blocks=blocks,
        prompt_tokens=tokens + compute,
        cached_tokens=0,
        compute_tokens=compute,
        **fields,
    )
