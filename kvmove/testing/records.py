"""Hypothesis strategies for `Hit` and `StepState`: every value that the schema admits, with its edges.

A draw costs hypothesis about 0.1 ms, and a hit and a step have 23 variables. So an example first draws a *plan*:
which variables leave their simplest value, and how each is drawn. Plans are ordered from none to all of them, so
that a failing example shrinks to the few variables that matter, each near zero, and estimates shrink to unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import combinations
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

from hypothesis import strategies as st

from kvmove import schema
from kvmove.records import Hit, StepState
from kvmove.testing.edges import NO_EDGES, Edges, edges_of
from kvmove.testing.parts import PARTS, with_parts

if TYPE_CHECKING:
    from kvmove.kvpol.policy import Policy

# One of them draws the value of a variable; a `_Tie` puts it beside another variable's.
_Way = st.SearchStrategy[int | None]
_Values = dict[str, int | None]

_PLANS = 128  # beside the plans for no, one, two and all variables
_MAX_BLOCKS = 4096
_OFTEN = frozenset({"bytes", "tokens", "blocks", "compute_tokens", "budget_remaining"})
# The simplest situation: one block of one token, and the whole default budget left.
SIMPLEST: _Values = {
    **{v.name: None if v.optional else max(v.low, 0) for v in (*schema.HIT, *schema.STEP)},
    "compute_tokens": 1,
    "budget": schema.DEFAULT_BUDGET_BYTES,
    "budget_remaining": schema.DEFAULT_BUDGET_BYTES,
}


class Situation(NamedTuple):
    """A hit, and the step in which it is decided."""

    hit: Hit
    step: StepState


class _Tie(NamedTuple):
    """The value of another variable, give or take one."""

    other: str
    offset: st.SearchStrategy[int]


class _Plan(NamedTuple):
    """How to draw each variable that leaves its simplest value, in order, and whether the hit has parts of its own."""

    ways: tuple[tuple[str, _Way | _Tie], ...]
    has_parts: bool = False


def hits(
    *, policy: Policy | None = None, max_bytes: int = schema.MAX_BYTES, max_tokens: int = 1 << 20
) -> st.SearchStrategy[Hit]:
    """Draw a hit whose fields respect the schema's ranges and invariants; `request` is one of `r0` to `r999`.

    Some have blocks of stated sizes, with a partial tail or a sliding window, or can be cut at some blocks only.
    With `policy`, every second value is one that is written in it, or one more or less.
    """
    return _hits(_plans(schema.HIT, _edges(policy), (max_bytes, max_tokens, schema.MAX_BYTES)), max_bytes, max_tokens)


def steps(*, policy: Policy | None = None, max_budget_bytes: int = schema.MAX_BYTES) -> st.SearchStrategy[StepState]:
    """Draw the state of a step whose fields respect the schema's ranges and invariants.

    With `policy`, every second value is one that is written in it, or one more or less.
    """
    limits = (schema.MAX_BYTES, 1 << 20, max_budget_bytes)
    return _steps(_plans(schema.STEP, _edges(policy), limits), max_budget_bytes)


def situations(
    *,
    policy: Policy | None = None,
    max_bytes: int = schema.MAX_BYTES,
    max_tokens: int = 1 << 20,
    max_budget_bytes: int = schema.MAX_BYTES,
) -> st.SearchStrategy[Situation]:
    """Draw a hit and a step together, often with the hit's bytes at what is left of the budget, or one beside it.

    With `policy`, every second value is one that is written in it, or one more or less; and variables of one unit
    that it reads often have values beside each other.
    """
    return situations_at(_edges(policy), max_bytes, max_tokens, max_budget_bytes)


def situations_at(
    edges: Edges,
    max_bytes: int = schema.MAX_BYTES,
    max_tokens: int = 1 << 20,
    max_budget_bytes: int = schema.MAX_BYTES,
) -> st.SearchStrategy[Situation]:
    """Draw a situation near `edges`."""
    plans = _plans((*schema.STEP, *schema.HIT), edges, (max_bytes, max_tokens, max_budget_bytes))
    return _situations(plans, max_bytes, max_tokens, max_budget_bytes)


def hit_from(values: _Values, drawn: Iterable[str], max_bytes: int, max_tokens: int, request: str = "r0") -> Hit:
    """A hit with these values, those in `drawn` changed as little as the schema's invariants allow."""
    v: dict[str, Any] = {x.attribute: values[x.name] for x in schema.HIT}
    if "tokens" not in drawn:
        # Room for the blocks and the bytes that were drawn.
        v["tokens"] = max(v["tokens"], v["blocks"], -(-v["bytes"] // schema.MAX_BYTES_PER_TOKEN))
    v["tokens"] = tokens = min(v["tokens"], max_tokens)
    v["blocks"] = min(v["blocks"], tokens, _MAX_BLOCKS)
    v["bytes"] = max(1, min(v["bytes"], max_bytes, tokens * schema.MAX_BYTES_PER_TOKEN))
    rest = v["cached_tokens"] + tokens
    if "prompt_tokens" in drawn and v["prompt_tokens"] >= rest:
        v["compute_tokens"] = v["prompt_tokens"] - rest
    v["prompt_tokens"] = rest + v["compute_tokens"]
    return Hit(request=request, **v)


def step_from(values: _Values, drawn: Iterable[str]) -> StepState:
    """A step with these values, those in `drawn` changed as little as the schema's invariants allow."""
    v: dict[str, Any] = {x.attribute: values[x.name] for x in schema.STEP}
    if "budget" not in drawn:
        v["budget_bytes"] = max(v["budget_bytes"], v["budget_remaining_bytes"])
    elif "budget_remaining" not in drawn:
        v["budget_remaining_bytes"] = v["budget_bytes"]
    v["budget_remaining_bytes"] = min(v["budget_remaining_bytes"], v["budget_bytes"])
    return StepState(**v)


_REQUESTS = st.integers(0, 999).map("r{}".format)


@st.composite
def _hits(draw: st.DrawFn, plans: st.SearchStrategy[_Plan], max_bytes: int, max_tokens: int) -> Hit:
    request = draw(_REQUESTS)
    plan = draw(plans)
    values, drawn = _follow(draw, plan)
    return _parted(draw, plan, hit_from(values, drawn, max_bytes, max_tokens, request), max_bytes)


@st.composite
def _steps(draw: st.DrawFn, plans: st.SearchStrategy[_Plan], max_budget_bytes: int) -> StepState:
    values, drawn = _follow(draw, draw(plans), max_budget_bytes)
    return step_from(values, drawn)


@st.composite
def _situations(
    draw: st.DrawFn, plans: st.SearchStrategy[_Plan], max_bytes: int, max_tokens: int, max_budget_bytes: int
) -> Situation:
    plan = draw(plans)
    values, drawn = _follow(draw, plan, max_budget_bytes)
    hit = _parted(draw, plan, hit_from(values, drawn, max_bytes, max_tokens), max_bytes)
    return Situation(hit, step_from(values, drawn))


def _parted(draw: st.DrawFn, plan: _Plan, hit: Hit, max_bytes: int) -> Hit:
    return with_parts(hit, draw(PARTS), max_bytes) if plan.has_parts else hit


def _follow(draw: st.DrawFn, plan: _Plan, max_budget_bytes: int = schema.MAX_BYTES) -> tuple[_Values, set[str]]:
    values = dict(SIMPLEST)
    for name in ("budget", "budget_remaining"):
        values[name] = min(schema.DEFAULT_BUDGET_BYTES, max_budget_bytes)
    for name, way in plan.ways:
        if not isinstance(way, _Tie):
            values[name] = draw(way)
            continue
        beside, v = values[way.other], schema.BY_NAME[name]
        if beside is not None:
            values[name] = min(max(beside + draw(way.offset), v.low), v.high)
    return values, {name for name, _ in plan.ways}


def _edges(policy: Policy | None) -> Edges:
    return NO_EDGES if policy is None else edges_of(policy)


def _plans(
    variables: tuple[schema.Variable, ...], edges: Edges, limits: tuple[int, int, int]
) -> st.SearchStrategy[_Plan]:
    if edges is NO_EDGES:
        return _plans_anywhere(variables, limits)
    return st.sampled_from(list(_planned(variables, edges, limits)))


@lru_cache(maxsize=32)
def _plans_anywhere(variables: tuple[schema.Variable, ...], limits: tuple[int, int, int]) -> st.SearchStrategy[_Plan]:
    return st.sampled_from(list(_planned(variables, NO_EDGES, limits)))


def _planned(variables: tuple[schema.Variable, ...], edges: Edges, limits: tuple[int, int, int]) -> Iterator[_Plan]:
    """Plans from the simplest on; the same ones for the same arguments."""
    choose = Random(0)
    ways = _Ways(edges, limits, {v.name for v in variables}, choose)
    # Where leading blocks are loaded, what the hit is made of decides, read or not.
    sizes = ("bytes", "tokens", "blocks") if edges.has_limits else ()
    readable = [v for v in variables if v in edges.reads or v.name in sizes]
    # Without a policy any variable may matter; with one, those that it reads.
    main = readable or [v for v in variables if v.name in _OFTEN]
    yield _Plan(())
    for size in (1, 2):
        for some in combinations(main[:8], size):
            yield ways.plan(some)
    plans = [ways.plan([v for v in variables if choose.random() < (0.6 if v in main else 0.12)]) for _ in range(_PLANS)]
    if edges is NO_EDGES or edges.has_limits:
        # One in three, and with them the blocks that there are to cut.
        plans = [p._replace(has_parts="blocks" in dict(p.ways) and choose.random() < 0.6) for p in plans]
    yield from sorted(plans, key=lambda plan: (plan.has_parts, len(plan.ways)))
    yield ways.plan(variables)


class _Ways:
    """Chooses how variables are drawn."""

    def __init__(self, edges: Edges, limits: tuple[int, int, int], names: set[str], choose: Random) -> None:
        self.edges, self.names, self.choose = edges, names, choose
        max_bytes, max_tokens, max_budget_bytes = limits
        self.most = {
            "bytes": max_bytes, "budget": max_budget_bytes, "budget_remaining": max_budget_bytes,
            "tokens": max_tokens, "cached_tokens": max_tokens, "compute_tokens": max_tokens,
            "blocks": min(max_tokens, _MAX_BLOCKS),
        }  # fmt: skip
        self.offset = st.sampled_from([0, 1, -1])
        self._anywhere = {v.name: self._any(v) for v in (*schema.HIT, *schema.STEP)}
        self._at_edges = {v.name: self._edge(v) for v in (*schema.HIT, *schema.STEP)}

    def plan(self, variables: Iterable[schema.Variable]) -> _Plan:
        """A plan that draws `variables`, in their order."""
        ways: list[tuple[str, _Way | _Tie]] = []
        done: list[schema.Variable] = []
        for v in variables:
            ways.append((v.name, self._way(v, done)))
            done.append(v)
        return _Plan(tuple(ways))

    def _way(self, v: schema.Variable, done: list[schema.Variable]) -> _Way | _Tie:
        dice = self.choose.random()
        if v.name == "bytes" and "budget_remaining" in self.names and dice < 0.4:
            return _Tie("budget_remaining", self.offset)
        edge = self._at_edges[v.name]
        if edge is not None and dice < 0.75:
            return edge
        alike = [x for x in done if x.unit is v.unit and x in self.edges.reads and v in self.edges.reads]
        if alike and dice > 0.9:
            return _Tie(self.choose.choice(alike).name, self.offset)
        return self._anywhere[v.name]

    def _any(self, v: schema.Variable) -> _Way:
        high = min(v.high, self.most.get(v.name, v.high))
        if not v.optional:
            return st.integers(min(v.low, high), high)
        # Zero stands for unknown, so that one draw is enough and unknown is the simplest.
        return st.integers(v.low, high + 1).map(lambda k: None if k == 0 else k - (k > 0))

    def _edge(self, v: schema.Variable) -> _Way | None:
        amounts = self.edges.of(v, self.most.get(v.name, v.high))
        if not amounts:
            return None
        return st.sampled_from([*([None] if v.optional else []), *amounts])
