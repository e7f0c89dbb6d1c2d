"""Examples in words, with units: what `kvmove decide` takes as `--hit` and `--step`."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from kvmove import schema
from kvmove.kvpol.given import shown
from kvmove.kvpol.policy import Policy
from kvmove.kvpol.proof.confirm import Outcome, outcome
from kvmove.kvpol.proof.results import Example
from kvmove.kvpol.trace import Condition, Operand, Trace, trace
from kvmove.kvpol.units import BYTES, show
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


def traced(name: str, policy: Policy, example: Example) -> list[str]:
    """What a policy called `name` asks for, and what its rules make of an example, up to the one that decides."""
    found, decided = trace(policy, example.hit, example.step), outcome(policy, example)
    lines = [f"{name}: {decided.action}{_size(decided, example.hit.blocks)}"]
    for rule in found.rules[: decided.rule + 1]:
        verb = "decides" if rule is found.rule else "does not match"
        line = "implicit last rule" if rule.line is None else f"line {rule.line}"
        lines.append(f"  {verb:<14} {rule.text}  ({line})")
        operands = [] if rule.condition is None else list(_operands(rule.condition, found))
        if rule.limit is not None:
            operands.append(rule.limit)
        values = dict.fromkeys(f"{o.text} = {o}" for o in operands if not o.is_constant)
        if values:
            lines.append(f"  {'':<14} [{', '.join(values)}]")
    return lines


def _size(decided: Outcome, blocks: int) -> str:
    """How much of a hit of so many blocks is loaded."""
    if not decided.blocks:
        return ""
    if decided.blocks < blocks:
        part = f"the first {decided.blocks} of {blocks} blocks"
    else:
        part = f"all {blocks} blocks" if blocks > 1 else "its one block"
    return f", {part} ({show(Fraction(decided.bytes), BYTES)})"


def _operands(condition: Condition, found: Trace) -> Iterator[Operand]:
    """The amounts that a condition compares, those of its lets included."""
    yield from condition.operands
    for part in condition.parts:
        yield from _operands(part, found)
    if condition.kind == "let":
        value = dict(found.lets)[condition.text]
        if isinstance(value, Condition):
            yield from _operands(value, found)
