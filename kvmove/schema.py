"""What a policy can read: one table for the language, the records, the docs and the tests.

A variable has the name that a policy writes (`load_time`), the attribute that carries it on a record
(`load_time_ns`: the unit is in the name), a unit, an inclusive range and one line of documentation. The
checker bounds every expression with these ranges, and `Hit` and `StepState` refuse values outside them,
so that what the checker accepts cannot go wrong when it runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from operator import attrgetter, mul


class Unit(Enum):
    """The unit of a variable. Values are exact integers in the canonical unit: bytes, tokens, nanoseconds, a count."""

    BYTES = "bytes"
    TOKENS = "tokens"
    TIME = "time"
    NUMBER = "number"


class Scope(Enum):
    """Where a variable can be read: on the hit, on the step, or only in an assert about the outcome."""

    HIT = "hit"
    STEP = "step"
    OUTCOME = "outcome"


@dataclass(frozen=True, slots=True)
class Variable:
    """One variable of the language."""

    name: str
    unit: Unit
    low: int  # inclusive, canonical unit
    high: int  # inclusive, canonical unit
    scope: Scope
    optional: bool  # an estimate that may be unknown (None)
    doc: str
    attribute: str = field(init=False)  # the record's field: the name, with its unit where the name does not say it

    def __post_init__(self) -> None:
        suffix = {Unit.BYTES: "bytes", Unit.TIME: "ns"}.get(self.unit)
        says_unit = suffix is None or self.name.endswith(suffix)
        object.__setattr__(self, "attribute", self.name if says_unit else f"{self.name}_{suffix}")


# The ranges are far above anything real and far below what would let a product of two reach 2**128.
MAX_BYTES = 1 << 44  # 16 TiB
MAX_COUNT = 1 << 24  # tokens of a prompt, blocks, requests
MAX_TIME = 1 << 46  # ns; 19.5 hours
MAX_PRIORITY = (1 << 31) - 1
# The most KV that one token can have: 16 MiB, four times a 96-layer model with 96 heads of 128 in bf16.
MAX_BYTES_PER_TOKEN = 1 << 24


def _hit(name: str, unit: Unit, low: int, high: int, doc: str, *, optional: bool = False) -> Variable:
    return Variable(name, unit, low, high, Scope.HIT, optional, doc)


def _step(name: str, unit: Unit, low: int, high: int, doc: str, *, optional: bool = False) -> Variable:
    return Variable(name, unit, low, high, Scope.STEP, optional, doc)


def _outcome(name: str, unit: Unit, high: int, doc: str) -> Variable:
    return Variable(name, unit, 0, high, Scope.OUTCOME, False, doc)


_B, _T, _NS, _N = Unit.BYTES, Unit.TOKENS, Unit.TIME, Unit.NUMBER

VARIABLES: tuple[Variable, ...] = (
    _hit("bytes", _B, 1, MAX_BYTES, "bytes that loading the whole hit moves to one GPU"),
    _hit("tokens", _T, 1, MAX_COUNT, "tokens that the hit covers"),
    _hit("blocks", _N, 1, MAX_COUNT, "blocks that the hit covers"),
    _hit("prompt_tokens", _T, 1, MAX_COUNT, "tokens of the whole prompt"),
    _hit("cached_tokens", _T, 0, MAX_COUNT, "leading tokens that are in the GPU cache already"),
    _hit("compute_tokens", _T, 0, MAX_COUNT, "tokens left to compute after the hit"),
    _hit("load_time", _NS, 0, MAX_TIME, "estimated time of the copy", optional=True),
    _hit("recompute_time", _NS, 0, MAX_TIME, "estimated time to compute the hit's tokens again", optional=True),
    _hit("waited", _NS, 0, MAX_TIME, "time since the request was first scheduled"),
    _hit("deferrals", _N, 0, MAX_COUNT, "how often this request was deferred so far"),
    _hit("priority", _N, -MAX_PRIORITY, MAX_PRIORITY, "the engine's priority of the request"),
    _hit("deadline_left", _NS, -MAX_TIME, MAX_TIME, "time left until the request's deadline", optional=True),
    _step("budget", _B, 0, MAX_BYTES, "bytes that this step may load inside itself; 0 turns sync off"),
    _step("budget_remaining", _B, 0, MAX_BYTES, "what is left of the budget in this step"),
    _step("inflight_bytes", _B, 0, MAX_BYTES, "bytes of async loads that are under way"),
    _step("inflight_loads", _N, 0, MAX_COUNT, "async loads that are under way"),
    _step("drain_time", _NS, 0, MAX_TIME, "estimated time until the loads under way are done", optional=True),
    _step("step_time", _NS, 0, MAX_TIME, "estimated time of this step", optional=True),
    _step("async_delay", _NS, 0, MAX_TIME, "estimated time that an async load parks its request", optional=True),
    _step("running", _N, 0, MAX_COUNT, "requests that are running"),
    _step("waiting", _N, 0, MAX_COUNT, "requests that wait to be scheduled"),
    _step("free_slots", _N, 0, MAX_COUNT, "free block slots in the GPU cache"),
    _step("sync_loads", _N, 0, MAX_COUNT, "sync loads admitted in this step so far"),
    _outcome("load_bytes", _B, MAX_BYTES, "bytes that the policy asks to load; 0 where it loads nothing"),
    _outcome("load_tokens", _T, MAX_COUNT, "tokens that the policy asks to load; 0 where it loads nothing"),
)

BY_NAME: dict[str, Variable] = {v.name: v for v in VARIABLES}
HIT: tuple[Variable, ...] = tuple(v for v in VARIABLES if v.scope is Scope.HIT)
STEP: tuple[Variable, ...] = tuple(v for v in VARIABLES if v.scope is Scope.STEP)


@dataclass(frozen=True, slots=True)
class Invariant:
    """A fact about the variables of every hit, or of every step: the sum of `terms` is zero, or at most zero.

    `complaint` says what is wrong with a record that breaks it; names in braces are the record's attributes.
    """

    terms: tuple[tuple[int, str], ...]  # how often, and the name of a variable that is never unknown
    equal: bool  # the sum is zero; otherwise it is at most zero
    complaint: str
    _attributes: tuple[str, ...] = field(init=False)
    _times: tuple[int, ...] = field(init=False)
    _read: Callable[[object], tuple[int, ...]] = field(init=False)  # the values of all attributes

    def __post_init__(self) -> None:
        attributes = tuple(BY_NAME[name].attribute for _, name in self.terms)
        object.__setattr__(self, "_attributes", attributes)
        object.__setattr__(self, "_times", tuple(n for n, _ in self.terms))
        object.__setattr__(self, "_read", attrgetter(*attributes))

    def holds(self, record: object) -> bool:
        """Whether the record, whose values are in range, keeps to it."""
        total: int = sum(map(mul, self._times, self._read(record)))
        return total == 0 if self.equal else total <= 0

    def complaint_about(self, record: object) -> str:
        """What is wrong with the record, with its values."""
        return self.complaint.format(**{name: getattr(record, name) for name in self._attributes})


HIT_INVARIANTS: tuple[Invariant, ...] = (
    Invariant(
        ((1, "cached_tokens"), (1, "tokens"), (1, "compute_tokens"), (-1, "prompt_tokens")),
        True,
        "cached_tokens {cached_tokens} + tokens {tokens} + compute_tokens {compute_tokens} is not prompt_tokens "
        "{prompt_tokens}; every token is one of the three",
    ),
    Invariant(
        ((1, "blocks"), (-1, "tokens")),
        False,
        "{blocks} blocks for {tokens} tokens; a block has at least one token",
    ),
    Invariant(
        ((1, "bytes"), (-MAX_BYTES_PER_TOKEN, "tokens")),
        False,
        f"{{bytes}} bytes for {{tokens}} tokens is more than {MAX_BYTES_PER_TOKEN} bytes a token; "
        "is `bytes` counted for one GPU?",
    ),
)
STEP_INVARIANTS: tuple[Invariant, ...] = (
    Invariant(
        ((1, "budget_remaining"), (-1, "budget")),
        False,
        "budget_remaining_bytes {budget_remaining_bytes} is more than budget_bytes {budget_bytes}",
    ),
)

DEFAULT_BUDGET_BYTES = 64 << 20  # the step budget where neither the engine nor the policy names one
