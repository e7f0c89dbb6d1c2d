"""What the scheduler asks of a policy, and how it protects itself from the answer."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from kvmove import schema
from kvmove.errors import InternalError, Refused
from kvmove.records import Action, Hit

_log = logging.getLogger(__name__)

MAX_RULES = 256  # a verdict keeps its rule in eight bits


_DecideBatch = Callable[[Sequence[Hit], Any, Callable[[Hit, int], object]], None]
_Explain = Callable[[Hit, Any], "tuple[int, Sequence[str]]"]


class HitRule(Protocol):
    """One rule of a policy."""

    @property
    def action(self) -> Action:
        """What the rule asks for when it matches."""


class HitPolicy(Protocol):
    """Anything that can say what a hit should do in this step.

    Two more methods are used where a policy has them, as `kvmove.Policy` does: `decide_batch(hits, step, admit)`,
    which decides many hits with less work, and `explain(hit, step)`, which says why a rule did not match.
    """

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

    __slots__ = ("_decide", "_decide_batch", "_failure_reported", "_name", "actions", "budget_bytes", "explain", "hash")

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
        self._decide_batch: _DecideBatch | None = getattr(policy, "decide_batch", None)
        self.explain: _Explain | None = getattr(policy, "explain", None)
        if not 1 <= len(self.actions) <= MAX_RULES:
            raise Refused(f"policy `{policy.name}` has {len(self.actions)} rules; 1 to {MAX_RULES} are needed")
        for index, action in enumerate(self.actions):
            if not isinstance(action, Action):
                raise Refused(f"policy `{policy.name}`: rule {index} has the action {action!r}, which is no Action")

    def verdict(self, hit: Hit, step: Any) -> int:
        """Return `(blocks << 8) | rule`: the rule that matches, and how many leading blocks; 0 blocks are all of them.

        Raises:
            InternalError: the verdict is none for this hit.
            Exception: whatever the policy raises.
        """
        return self.checked(self._decide(hit, step), hit)

    def checked(self, verdict: int, hit: Hit) -> int:
        """Return the verdict, or raise `InternalError` where it is none for this hit."""
        # One comparison covers nearly every verdict: leading blocks, or a negative number, leave the range.
        if type(verdict) is int and 0 <= verdict < len(self.actions):
            return verdict
        problem = self._problem_with(verdict, hit)
        if problem is None:
            return verdict
        raise InternalError(f"policy `{self._name}` returned {verdict!r} for the hit of {hit.request}{problem}")

    def decide_each(self, hits: Sequence[Hit], step: Any, admit: Callable[[Hit, int], object]) -> None:
        """Call `admit(hit, verdict)` for each hit in order, before the next one is decided; verdicts are unchecked.

        Raises:
            Exception: whatever the policy or `admit` raises.
        """
        if self._decide_batch is not None:
            self._decide_batch(hits, step, admit)
            return
        for hit in hits:
            admit(hit, self._decide(hit, step))

    def report_failure(self, hit: Hit, error: Exception, effect: str) -> None:
        """Write a failure to the log, the first time only: a policy that fails in every step would fill it."""
        if self._failure_reported:
            return
        self._failure_reported = True
        _log.error(
            "policy `%s` (%s) failed on %r; %s in which it fails. This is a bug of kvmove, please report it",
            self._name,
            self.hash,
            hit,
            effect,
            exc_info=error,
        )

    def _problem_with(self, verdict: object, hit: Hit) -> str | None:
        if type(verdict) is not int or verdict < 0:
            return "; an int of at least 0 is needed"
        rule, blocks = verdict & 0xFF, verdict >> 8
        if rule >= len(self.actions):
            return f": rule {rule} of {len(self.actions)}"
        if blocks > hit.blocks:
            return f": {blocks} leading blocks of {hit.blocks}"
        if self.actions[rule] not in (Action.SYNC, Action.ASYNC):
            return f": {blocks} leading blocks to {self.actions[rule]}"
        if hit.cuts is not None and blocks != hit.blocks and blocks not in hit.cuts:
            return f": the hit cannot be cut after {blocks} blocks, only after {hit.cuts}"
        return None


def checked_budget(budget_bytes: int | None, name: str) -> int | None:
    """Return the budget, or raise `Refused` where it is neither None nor a number of bytes in range."""
    if budget_bytes is None or (type(budget_bytes) is int and 0 <= budget_bytes <= schema.MAX_BYTES):
        return budget_bytes
    raise Refused(f"{name} is {budget_bytes!r}; None or an int in [0, {schema.MAX_BYTES}] is needed (0 turns sync off)")
