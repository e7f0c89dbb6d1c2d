"""Hypothesis strategies for `Hit` and `StepState`: every value that the schema admits, with its edges."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from kvmove import schema
from kvmove.records import Hit, StepState


@st.composite
def hits(draw: st.DrawFn, *, max_bytes: int = schema.MAX_BYTES, max_tokens: int = 1 << 20) -> Hit:
    """Draw a hit whose fields respect the schema's ranges and invariants."""
    tokens = draw(st.integers(1, max_tokens))
    cached = draw(st.integers(0, max_tokens))
    compute = draw(st.integers(0, max_tokens))
    most_bytes = min(max_bytes, tokens * schema.MAX_BYTES_PER_TOKEN)
    return Hit(
        request=f"r{draw(st.integers(0, 999))}",
        bytes=draw(st.integers(1, most_bytes)),
        tokens=tokens,
        blocks=draw(st.integers(1, min(tokens, 4096))),
        prompt_tokens=cached + tokens + compute,
        cached_tokens=cached,
        compute_tokens=compute,
        **_rest(draw, schema.HIT, {"bytes", "tokens", "blocks", "prompt_tokens", "cached_tokens", "compute_tokens"}),
    )


@st.composite
def steps(draw: st.DrawFn, *, max_budget_bytes: int = schema.MAX_BYTES) -> StepState:
    """Draw the state of a step whose fields respect the schema's ranges and invariants."""
    budget = draw(st.integers(0, max_budget_bytes))
    return StepState(
        budget_bytes=budget,
        budget_remaining_bytes=draw(st.integers(0, budget)),
        **_rest(draw, schema.STEP, {"budget", "budget_remaining"}),
    )


def _rest(draw: st.DrawFn, variables: tuple[schema.Variable, ...], done: set[str]) -> dict[str, Any]:
    return {v.attribute: draw(_values(v)) for v in variables if v.name not in done}


def _values(v: schema.Variable) -> st.SearchStrategy[int | None]:
    values: st.SearchStrategy[int | None] = st.integers(v.low, v.high)
    return st.none() | values if v.optional else values
