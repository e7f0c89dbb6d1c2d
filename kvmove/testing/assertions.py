"""Assertions about a policy for every hit and step: proved where z3 can, else searched for with hypothesis.

What is asserted is what the policy asks for; what the scheduler's guard rails would make of it is not.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from inspect import signature
from typing import TYPE_CHECKING, Any, Literal

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from kvmove import schema
from kvmove.errors import Refused
from kvmove.kvpol.policy import Policy
from kvmove.records import Action, Hit, StepState
from kvmove.testing.claims import Asked, WrittenClaim, ask
from kvmove.testing.counterexample import explain
from kvmove.testing.edges import Edges, edges_of
from kvmove.testing.records import Situation, hit_from, situations_at
from kvmove.testing.simplify import simplified

if TYPE_CHECKING:
    from kvmove.kvpol.proof.results import Example, Verdict

Method = Literal["auto", "prove", "search"]
Property = Callable[[Hit, StepState, Asked], object]

MAX_EXAMPLES = 1000  # of a search; about two seconds


def assert_always(
    policy: Policy,
    property: str | Property,
    method: Method = "auto",
    *,
    max_examples: int = MAX_EXAMPLES,
) -> None:
    """Assert that `property` holds for every hit and step.

    Args:
        policy: what decides.
        property: a claim as after `assert` (`"sync implies bytes <= 1MiB"`), which can name params and lets of the
            policy; or a function of hit, step and what was asked for (`Asked`), which returns False or raises
            AssertionError where the property does not hold.
        method: `prove` asks z3 (extra `prove`) and fails unless the claim is proved; `search` tries `max_examples`
            drawn situations; `auto` proves a claim where it can, and else searches.
        max_examples: how many situations a search tries.

    Raises:
        AssertionError: it does not hold; the message has a hit and a step that show it.
        PolicyError: the claim has a mistake.
        Refused: `prove` of a function, or without z3.
    """
    if isinstance(property, str):
        claim = WrittenClaim.of(policy, property)
        said = f"`{property}` does not hold of every decision of policy `{policy.name}`"
        if _proved(method, lambda: _proof().always(policy, property), said, (policy,)):
            return
        edges = edges_of(policy, claims=claim.expressions)
        _search(
            situations_at(edges), lambda x: claim.holds(x.hit, x.step, ask(policy, *x)), said, (policy,), max_examples,
            edges,
        )  # fmt: skip
        return
    if method == "prove":
        raise Refused("a function cannot be proved; write the claim as text, or use method='search'")
    name = getattr(property, "__name__", "the property")
    said = f"`{name}` does not hold of every decision of policy `{policy.name}`"
    edges = edges_of(policy)
    _search(situations_at(edges), _calls(property, policy), said, (policy,), max_examples, edges)


def assert_budget_respected(policy: Policy, method: Method = "auto", *, max_examples: int = MAX_EXAMPLES) -> None:
    """Assert that the policy never asks to load more inside the step than is left of the budget.

    The scheduler would load such a hit in the background (guard rail 1); this is about not relying on it.

    Raises:
        AssertionError: it does; the message has a hit and a step.
        Refused: `prove` without z3.
    """
    assert_always(policy, "sync implies load_bytes <= budget_remaining", method, max_examples=max_examples)


def assert_monotone(policy: Policy, method: Method = "auto", *, max_examples: int = MAX_EXAMPLES) -> None:
    """Assert that a smaller hit is loaded inside the step wherever a larger one is.

    Of two hits in one step, the smaller has no more bytes, blocks, tokens and load_time, and all else is equal but
    `prompt_tokens`, which is a sum.

    Raises:
        AssertionError: it is not; the message has the smaller hit, then the larger one.
        Refused: `prove` without z3.
    """
    said = f"policy `{policy.name}` is not monotone: the larger hit is sync, the smaller one is not"
    if _proved(method, lambda: _proof().monotone(policy), said, (policy,)):
        return
    edges = edges_of(policy)
    pairs = st.tuples(situations_at(edges), _PER_MILLE, _PER_MILLE, _PER_MILLE).map(_pair)

    def holds(pair: tuple[Situation, Situation]) -> bool:
        small, large = pair
        return ask(policy, *large).action is not Action.SYNC or ask(policy, *small).action is Action.SYNC

    _search(pairs, holds, said, (policy,), max_examples, edges)


def assert_equivalent(
    first: Policy,
    second: Policy,
    where: str | None = None,
    method: Method = "auto",
    *,
    max_examples: int = MAX_EXAMPLES,
) -> None:
    """Assert that two policies ask for the same action and the same blocks, for every hit and step with `where`.

    Args:
        first: one policy.
        second: the other.
        where: a condition on hits and steps (`"bytes > 1MiB"`); None: everywhere.
        method: as for `assert_always`.
        max_examples: how many situations a search tries.

    Raises:
        AssertionError: they do not; the message has a hit, a step, and what each asks for.
        PolicyError: the condition has a mistake.
        Refused: `prove` without z3.
    """
    condition = None if where is None else WrittenClaim.condition(where)
    said = f"policies `{first.name}` and `{second.name}` are not equivalent" + (f" where `{where}`" if where else "")
    if _proved(method, lambda: _proof().equivalent(first, second, where), said, (first, second)):
        return

    def holds(x: Situation) -> bool:
        if condition is not None and not condition.holds(x.hit, x.step, None):
            return True
        a, b = ask(first, *x), ask(second, *x)
        return (a.action, a.blocks) == (b.action, b.blocks)

    claims = () if condition is None else condition.expressions
    edges = edges_of(first, second, claims=claims)
    _search(situations_at(edges), holds, said, (first, second), max_examples, edges)


_PER_MILLE = st.integers(0, 1000)


def _pair(drawn: tuple[Situation, int, int, int]) -> tuple[Situation, Situation]:
    """A situation and one with a smaller hit: each of three sizes is what it was, less so many thousandths."""
    (hit, step), tokens_less, bytes_less, time_less = drawn
    tokens = max(1, hit.tokens - hit.tokens * tokens_less // 1000)
    values: dict[str, Any] = {v.name: getattr(hit, v.attribute) for v in schema.HIT}
    values["tokens"] = tokens
    values["blocks"] = max(1, hit.blocks - hit.blocks * tokens_less // 1000)
    values["bytes"] = max(1, hit.bytes - hit.bytes * bytes_less // 1000)
    if hit.load_time_ns is not None:
        values["load_time"] = hit.load_time_ns - hit.load_time_ns * time_less // 1000
    small = hit_from(values, {"tokens"}, schema.MAX_BYTES, schema.MAX_COUNT)
    return Situation(small, step), Situation(hit, step)


def _calls(property: Property, policy: Policy) -> Callable[[Situation], bool]:
    if len(signature(property).parameters) != 3:
        raise Refused("a property is a function of three arguments: hit, step, and what was asked for")

    def holds(x: Situation) -> bool:
        return property(x.hit, x.step, ask(policy, *x)) is not False

    return holds


def _proof() -> Any:
    from kvmove.kvpol import proof

    return proof


def _proved(method: Method, question: Callable[[], Verdict], said: str, policies: tuple[Policy, ...]) -> bool:
    """Whether it is proved; False where it has to be searched for.

    Raises:
        AssertionError: it is false, or `method` wants a proof and there is none.
    """
    if method not in ("auto", "prove", "search"):
        raise Refused(f"method is {method!r}; `auto`, `prove` or `search` is needed")
    if method == "search" or (method == "auto" and find_spec("z3") is None):
        return False
    from kvmove.kvpol.proof.results import Status

    verdict = question()
    if verdict.status is Status.PROVED:
        return True
    if verdict.status is Status.FALSE:
        examples: tuple[Example, ...] = verdict.examples
        raise AssertionError(explain(said, policies, [(e.hit, e.step) for e in examples], "found by z3"))
    if method == "prove":
        raise AssertionError(f"{said.partition(' does not hold')[0]}: not proved: {verdict.reason}")
    return False


def _search(
    strategy: st.SearchStrategy[Situation] | st.SearchStrategy[tuple[Situation, Situation]],
    holds: Callable[[Any], bool],
    said: str,
    policies: tuple[Policy, ...],
    max_examples: int,
    edges: Edges,
) -> None:
    """Look for something drawn from `strategy` that does not hold.

    Hypothesis shrinks it, and only then is the message made: the last failing example is the smallest.
    """
    failing: list[Any] = []

    def complaint(drawn: Any) -> str | None:
        """What is wrong with it; None where it holds."""
        try:
            return None if holds(drawn) else ""
        except AssertionError as e:
            return str(e)

    # No database and no printing: the same examples every time, and one message.
    @settings(
        max_examples=max_examples, deadline=None, database=None, derandomize=True, print_blob=False,
        phases=[Phase.generate, Phase.shrink], suppress_health_check=list(HealthCheck), report_multiple_bugs=False,
    )  # fmt: skip
    @given(strategy)
    def check(drawn: Any) -> None:
        if complaint(drawn) is not None:
            failing[:] = [drawn]
            raise _Broken

    try:
        check()
        return
    except _Broken:
        (drawn,) = failing
    is_one = isinstance(drawn, Situation)

    def whole(situations: list[Situation]) -> Any:
        return situations[0] if is_one else tuple(situations)

    shown = simplified([drawn] if is_one else list(drawn), lambda found: complaint(whole(found)) is not None, edges)
    message = explain(said, policies, shown, f"found among at most {max_examples} drawn situations")
    raised = complaint(whole(shown))
    raise AssertionError(f"{message}\n\n  {raised}" if raised else message)


class _Broken(Exception):
    """The property does not hold of what was drawn."""
