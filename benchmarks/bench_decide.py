"""M10: the cost of one decision, as a ratio to a Python call that does nothing.

    python -m benchmarks.bench_decide [--output PATH]

The policy has 4 rules, 8 comparisons and 2 arithmetic expressions over 10 variables, and the hit makes every
comparison be evaluated: each rule's last comparison fails, and the implicit last rule decides. The empty call is
`def empty(hit, step): return 0`, called with the same two arguments; both are timed by `timeit`, whose loop
counts on both sides. Short rounds of both are interleaved; the figure is the median of the rounds' ratios, the spread
half the distance between their quartiles. Beside it: the same for the policy `budgeted`, which most hits meet.

Before anything is measured, the compiled function is compared with the tree evaluator on 2,000 hits and steps.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable
from pathlib import Path
from timeit import Timer
from typing import Any

from benchmarks import report
from kvmove import Hit, Policy, StepState
from kvmove.bench.rows import Row
from kvmove.kvpol.evaluate import Evaluator

TARGET = 6.0  # times an empty call
CALLS = 10_000  # a round: a third of a millisecond, short beside what else the machine does
ROUNDS = 201

Clock = Callable[[], float]  # in seconds

POLICY = """
param small: tokens = 64tok
let async_cost = load_time + async_delay
@tiny     sync       if bytes <= budget_remaining and tokens <= small
@compute  recompute  if recompute_time < load_time
@worth    sync       if bytes <= budget_remaining and async_cost > 4 * load_time and waiting < 8
@busy     defer      if inflight_bytes + bytes > 16MiB and deferrals < 1
"""


def hit() -> Hit:
    """A hit for which every comparison of `POLICY` is evaluated, and no rule matches but the implicit last."""
    return Hit(
        request="r",
        bytes=4 << 20,
        tokens=512,
        blocks=32,
        prompt_tokens=8192,
        cached_tokens=4096,
        compute_tokens=3584,
        load_time_ns=80_000,
        recompute_time_ns=90_000,
        deferrals=1,
    )


def step() -> StepState:
    """The step that goes with `hit`."""
    return StepState(
        budget_bytes=64 << 20,
        budget_remaining_bytes=32 << 20,
        async_delay_ns=600_000_000,
        inflight_bytes=512 << 20,
        waiting=64,
    )


def check(policy: Policy) -> None:
    """Refuse to measure a function that decides something else than the evaluator."""
    evaluator = Evaluator(policy.analysis.file, policy.program.params)
    report.require(policy.decide(hit(), step()) == 4, "the measured hit does not get to the last rule")
    rng = random.Random(0)
    for _ in range(2000):
        h, s = random_situation(rng)
        report.require(policy.decide(h, s) == evaluator.rule(h, s), f"{h} {s}: not what the evaluator decides")


def random_situation(rng: random.Random) -> tuple[Hit, StepState]:
    """Any hit and step, in which estimates may be unknown."""

    def estimate() -> int | None:
        return rng.choice([None, rng.randrange(1 << rng.randrange(1, 40))])

    tokens, cached, compute = rng.randrange(16, 200), rng.randrange(100), rng.randrange(100)
    budget = rng.randrange(1 << 24)
    drawn = Hit(
        request="r",
        bytes=rng.randrange(1, 1 << 22),
        tokens=tokens,
        blocks=1,
        prompt_tokens=tokens + cached + compute,
        cached_tokens=cached,
        compute_tokens=compute,
        load_time_ns=estimate(),
        recompute_time_ns=estimate(),
        deferrals=rng.randrange(3),
    )
    return drawn, StepState(
        budget_bytes=budget,
        budget_remaining_bytes=rng.randrange(budget + 1),
        inflight_bytes=rng.randrange(1 << 25),
        async_delay_ns=estimate(),
        waiting=rng.randrange(16),
    )


def empty(hit: Any, step: Any) -> int:
    """The call to compare with."""
    return 0


def timer(function: Callable[[Any, Any], int], clock: Clock) -> Timer:
    """Times `function(hit, step)` as `python -m timeit` does; its loop counts for what it is compared with too."""
    return Timer("function(hit, step)", timer=clock, globals={"function": function, "hit": hit(), "step": step()})


def measure(
    decide: Callable[[Any, Any], int], clock: Clock = time.perf_counter
) -> tuple[list[float], list[float], list[float]]:
    """Each round's ratio, and the nanoseconds of one decision and of one empty call, by `clock`."""
    decision, nothing = timer(decide, clock), timer(empty, clock)
    decision.timeit(CALLS)  # the interpreter specialises the function's code in its first calls
    decisions, empties = [], []
    for _ in range(ROUNDS):
        empties.append(nothing.timeit(CALLS) / CALLS * 1e9)
        decisions.append(decision.timeit(CALLS) / CALLS * 1e9)
    return [d / e for d, e in zip(decisions, empties, strict=True)], decisions, empties


def main() -> None:
    """Check, measure and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--output", type=Path, default=report.default_path("decide"))
    output = parser.parse_args().output
    policy = Policy.parse(POLICY)
    check(policy)
    ratios, decisions, empties = measure(policy.decide)
    usual, _, _ = measure(Policy.load("budgeted").decide)
    report.write(
        output,
        [
            Row.of_runs("M10", [ratios], "x an empty call", at_most=TARGET),
            Row.of("budgeted", usual, "x an empty call"),
            Row.of("one decision", decisions, "ns"),
            Row.of("one empty call", empties, "ns"),
        ],
    )


if __name__ == "__main__":
    main()
