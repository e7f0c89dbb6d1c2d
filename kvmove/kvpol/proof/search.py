"""Asks the solver for hits and steps with a property, within a time, and has every one that it finds confirmed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from time import perf_counter

from kvmove import schema
from kvmove.errors import InternalError
from kvmove.kvpol.proof.inputs import Inputs
from kvmove.kvpol.proof.results import Example
from kvmove.kvpol.proof.session import Session, Term, check
from kvmove.kvpol.proof.shrinking import Shrinking
from kvmove.kvpol.proof.worlds import Goal, Setup, World
from kvmove.records import Hit, StepState

Examples = tuple[Example, ...]  # one for each hit of the world
# Blocks of the hits that are tried as examples for rules with `at most`: the small ones in every combination of the
# two hits that a question may have, the large ones with both alike.
EVEN_BLOCKS = (1, 2, 3, 4, 8, 16)
MANY_BLOCKS = (64, 256)
# What products of variables are tried with where the solver has no answer: one factor varies, these are the others.
FACTORS = (0, 1, 2, 1000)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a search ended with.

    Attributes:
        exists: whether there are hits and a step with the property; None where that is unknown.
        examples: the ones that were found.
        reason: why it is unknown.
    """

    exists: bool | None
    examples: Examples
    reason: str | None
    seconds: float


class Search:
    """Answers questions about one world, each within `timeout_s` seconds (and as long again to shrink an example)."""

    def __init__(self, setup: Setup, timeout_s: float) -> None:
        self._setup, self.timeout_s = setup, timeout_s
        self.world = setup(Session())
        self.solver = self._solver(self.world)

    def find(self, goal: Goal, confirm: Callable[[Examples], bool], *, shrink: bool = True) -> Answer:
        """Hits and a step for which `goal` holds; `confirm` says so of what is found, without the solver.

        Raises:
            InternalError: the model of the policy is wrong, because an example is not confirmed.
        """
        start = perf_counter()
        deadline = start + self.timeout_s
        self.solver.push()
        try:
            self.solver.add(*self.world.asked(goal))
            if self.world.session.nonlinear:
                exists = self._exists_with_products(goal, start)
            else:
                exists = self._check(self.timeout_s)
            if exists is False:
                return Answer(False, (), None, perf_counter() - start)
            if exists is None and not self.world.cuts:
                return Answer(None, (), self._reason(), perf_counter() - start)
            if self.world.cuts and not self._cut_evenly(deadline):
                reason = f"no example was found among hits of up to {MANY_BLOCKS[-1]} blocks of the same size"
                return Answer(None, (), reason, perf_counter() - start)
            examples = self._examples(shrink)
        finally:
            self.solver.pop(self.solver.num_scopes())
        if not confirm(examples):
            raise InternalError(f"the solver's example is none for the evaluator: {examples}")
        return Answer(True, examples, None, perf_counter() - start)

    def needed(self, goal: Goal, parts: Callable[[World], list[Term]]) -> list[int] | None:
        """Which of `parts` are enough, none of them to spare, for `goal` to be impossible; None where unknown."""
        deadline = perf_counter() + self.timeout_s
        self.solver.push()
        try:
            self.solver.add(*self.world.asked(goal))
            terms = parts(self.world)
            names = [self.world.session.fact(f"part {i}") for i in range(len(terms))]
            for name, term in zip(names, terms, strict=True):
                self.solver.add(self.world.session.implies(name, term))
            if self._check(self.timeout_s, *names) is not False:
                return None
            used = {str(name) for name in self.solver.unsat_core()}
            kept = [i for i, name in enumerate(names) if str(name) in used]
            for i in list(kept):
                others = [names[k] for k in kept if k != i]
                if self._check(deadline - perf_counter(), *others) is False:
                    kept.remove(i)
            return kept
        finally:
            self.solver.pop(self.solver.num_scopes())

    def _solver(self, world: World) -> Term:
        solver = world.session.z3.Solver(ctx=world.session.context)
        solver.add(*world.facts)
        return solver

    def _check(self, seconds: float, *assumed: Term) -> bool | None:
        return check(self.solver, seconds, *assumed)

    def _reason(self) -> str:
        hard = "; products and quotients of variables are hard to decide" if self.world.session.nonlinear else ""
        return f"no answer within {self.timeout_s:g} s{hard}"

    @cached_property
    def _in_reals(self) -> tuple[World, Term]:
        world = self._setup(Session(real=True))
        return world, self._solver(world)

    def _exists_in_reals(self, goal: Goal, deadline: float) -> bool:
        """Whether there may be solutions among all real numbers. Where there are none, no integers are one."""
        world, solver = self._in_reals
        solver.push()
        solver.add(*world.asked(goal))
        exists = check(solver, deadline - perf_counter())
        solver.pop()
        return exists is not False

    def _exists_with_products(self, goal: Goal, start: float) -> bool | None:
        """Whether there is a solution, where products of variables can keep the solver busy for ever.

        What it does not find out at once is asked in two easier ways before it gets the rest of the time.
        """
        exists = self._check(0.15 * self.timeout_s)
        if exists is None:
            exists = self._in_few_factors(start + 0.4 * self.timeout_s)
        if exists is None and not self._exists_in_reals(goal, start + 0.6 * self.timeout_s):
            exists = False
        return self._check(start + self.timeout_s - perf_counter()) if exists is None else exists

    def _in_few_factors(self, deadline: float) -> bool | None:
        """True where there is a solution that has a number of FACTORS in place of the factors that make products."""
        number = self.world.session.number
        seconds = (deadline - perf_counter()) / len(FACTORS)
        for value in FACTORS:
            self.solver.push()
            self.solver.add(*(factor == number(value) for factor in self.world.session.factors))
            if self._check(seconds):
                return True
            self.solver.pop()
        return None

    def _cut_evenly(self, deadline: float) -> bool:
        """Add that hits have so many blocks of one size, for the least number that has an example."""
        hits = len(self.world.prefixes)
        for sizes in [*product(EVEN_BLOCKS, repeat=hits), *((many,) * hits for many in MANY_BLOCKS)]:
            self.solver.push()
            for blocks, prefixes in zip(sizes, self.world.prefixes, strict=True):
                self.solver.add(*prefixes.evenly_cut(blocks))
            if perf_counter() < deadline and self._check(deadline - perf_counter()):
                return True
            self.solver.pop()
        return False

    def _examples(self, shrink: bool) -> Examples:
        model = self.solver.model()
        if shrink:
            model = Shrinking(self.solver, self.world, self.timeout_s).run()
        return tuple(_example(model, inputs) for inputs in self.world.inputs)


def _example(model: Term, inputs: Inputs) -> Example:
    def values(variables: tuple[schema.Variable, ...]) -> dict[str, int | None]:
        result: dict[str, int | None] = {}
        for v in variables:
            is_known = not v.optional or str(model.eval(inputs.known[v.name], model_completion=True)) == "True"
            value = model.eval(inputs.values[v.name], model_completion=True).as_long()
            result[v.attribute] = value if is_known else None
        return result

    return Example(Hit(request="example", **values(schema.HIT)), StepState(**values(schema.STEP)))  # type: ignore[arg-type]
