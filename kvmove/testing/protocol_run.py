"""Run the protocol's state machine for as long as wanted.

    python -m kvmove.testing.protocol_run [--rules 100000] [--seed 0]

Seeds are run one after the other, each with machines of its own, until so many rules were run. The first failure ends
it, shrunk to few rules, with exit status 1; the same seed finds it again.
"""

from __future__ import annotations

import argparse
import sys
from time import monotonic

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from kvmove.testing.protocol_machine import ProtocolMachine

MACHINES = 25  # for each seed
RULES_PER_MACHINE = 50  # at most

SETTINGS = settings(
    max_examples=MACHINES, stateful_step_count=RULES_PER_MACHINE, deadline=None, database=None,
    phases=[Phase.generate, Phase.shrink], suppress_health_check=list(HealthCheck),
)  # fmt: skip


def run(rules: int, first_seed: int) -> int:
    """Run seeds from the first on until `rules` rules were run; returns how many seeds that took."""
    totals = ProtocolMachine.totals
    began, number = monotonic(), first_seed
    while totals["rules"] < rules:
        run_state_machine_as_test(seed(number)(ProtocolMachine), settings=SETTINGS)
        number += 1
        if (number - first_seed) % 10 == 0:
            print(f"{number - first_seed} seeds, {totals['rules']} rules, {monotonic() - began:.0f} s", flush=True)
    return number - first_seed


def main() -> int:
    """Run, and say what was done."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--rules", type=int, default=100_000, help="rules to run, of all seeds together")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    given = parser.parse_args()
    num_seeds = run(given.rules, given.seed)
    last = given.seed + num_seeds - 1
    print(f"green: {num_seeds} seeds ({given.seed} to {last})")
    for name, count in ProtocolMachine.totals.items():
        print(f"{count:>12,} {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
