"""How many examples a second the strategies of `kvmove.testing` give hypothesis. Asked for: at least 500 each.

    python -m benchmarks.bench_strategies

Everything that hypothesis does for an example counts, and an empty test; the first examples, which import and build
what is kept, do not. CPU time of this process, so that other work on the machine disturbs little. `nothing` is a
strategy without a choice: what hypothesis itself costs.
"""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from kvmove import Policy
from kvmove.testing import hits, policies, situations, steps

EXAMPLES, RUNS, TARGET = 400, 5, 500


def examples_per_second(make: Callable[[], st.SearchStrategy[Any]], examples: int) -> float:
    """Draw so many examples once."""
    drawn = 0

    @settings(
        max_examples=examples, deadline=None, database=None, derandomize=True, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(make())
    def draw(_: Any) -> None:
        nonlocal drawn
        drawn += 1

    start = time.process_time()
    draw()
    return drawn / (time.process_time() - start)


def main() -> None:
    """Print the median and the spread of each."""
    budgeted = Policy.load("compute_aware")
    strategies: dict[str, Callable[[], st.SearchStrategy[Any]]] = {
        "hits()": hits,
        "steps()": steps,
        "situations()": situations,
        "situations(policy=...)": lambda: situations(policy=budgeted),
        "policies()": policies,
        "nothing": lambda: st.sampled_from([0, 1]),
    }
    print(f"{platform.processor() or platform.machine()}, Python {platform.python_version()}; examples a second")
    for name, make in strategies.items():
        examples_per_second(make, EXAMPLES // 4)
        rates = sorted(examples_per_second(make, EXAMPLES) for _ in range(RUNS))
        median = statistics.median(rates)
        is_control = name == "nothing"
        verdict = "" if is_control else f"  target {TARGET}: {'met' if median >= TARGET else 'missed'}"
        print(f"{name:<24}{median:>8.0f}  ({rates[0]:.0f} to {rates[-1]:.0f}){verdict}")


if __name__ == "__main__":
    main()
