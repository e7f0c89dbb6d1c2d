"""What a name means at a place in a policy, and what an expression turned out to be."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvmove import schema
from kvmove.kvpol.checked import CheckedLet, Condition
from kvmove.kvpol.exact import Ratio
from kvmove.kvpol.source import Span
from kvmove.kvpol.units import NUMBER, Dimension
from kvmove.schema import Variable

FUNCTIONS = ("min", "max", "abs", "clamp", "known")


@dataclass(frozen=True, slots=True)
class Amount:
    """An expression with a unit."""

    ratio: Ratio
    dimension: Dimension
    needs: frozenset[Variable] = frozenset()  # estimates without which the amount is unknown
    tunable: bool = False  # depends on a param, so that what is always true today need not be tomorrow


@dataclass(frozen=True, slots=True)
class Claim:
    """An expression that is true or false."""

    condition: Condition
    tunable: bool = False


# None stands for an expression with a mistake that has been reported: whatever uses it stays silent.
Meaning = Amount | Claim | None


@dataclass(slots=True)
class Definition:
    """A param or a let. `reads` and `asked` are the estimates that a condition reads and asks `known` about."""

    kind: str
    name: str
    span: Span
    meaning: Meaning
    reads: frozenset[Variable] = frozenset()
    asked: frozenset[Variable] = frozenset()
    used: bool = False


@dataclass(slots=True)
class Scope:
    """The names defined so far, and the lets behind them."""

    damaged: frozenset[str]  # names whose definition has a syntax error
    later: dict[str, Span]  # where names are defined that are not yet
    defined: dict[str, Definition] = field(default_factory=dict)
    lets: list[CheckedLet] = field(default_factory=list)
    in_assert: bool = False
    # Estimates that the current rule reads, and those it asks about with `known`, at the place where it first does.
    reads: dict[Variable, Span] = field(default_factory=dict)
    asked: set[Variable] = field(default_factory=set)

    def known_names(self) -> list[str]:
        """Every name that can be read here."""
        outcome = schema.Scope.OUTCOME
        variables = [v.name for v in schema.VARIABLES if self.in_assert or v.scope is not outcome]
        return [*variables, *self.defined]


def type_name(meaning: Amount | Claim) -> str:
    """The type in the words of a message."""
    if isinstance(meaning, Claim):
        return "a condition"
    return "a number" if meaning.dimension == NUMBER else str(meaning.dimension)
