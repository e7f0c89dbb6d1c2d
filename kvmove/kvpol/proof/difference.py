"""How two policies differ."""

from __future__ import annotations

from collections.abc import Callable

from kvmove.kvpol.policy import Policy
from kvmove.kvpol.proof import added
from kvmove.kvpol.proof.claims import SYNC, verdict
from kvmove.kvpol.proof.confirm import condition_holds, outcome
from kvmove.kvpol.proof.results import Comparison, Example, SyncOrder, Verdict
from kvmove.kvpol.proof.search import Answer, Examples, Search
from kvmove.kvpol.proof.session import Term
from kvmove.kvpol.proof.worlds import World, one_hit
from kvmove.records import Action

SAME = "the same action and the same blocks"


class Difference:
    """Searches for hits and steps, with `where`, that two policies treat differently."""

    def __init__(self, first: Policy, second: Policy, where: str | None, timeout_s: float) -> None:
        self.first, self.second = first, second
        self.where = None if where is None else added.condition(where)
        programs = [first.program, second.program]
        if self.where is not None:
            programs.append(self.where.usable())
        self.search = Search(one_hit(*programs), timeout_s)

    def any(self) -> Answer:
        """A hit for which they ask for different actions, or load different blocks."""

        def differ(world: World) -> Term:
            a, b = world.models[:2]
            s = world.session
            actions = [a.asks(frozenset({x})) == b.asks(frozenset({x})) for x in Action]
            same_blocks = a.loaded.blocks == b.loaded.blocks if world.cuts else s.truth(True)
            return s.opposite(s.all_of([*actions, same_blocks]))

        def confirmed(example: Example) -> bool:
            a, b = outcome(self.first, example), outcome(self.second, example)
            return (a.action, a.blocks) != (b.action, b.blocks)

        return self._find(differ, confirmed)

    def only(self, this: int) -> Answer:
        """A hit that one of them alone, number `this`, loads inside the step."""
        policies = self.first, self.second

        def only_this(world: World) -> Term:
            s = world.session
            return s.all_of([world.models[this].asks(SYNC), s.opposite(world.models[1 - this].asks(SYNC))])

        def confirmed(example: Example) -> bool:
            here, there = outcome(policies[this], example), outcome(policies[1 - this], example)
            return here.action is Action.SYNC and there.action is not Action.SYNC

        return self._find(only_this, confirmed)

    def _find(self, goal: Callable[[World], Term], confirmed: Callable[[Example], bool]) -> Answer:
        def with_where(world: World) -> Term:
            given = [] if self.where is None else [world.models[2].fires[0]]
            return world.session.all_of([goal(world), *given])

        def confirm(examples: Examples) -> bool:
            in_question = self.where is None or condition_holds(self.where, examples[0])
            return in_question and confirmed(examples[0])

        return self.search.find(with_where, confirm)


def prove_equivalent(first: Policy, second: Policy, where: str | None, timeout_s: float) -> Verdict:
    """See `kvmove.kvpol.proof.equivalent`."""
    return verdict(_claim(where), Difference(first, second, where, timeout_s).any())


def compare_policies(first: Policy, second: Policy, where: str | None, timeout_s: float) -> Comparison:
    """See `kvmove.kvpol.proof.compare`."""
    difference = Difference(first, second, where, timeout_s)
    differ = difference.any()
    only = [Answer(False, (), None, 0.0)] * 2 if differ.exists is False else [difference.only(0), difference.only(1)]
    witnesses = [a.examples[0] if a.examples else None for a in only]
    order = _order(only[0].exists, only[1].exists)
    return Comparison(first, second, where, verdict(_claim(where), differ), order, *witnesses)


def _claim(where: str | None) -> str:
    return SAME if where is None else f"{SAME}, where {where}"


def _order(first_alone: bool | None, second_alone: bool | None) -> SyncOrder:
    if first_alone is None or second_alone is None:
        return SyncOrder.UNKNOWN if not (first_alone and second_alone) else SyncOrder.NEITHER
    return {
        (False, False): SyncOrder.SAME,
        (False, True): SyncOrder.FIRST_WITHIN_SECOND,
        (True, False): SyncOrder.SECOND_WITHIN_FIRST,
        (True, True): SyncOrder.NEITHER,
    }[first_alone, second_alone]
