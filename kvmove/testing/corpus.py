"""Many policies, hits and steps at little cost, the same in every process.

Hypothesis draws and shrinks; that takes a hundred times as long as deciding. Where thousands of cases count, the
policies are drawn once in a process (`drawn_policies`), and hits and steps come from a seeded `random.Random`:
values at the ends of ranges, at what a policy has written, one beside it, or anywhere; unknown estimates; hits with
windows, chunks and partial tails.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from random import Random
from typing import Any

from hypothesis import HealthCheck, Phase, assume, given, settings

from kvmove import schema
from kvmove.errors import PolicyError
from kvmove.kvpol.policy import Policy
from kvmove.prefix import BlockSizes, GroupBytes
from kvmove.records import Hit, StepState
from kvmove.testing.edges import NO_EDGES, Edges
from kvmove.testing.records import hit_from, step_from
from kvmove.testing.texts import policies

_MOST = {"tokens": 1 << 20, "cached_tokens": 1 << 20, "compute_tokens": 1 << 20, "blocks": 4096}


@lru_cache(maxsize=4)
def drawn_policies(count: int = 150) -> tuple[Policy, ...]:
    """As many different policies as `kvmove.testing.policies` draws in `count` examples, the shortest text first."""
    found: dict[str, Policy] = {}

    @settings(
        max_examples=count, derandomize=True, database=None, deadline=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(policies())
    def draw(text: str) -> None:
        try:
            policy = Policy.parse(text)
        except PolicyError:  # a product of drawn factors may pass the bound of 2**128
            assume(False)
        else:
            found.setdefault(text, policy)

    draw()
    return tuple(found[text] for text in sorted(found, key=lambda text: (len(text), text)))


def random_hit(rng: Random, edges: Edges = NO_EDGES, *, max_bytes: int = schema.MAX_BYTES, request: str = "r0") -> Hit:
    """A hit; one in three is of blocks of stated sizes, and some can only be cut at some of their blocks."""
    values = {v.name: _value(rng, v, edges, min(_MOST.get(v.name, v.high), v.high)) for v in schema.HIT}
    values["bytes"] = min(values["bytes"] or 1, max_bytes)
    drawn = {"tokens", *(["prompt_tokens"] if rng.random() < 0.2 else [])}
    hit = hit_from(values, drawn, max_bytes, _MOST["tokens"], request)
    if rng.random() < 0.33:
        return _of_sizes(rng, hit, max_bytes)
    return replace(hit, cuts=_places(rng, hit.blocks)) if rng.random() < 0.2 else hit


def random_step(rng: Random, edges: Edges = NO_EDGES, *, beside: Sequence[Hit] = ()) -> StepState:
    """The state of a step; with hits `beside` it, its budget is often what some of them weigh, give or take one."""
    values = {v.name: _value(rng, v, edges, v.high) for v in schema.STEP}
    if beside and rng.random() < 0.8:
        some = rng.sample(list(beside), rng.randint(1, len(beside)))
        budget = sum(hit.bytes for hit in some) + rng.choice((-1, 0, 0, 1))
        values["budget"] = values["budget_remaining"] = min(max(budget, 0), schema.MAX_BYTES)
    return step_from(values, {"budget"})


def _value(rng: Random, v: schema.Variable, edges: Edges, most: int) -> int | None:
    if v.optional and rng.random() < 0.25:
        return None
    dice, written = rng.random(), edges.of(v, most)
    if written and dice < 0.5:
        return rng.choice(written)
    if dice < 0.6:
        return rng.choice((v.low, max(v.low, 0), most))
    # Every order of magnitude alike: a variable may be at home at 3 or at 3 billion.
    size = rng.getrandbits(rng.randint(1, max(1, most.bit_length())))
    return min(max(-size if v.low < 0 and rng.random() < 0.5 else size, v.low), most)


def _of_sizes(rng: Random, like: Hit, max_bytes: int) -> Hit:
    """A hit of blocks of stated sizes, which perhaps can be cut at some places only."""
    blocks = rng.randint(1, 12)
    block_tokens = rng.choice((1, 16, 64))
    # Three groups, and blocks that have as few tokens as one each.
    most = max(2, min(max_bytes // (3 * blocks), schema.MAX_BYTES_PER_TOKEN // 3))
    groups = [GroupBytes(rng.randint(1, most))]
    for _ in range(rng.randint(0, 2)):
        block_bytes = rng.randint(1, most)
        groups.append(GroupBytes(block_bytes, rng.choice((None, block_bytes, 2 * block_bytes, 2 * block_bytes + 7))))
    sizes = BlockSizes(block_tokens, tuple(groups))
    tokens = blocks * block_tokens - rng.randrange(block_tokens)
    is_partial = tokens < blocks * block_tokens
    num_bytes = sizes.bytes_of(blocks)
    if sizes.has_windows:
        num_bytes -= rng.randrange(min(num_bytes, most))  # a cut inside a block can move the window
    elif is_partial:
        num_bytes = rng.randint(sizes.bytes_of(blocks - 1) + 1, num_bytes)
    places = _places(rng, blocks) if rng.random() < 0.5 else None
    given_by_engine: dict[str, Any] = {v.attribute: getattr(like, v.attribute) for v in schema.HIT}
    compute_tokens = min(like.compute_tokens, _MOST["compute_tokens"])
    given_by_engine |= {
        "bytes": num_bytes, "tokens": tokens, "blocks": blocks, "compute_tokens": compute_tokens,
        "prompt_tokens": like.cached_tokens + tokens + compute_tokens,
    }  # fmt: skip
    return Hit(request=like.request, sizes=sizes, cuts=places, **given_by_engine)


def _places(rng: Random, blocks: int) -> tuple[int, ...]:
    """Some of the blocks after which a hit can be cut; none of them is the last."""
    return tuple(sorted(rng.sample(range(1, blocks), rng.randint(0, min(blocks - 1, 20)))))
