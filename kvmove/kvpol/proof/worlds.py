"""The hits, steps and policies that a question is about, as formulas of one session."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kvmove.kvpol.checked import Program
from kvmove.kvpol.proof.inputs import Inputs
from kvmove.kvpol.proof.model import Model
from kvmove.kvpol.proof.prefixes import Prefixes
from kvmove.kvpol.proof.session import Session, Term

Goal = Callable[["World"], Term]


@dataclass(frozen=True, slots=True)
class World:
    """What a question can speak of.

    Attributes:
        inputs: one for each hit; all hits are in the same step.
        prefixes: what can be cut off each hit.
        models: what each policy decides about it.
        more: what else is given.
    """

    session: Session
    inputs: tuple[Inputs, ...]
    prefixes: tuple[Prefixes, ...]
    models: tuple[Model, ...]
    more: tuple[Term, ...] = ()

    @property
    def facts(self) -> list[Term]:
        """Everything that is given, whatever is asked."""
        of_inputs = [fact for i in self.inputs for fact in i.facts]
        return [*of_inputs, *(p.certain for p in self.prefixes), *self.more]

    def asked(self, goal: Goal) -> list[Term]:
        """A question as formulas: `goal`, and what holds of the parts of hits that it speaks of."""
        for prefixes in self.prefixes:
            prefixes.read.clear()
        term = goal(self)
        return [term, *(fact for p in self.prefixes for fact in p.facts)]

    @property
    def cuts(self) -> bool:
        """Whether a rule has an `at most`."""
        return any(p.any for p in self.prefixes)


Setup = Callable[[Session], World]


def one_hit(*programs: Program) -> Setup:
    """One hit in one step, about which each of `programs` decides."""

    def setup(session: Session) -> World:
        inputs = Inputs(session)
        prefixes = Prefixes(inputs)
        models = tuple(Model(program, inputs, prefixes, i) for i, program in enumerate(programs))
        return World(session, (inputs,), (prefixes,), models)

    return setup


GROWS = ("bytes", "blocks", "tokens", "load_time")


def smaller_and_larger(program: Program) -> Setup:
    """Two hits in one step; the second has at least as many bytes, blocks and tokens and as long a load as the first.

    The prompt of the larger is longer by its tokens, because it is a sum. All else is equal.
    """

    def setup(session: Session) -> World:
        small = Inputs(session)
        large = Inputs(session, " of the larger", like=small, apart=(*GROWS, "prompt_tokens"))
        in_order = tuple(small.values[name] <= large.values[name] for name in GROWS)
        prefixes = Prefixes(small), Prefixes(large, " of the larger")
        models = Model(program, small, prefixes[0]), Model(program, large, prefixes[1])
        return World(session, (small, large), prefixes, models, in_order)

    return setup
