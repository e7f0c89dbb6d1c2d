"""A checked policy: names resolved, units proven, arithmetic in integers, `not` gone from every condition.

`not` is pushed down to comparisons while checking, because a comparison that reads an unknown estimate is
false and so is its opposite.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from kvmove.kvpol.exact import Ratio
from kvmove.kvpol.source import Span
from kvmove.kvpol.units import Dimension
from kvmove.kvpol.whole import MAX_DEPTH, TooComplex, Whole
from kvmove.records import Action
from kvmove.schema import Variable

OPPOSITE = {"<": ">=", "<=": ">", ">": "<=", ">=": "<", "==": "!=", "!=": "=="}


@dataclass(frozen=True, slots=True)
class Truth:
    """A condition that is the same for every hit."""

    value: bool

    @property
    def depth(self) -> int:
        """Levels of nodes."""
        return 1


@dataclass(frozen=True, slots=True)
class Compare:
    """`left operator right` on integers; false when one of the estimates in `needs` is unknown."""

    operator: str
    left: Whole
    right: Whole
    needs: tuple[Variable, ...]

    @property
    def depth(self) -> int:
        """Levels of nodes."""
        return 1 + max(self.left.depth, self.right.depth)


@dataclass(frozen=True, slots=True)
class Known:
    """Whether every estimate of `variables` is known; with `negated`, whether one is not."""

    variables: tuple[Variable, ...]
    negated: bool

    @property
    def depth(self) -> int:
        """Levels of nodes."""
        return 2


@dataclass(frozen=True, slots=True)
class Every:
    """Whether all `items` hold; tried in order."""

    items: tuple[Condition, ...]
    depth: int


@dataclass(frozen=True, slots=True)
class Some:
    """Whether one of `items` holds; tried in order."""

    items: tuple[Condition, ...]
    depth: int


@dataclass(frozen=True, slots=True)
class LetHolds:
    """A let that is a condition, or its opposite."""

    let: int
    negated: bool
    depth: int


Condition = Truth | Compare | Known | Every | Some | LetHolds

TRUE, FALSE = Truth(True), Truth(False)


def every(items: tuple[Condition, ...]) -> Condition:
    """All of `items`, with constants folded."""
    if FALSE in items:
        return FALSE
    kept = tuple(i for i in items if not isinstance(i, Truth))
    return Every(kept, _depth(kept)) if len(kept) > 1 else (kept[0] if kept else TRUE)


def some(items: tuple[Condition, ...]) -> Condition:
    """One of `items`, with constants folded."""
    if TRUE in items:
        return TRUE
    kept = tuple(i for i in items if not isinstance(i, Truth))
    return Some(kept, _depth(kept)) if len(kept) > 1 else (kept[0] if kept else FALSE)


def let_holds(let: int, condition: Condition) -> Condition:
    """The let number `let`, whose value is `condition`."""
    if isinstance(condition, Truth | LetHolds):
        return condition
    if condition.depth >= MAX_DEPTH:
        raise TooComplex
    return LetHolds(let, False, condition.depth + 1)


def opposite(condition: Condition) -> Condition:
    """What `not condition` means: the opposite of each comparison, `and` and `or` exchanged."""
    match condition:
        case Truth(value):
            return Truth(not value)
        case Compare(operator, left, right, needs):
            return Compare(OPPOSITE[operator], left, right, needs)
        case Known(variables, negated):
            return Known(variables, not negated)
        case LetHolds(let, negated, depth):
            return LetHolds(let, not negated, depth)
    flipped = []
    for item in condition.items:
        flipped.append(opposite(item))  # noqa: PERF401 - a comprehension is one more frame per level
    kind = Some if isinstance(condition, Every) else Every
    return kind(tuple(flipped), condition.depth)


def _depth(items: tuple[Condition, ...]) -> int:
    depth = 1 + max((i.depth for i in items), default=0)
    if depth > MAX_DEPTH:
        raise TooComplex
    return depth


@dataclass(frozen=True, slots=True)
class CheckedLet:
    """A let: an amount, or a condition. `needs` are the estimates that its amount reads."""

    name: str
    value: Ratio | Condition
    needs: tuple[Variable, ...]


@dataclass(frozen=True, slots=True)
class CheckedRule:
    """A rule. `condition` is TRUE for a rule without one; `unconditional` says that the text has none, or `true`."""

    action: Action
    label: str | None
    condition: Condition
    limit: Limit | None
    unconditional: bool
    span: Span


@dataclass(frozen=True, slots=True)
class Limit:
    """The limit of an `at most`, in bytes or tokens; unknown when one of `needs` is."""

    amount: Ratio
    dimension: Dimension
    needs: tuple[Variable, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class OutcomeIn:
    """A claim that the decision is one of `actions`."""

    actions: frozenset[Action]


@dataclass(frozen=True, slots=True)
class CheckedAssert:
    """`premise` implies `conclusion`, for every hit and step. `premise` is TRUE where none is written."""

    premise: Condition | OutcomeIn
    conclusion: Condition | OutcomeIn
    span: Span


@dataclass(frozen=True, slots=True)
class Program:
    """A policy without mistakes, ready to compile, prove or compare."""

    name: str | None
    params: dict[str, Fraction | bool]  # effective values, canonical units
    budget_bytes: int | None
    lets: tuple[CheckedLet, ...]
    rules: tuple[CheckedRule, ...]  # without the implicit last rule
    asserts: tuple[CheckedAssert, ...]

    @property
    def ends_itself(self) -> bool:
        """Whether the last rule always matches, so that there is no implicit one."""
        if not self.rules:
            return False
        last = self.rules[-1]
        return last.limit is None and last.unconditional
