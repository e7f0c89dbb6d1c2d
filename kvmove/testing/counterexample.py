"""How a hit and a step that break a claim are shown: what differs from the simplest, with units, ready to be tried."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING

from kvmove import schema
from kvmove.kvpol.given import shown
from kvmove.kvpol.units import BYTES, show
from kvmove.records import Hit, StepState
from kvmove.testing.claims import Asked, ask

if TYPE_CHECKING:
    from kvmove.kvpol.policy import Policy

# Without these a reader could not tell what the hit is.
_ALWAYS = frozenset({"bytes", "tokens", "blocks", "compute_tokens", "budget_remaining"})


def explain(claim: str, policies: Sequence[Policy], situations: Sequence[tuple[Hit, StepState]], how: str) -> str:
    """A message that says which claim is broken, by what, and what each policy asks for there."""
    reads = {v for policy in policies for v in _reads(policy)}
    lines = [claim]
    for hit, step in situations:
        lines.append("")
        lines.append(f"  hit:   {_fields(hit, schema.HIT, reads)}")
        lines += [f"         {part}" for part in _parts(hit)]
        lines.append(f"  step:  {_fields(step, schema.STEP, reads)}")
        for policy in policies:
            who = f"`{policy.name}`" if len(policies) > 1 else "asked"
            lines.append(f"  {who}: {_asked(policy, hit, ask(policy, hit, step))}")
    lines += ["", f"  ({how})"]
    return "\n".join(lines)


def _reads(policy: Policy) -> set[str]:
    from kvmove.testing.edges import edges_of

    return {v.name for v in edges_of(policy).reads}


def _fields(record: Hit | StepState, variables: tuple[schema.Variable, ...], reads: set[str]) -> str:
    """The values that the policy reads or that are not the simplest, as `kvmove decide` takes them."""
    kept = []
    for v in variables:
        value = getattr(record, v.attribute)
        simplest = None if v.optional else 0
        if v.name in _ALWAYS or v.name in reads or value != simplest:
            kept.append(f"{v.name}={shown(v, record)}")
    return ",".join(kept)


def _parts(hit: Hit) -> Iterator[str]:
    """What `kvmove decide` cannot be given: the sizes of the blocks, and where they can be cut."""
    if hit.sizes is not None:
        groups = []
        for group in hit.sizes.groups:
            window = "" if group.window_bytes is None else f", at most {show(Fraction(group.window_bytes), BYTES)}"
            groups.append(f"{show(Fraction(group.block_bytes), BYTES)} a block{window}")
        yield f"with {hit.sizes.block_tokens}tok a block, {' and '.join(groups)}"
    if hit.cuts is not None:
        yield f"which can be cut after {', '.join(map(str, hit.cuts)) or 'no'} blocks"


def _asked(policy: Policy, hit: Hit, asked: Asked) -> str:
    rule = policy.rules[asked.rule]
    where = "the implicit last rule" if rule.line is None else f"line {rule.line}: {' '.join(rule.text.split())}"
    load = ""
    if asked.blocks:
        load = f" {asked.blocks} of {hit.blocks} block{'s'[: hit.blocks != 1]}, {show(Fraction(asked.bytes), BYTES)},"
    return f"{asked.action}{load or ','} by {where}"
