"""One hit and one step as unknowns of the solver, with what the schema says of every hit and step."""

from __future__ import annotations

from collections.abc import Collection

from kvmove import schema
from kvmove.kvpol.proof.session import Session, Term

READABLE = schema.HIT + schema.STEP


class Inputs:
    """The variables of a hit and a step.

    With `like`, they are those of another, but for the variables named in `apart`.

    Attributes:
        values: the value of each variable by its name; of an unknown estimate, any value of its range.
        known: for each estimate, whether it is known.
        facts: what holds of every hit and step.
        read: names of the variables that formulas read so far.
    """

    def __init__(
        self, session: Session, tag: str = "", like: Inputs | None = None, apart: Collection[str] = ()
    ) -> None:
        self.session = session
        self.values: dict[str, Term] = {}
        self.known: dict[str, Term] = {}
        self.facts: list[Term] = []
        self.read: set[str] = set() if like is None else like.read
        for v in READABLE:
            if like is not None and v.name not in apart:
                self.values[v.name] = like.values[v.name]
            else:
                value = self.values[v.name] = session.amount(v.name + tag)
                self.facts += [session.number(v.low) <= value, value <= session.number(v.high)]
            if v.optional:
                self.known[v.name] = session.fact(f"known({v.name})") if like is None else like.known[v.name]
        for invariant in schema.HIT_INVARIANTS + schema.STEP_INVARIANTS:
            terms = [session.product(times, [self.values[name]]) for times, name in invariant.terms]
            total = sum(terms[1:], start=terms[0])
            zero = session.number(0)
            self.facts.append(total == zero if invariant.equal else total <= zero)

    def value(self, v: schema.Variable) -> Term:
        """The value of a variable, which is noted as read."""
        self.read.add(v.name)
        return self.values[v.name]

    def all_known(self, variables: Collection[schema.Variable]) -> Term:
        """Whether every one of these estimates is known."""
        self.read.update(v.name for v in variables)
        return self.session.all_of(self.known[v.name] for v in variables)
