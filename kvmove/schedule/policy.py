"""What the scheduler asks of a policy, and how it protects itself from the answer."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Protocol

from kvmove import schema
from kvmove.errors import InternalError, Refused
from kvmove.records import Action, Hit

_log = logging.getLogger(__name__)

MAX_RULES = 256  # a verdict keeps its rule in eight bits


class HitRule(Protocol):
    """One rule of a policy."""

    @property
    def action(self) -> Action:
        """What the rule asks for when it matches."""


class HitPolicy(Protocol):
    """Anything that can say what a hit should do in this step."""

    @property
    def name(self) -> str:
        """What people call the policy; it appears in log lines."""

    @property
    def hash(self) -> str:
        """Identifies the policy's text and parameters; every decision carries it."""

    @property
    def budget_bytes(self) -> int | None:
        """Bytes that a step may load inside itself, or None where the policy names no budget."""

    @property
    def rules(self) -> Sequence[HitRule]:
        """The rules in order, the implicit last one included; a verdict holds an index into them."""

    # `step` is Any because the scheduler passes its ledger, which has the attributes of a StepState without
    # being one: a record a hit would cost more than the decision.
    def decide(self, hit: Hit, step: Any) -> int:
        """Return `(blocks << 8) | rule`; 0 blocks stands for the whole hit."""


class BoundPolicy:
    """A policy with what is needed for every hit looked up once.

    Raises:
        Refused: this is no policy, or it has no rules or too many, a rule without an action, or a budget out of
            range.
    """

    __slots__ = ("_decide", "_failure_reported", "_name", "actions", "budget_bytes", "hash")

    def __init__(self, policy: HitPolicy) -> None:
        for part in ("name", "hash", "budget_bytes", "rules", "decide"):
            if not hasattr(policy, part):
                raise Refused(f"{policy!r} is no policy, it has no `{part}`; pass what kvmove.Policy.load() returns")
        self._name = policy.name
        self.hash = policy.hash
        self.budget_bytes = checked_budget(policy.budget_bytes, f"policy `{policy.name}`: budget_bytes")
        self.actions = tuple(rule.action for rule in policy.rules)
        self._failure_reported = False
        self._decide = policy.decide
        if not 1 <= len(self.actions) <= MAX_RULES:
            raise Refused(f"policy `{policy.name}` has {len(self.actions)} rules; 1 to {MAX_RULES} are needed")
        for index, action in enumerate(self.actions):
            if not isinstance(action, Action):
                raise Refused(f"policy `{policy.name}`: rule {index} has the action {action!r}, which is no Action")

    def matching_rule(self, hit: Hit, step: Any) -> int:
        """Return the index of the rule that matches.

        Raises:
            InternalError: the verdict names no rule, or only some leading blocks of the hit.
            Exception: whatever the policy raises.
        """
        verdict = self._decide(hit, step)
        # One comparison covers both halves: leading blocks, or a negative number, leave the range as well.
        if type(verdict) is int and 0 <= verdict < len(self.actions):
            return verdict
        raise InternalError(self._why_invalid(verdict, hit))

    def report_failure(self, hit: Hit, error: Exception) -> None:
        """Write a failure to the log, the first time only: a policy that fails in every step would fill it."""
        if self._failure_reported:
            return
        self._failure_reported = True
        _log.error(
            "policy `%s` (%s) failed on %r; hits load asynchronously for the rest of every step in which it fails. "
            "This is a bug of kvmove, please report it",
            self._name,
            self.hash,
            hit,
            exc_info=error,
        )

    def _why_invalid(self, verdict: object, hit: Hit) -> str:
        start = f"policy `{self._name}` returned {verdict!r} for the hit of {hit.request}"
        if type(verdict) is not int or verdict < 0:
            return f"{start}; an int of at least 0 is needed"
        if verdict & 0xFF >= len(self.actions):
            return f"{start}: rule {verdict & 0xFF} of {len(self.actions)}"
        return f"{start}: {verdict >> 8} leading blocks, but only whole hits can be loaded"


def checked_budget(budget_bytes: int | None, name: str) -> int | None:
    """Return the budget, or raise `Refused` where it is neither None nor a number of bytes in range."""
    if budget_bytes is None or (type(budget_bytes) is int and 0 <= budget_bytes <= schema.MAX_BYTES):
        return budget_bytes
    raise Refused(f"{name} is {budget_bytes!r}; None or an int in [0, {schema.MAX_BYTES}] is needed (0 turns sync off)")
