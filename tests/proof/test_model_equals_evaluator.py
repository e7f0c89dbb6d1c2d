"""The solver's model of a policy decides what the evaluator and the compiled function decide.

The model is asked by substitution: every unknown is replaced by its value, and what is left is simplified to a
constant. That costs no search, so thousands of cases are quick.
"""

from __future__ import annotations

from itertools import product
from random import Random
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kvmove import Action, BlockSizes, GroupBytes, Hit, Policy, StepState
from kvmove.kvpol import tree
from kvmove.kvpol.evaluate import Evaluator
from kvmove.kvpol.proof.confirm import assert_holds, outcome
from kvmove.kvpol.proof.inputs import READABLE, Inputs
from kvmove.kvpol.proof.results import Example
from kvmove.kvpol.proof.session import Session
from kvmove.kvpol.proof.worlds import World, one_hit
from kvmove.kvpol.trace import trace
from kvmove.schema import Scope
from kvmove.testing import hits, policies, steps
from kvmove.testing.corpus import drawn_policies, random_hit, random_step
from kvmove.testing.edges import edges_of

z3 = pytest.importorskip("z3")

Situations = list[tuple[Hit, StepState]]
CUT = Hit(
    request="r", bytes=7 << 20, tokens=100, blocks=7, prompt_tokens=130, cached_tokens=6, compute_tokens=24
)  # fmt: skip
STEP = StepState(budget_bytes=1 << 26, budget_remaining_bytes=3 << 20)
WINDOWED = Hit(
    request="w", bytes=4 * 1000 + 2 * 300, tokens=64, blocks=4, prompt_tokens=64, cached_tokens=0, compute_tokens=0,
    sizes=BlockSizes(16, (GroupBytes(1000), GroupBytes(300, window_bytes=600))), cuts=(2, 3),
)  # fmt: skip


def substituted(world: World, hit: Hit, step: StepState) -> list[tuple[Any, Any]]:
    """Each unknown input of a world with its value."""
    (inputs,), session = world.inputs, world.session
    pairs = []
    for v in READABLE:
        value = getattr(hit if v.scope is Scope.HIT else step, v.attribute)
        # Of an unknown estimate nothing may depend on the value, so any will do.
        pairs.append((inputs.values[v.name], session.number(v.high if value is None else value)))
        if v.optional:
            pairs.append((inputs.known[v.name], session.truth(value is not None)))
    return pairs


def cuts(world: World, policy: Policy, hit: Hit, step: StepState) -> list[tuple[Any, Any]]:
    """Each unknown about where the hit is cut, with its value."""
    (prefixes,), number = world.prefixes, world.session.number
    if not prefixes.any:
        return [(prefixes.can_cut, world.session.truth(False))]
    first = hit.cuts[0] if hit.cuts else 1
    can_cut = hit.blocks > 1 and hit.cuts != ()
    pairs = [(prefixes.can_cut, world.session.truth(can_cut))]
    taken = [(prefixes.first, first if can_cut else 1)]
    limited = [r for r in trace(policy, hit, step).rules if r.limit is not None]
    # What a rule takes that does not match, or takes all, is the whole hit.
    taken += [
        (c.prefix, r.blocks if r.matches and r.blocks else hit.blocks)
        for c, r in zip(prefixes.cuts, limited, strict=True)
    ]
    for prefix, blocks in taken:
        values = blocks, hit.prefix_bytes(blocks), hit.prefix_tokens(blocks)
        for term, value in zip((prefix.blocks, prefix.bytes, prefix.tokens), values, strict=True):
            pairs.append((term, number(value)))
    return pairs


def truth(term: Any, pairs: list[tuple[Any, Any]]) -> bool:
    return is_true(z3.simplify(z3.substitute(term, *pairs)))


def is_true(result: Any) -> bool:
    assert z3.is_true(result) or z3.is_false(result), result
    return bool(z3.is_true(result))


def together(terms: list[Any]) -> Any:
    """One term that holds `terms`, so that they are substituted at once."""
    context = terms[0].ctx
    return z3.Function("all", *(t.sort() for t in terms), z3.BoolSort(context))(*terms)


def check(policy: Policy, situations: Situations) -> None:
    """Compare four ways to decide."""
    world = one_hit(policy.program)(Session())
    (model,), session = world.models, world.session
    rule = session.number(-1)
    for i, fires in enumerate(model.fires):
        rule = session.choice(fires, session.number(i), rule)
    loaded = model.loaded
    claims = [model.holds(claim) for claim in policy.program.asserts]
    certain = [*world.facts, *world.asked(lambda w: w.models[0].loaded.bytes >= 0)[1:]]
    whole = together([session.all_of(certain), rule, loaded.blocks, loaded.bytes, loaded.tokens, *claims])
    statements = [s for s in policy.analysis.file.statements if isinstance(s, tree.Assert)]
    evaluator = Evaluator(policy.analysis.file, policy.program.params)
    verdicts = []
    for hit, step in situations:
        expected = evaluator.verdict(hit, step)
        verdicts.append(expected)
        assert policy.decide(hit, step) == expected
        pairs = substituted(world, hit, step) + cuts(world, policy, hit, step)
        certain, got_rule, *sizes = z3.simplify(z3.substitute(whole, *pairs)).children()
        assert is_true(certain), "what is taken to be certain does not hold of this hit"
        assert got_rule.as_long() == expected & 0xFF
        decided = outcome(policy, Example(hit, step))
        assert [x.as_long() for x in sizes[:3]] == [decided.blocks, decided.bytes, decided.tokens]
        for statement, claim in zip(statements, sizes[3:], strict=True):
            assert is_true(claim) == assert_holds(policy.analysis, statement, Example(hit, step))
    check_batch(policy, situations, verdicts)


def check_batch(policy: Policy, situations: Situations, expected: list[int]) -> None:
    """A batch decides what single decisions do. Its hits are in one step, so here each is a batch of its own."""
    told: list[int] = []
    for hit, step in situations:
        policy.decide_batch([hit], step, lambda _, verdict: told.append(verdict))
    assert told == expected


@settings(max_examples=55)
@given(
    policies(),
    # Every hit in every step: 48 cases a policy, of which 16 records are drawn.
    st.tuples(st.lists(hits(), min_size=12, max_size=12), st.lists(steps(), min_size=4, max_size=4)).map(
        lambda drawn: list(product(*drawn))
    ),
)
@example("sync at most 2KB\nasync at most 33tok\ndefer", [(CUT, STEP), (WINDOWED, STEP)])
@example(
    "sync at most budget_remaining\nasync at most 0.75 * bytes\nassert load_tokens < 60tok",
    [(CUT, STEP), (WINDOWED, STEP)],
)
@example(
    "sync at most bytes * (load_time / 1s)\nasync at most -bytes\nassert sync implies load_bytes < 9B", [(CUT, STEP)]
)
@example("let late = load_time > 3ns\nsync if not late\ndefer if late or not known(step_time)", [(CUT, STEP)])
@example("sync if -bytes / -blocks >= 262144B\nassert not async implies bytes / tokens < 9B / 2tok", [(CUT, STEP)])
def test_four_implementations_agree(text: str, situations: Situations) -> None:
    """Evaluator, compiled function, compiled batch and model give the same rule and blocks, and judge asserts alike."""
    check(Policy.parse(text), situations)


def test_four_implementations_agree_on_hits_that_are_cut() -> None:
    """Policies with an `at most`, and hits of blocks of stated sizes, with windows, and cuts at some blocks only."""
    limited = [p for p in drawn_policies() if any(rule.limit for rule in p.program.rules)]
    assert len(limited) > 20
    for index, policy in enumerate(limited[:40]):
        rng, edges = Random(index), edges_of(policy)
        drawn = [random_hit(rng, edges) for _ in range(24)]
        check(policy, [(hit, random_step(rng, edges, beside=[hit])) for hit in drawn])


def test_what_is_given_of_two_hits_is_of_two_hits() -> None:
    """The larger of two hits shares what does not grow with the smaller one, and nothing else."""
    session = Session()
    small = Inputs(session)
    large = Inputs(session, " of the larger", like=small, apart=("bytes", "prompt_tokens"))
    shared = [v.name for v in READABLE if small.values[v.name] is large.values[v.name]]
    assert {v.name for v in READABLE} - set(shared) == {"bytes", "prompt_tokens"}
    assert small.known == large.known


def test_every_action_is_asked_for_by_the_rules_that_decide() -> None:
    """`asks` is true for exactly one action, whatever the hit."""
    world = one_hit(Policy.parse("sync if bytes < 9B\nrecompute if tokens < 9tok\ndefer if waiting > 3").program)(
        Session()
    )
    (model,) = world.models
    for hit, step in ((CUT, STEP), (WINDOWED, STEP)):
        pairs = substituted(world, hit, step)
        assert [truth(model.asks(frozenset({a})), pairs) for a in Action] == [False, True, False, False]
