"""Examples in words, with units: what `kvmove decide` takes as `--hit` and `--step`."""

from __future__ import annotations

from kvmove import schema
from kvmove.kvpol.given import shown
from kvmove.kvpol.proof.results import Example
from kvmove.records import Hit, StepState

# What is not named here is left out where it is zero or unknown: that is what it is assumed to be.
_ALWAYS = ("bytes", "tokens", "blocks", "cached_tokens", "compute_tokens", "budget", "budget_remaining")
_SUM = "prompt_tokens"


def hit_values(hit: Hit) -> dict[str, str]:
    """The values of a hit that say everything about it, by name."""
    return _values(schema.HIT, hit)


def step_values(step: StepState) -> dict[str, str]:
    """The values of a step that say everything about it, by name."""
    return _values(schema.STEP, step)


def described(example: Example) -> str:
    """A hit and a step on one line."""
    return f"--hit {_joined(hit_values(example.hit))} --step {_joined(step_values(example.step))}"


def _values(variables: tuple[schema.Variable, ...], record: Hit | StepState) -> dict[str, str]:
    return {
        v.name: shown(v, record)
        for v in variables
        if v.name != _SUM
        and (v.name in _ALWAYS or getattr(record, v.attribute) not in ((None,) if v.optional else (0,)))
    }


def _joined(values: dict[str, str]) -> str:
    return ",".join(f"{name}={value}" for name, value in values.items())
