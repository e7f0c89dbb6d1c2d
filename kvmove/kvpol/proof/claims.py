"""What holds of every decision: asserts, and that a smaller hit fares no worse."""

from __future__ import annotations

from dataclasses import replace

from kvmove.errors import InternalError
from kvmove.kvpol import tree
from kvmove.kvpol.analyse import Analysis
from kvmove.kvpol.policy import Policy
from kvmove.kvpol.proof.added import with_claim
from kvmove.kvpol.proof.confirm import assert_holds, outcome
from kvmove.kvpol.proof.results import Status, Verdict
from kvmove.kvpol.proof.search import Answer, Examples, Search
from kvmove.kvpol.proof.session import Term
from kvmove.kvpol.proof.worlds import GROWS, World, one_hit, smaller_and_larger
from kvmove.records import Action

SYNC = frozenset({Action.SYNC})
MONOTONE = "where a larger hit is sync, a smaller one is too"


def verdict(claim: str, counterexample: Answer) -> Verdict:
    """What follows for a claim from a search for hits and steps for which it does not hold."""
    status = {True: Status.FALSE, False: Status.PROVED, None: Status.UNKNOWN}[counterexample.exists]
    return Verdict(claim, status, counterexample.examples, counterexample.reason, counterexample.seconds)


def prove_assert(search: Search, analysis: Analysis, index: int) -> Verdict:
    """Whether assert number `index` holds of every decision; `search` is about the policy's program."""
    statements = [s for s in analysis.file.statements if isinstance(s, tree.Assert)]
    statement, claim = statements[index], analysis.usable().asserts[index]

    def broken(world: World) -> Term:
        return world.session.opposite(world.models[0].holds(claim))

    def confirmed(examples: Examples) -> bool:
        return not assert_holds(analysis, statement, examples[0])

    text = analysis.source.slice(statement.span).removeprefix("assert").strip()
    return verdict(text, search.find(broken, confirmed))


def prove_always(policy: Policy, claim: str, timeout_s: float) -> Verdict:
    """See `kvmove.kvpol.proof.always`."""
    analysis, _ = with_claim(policy, claim)
    search = Search(one_hit(analysis.usable()), timeout_s)
    found = prove_assert(search, analysis, len(analysis.usable().asserts) - 1)
    return replace(found, claim=claim)


def prove_monotone(policy: Policy, timeout_s: float) -> Verdict:
    """See `kvmove.kvpol.proof.monotone`."""

    def broken(world: World) -> Term:
        small, large = world.models
        return world.session.all_of([large.asks(SYNC), world.session.opposite(small.asks(SYNC))])

    def confirmed(examples: Examples) -> bool:
        small, large = examples
        for v in GROWS:
            attribute = "load_time_ns" if v == "load_time" else v
            less, more = getattr(small.hit, attribute), getattr(large.hit, attribute)
            if (less is None) != (more is None) or (less is not None and less > more):
                raise InternalError(f"the smaller hit is not smaller: {examples}")
        return outcome(policy, large).action is Action.SYNC and outcome(policy, small).action is not Action.SYNC

    return verdict(MONOTONE, Search(smaller_and_larger(policy.program), timeout_s).find(broken, confirmed))
