"""The policies that a command line names, each under a label of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import typer

from kvmove.kvpol import Policy
from kvmove.kvpol.source import printable, quoted


def load_policies(names: Sequence[str], params: Mapping[str, str]) -> dict[str, Policy]:
    """The policies by label: the name that a policy has, or where two share it, what the command line calls them.

    Each gets the params that it has; every policy has `budget`. A param that none has is an error.

    Raises:
        PolicyError: a policy cannot be used, or a param is unknown to all of them or has the wrong unit.
        typer.BadParameter: a policy is named twice.
    """
    for name, times in Counter(names).items():
        if times > 1:
            raise typer.BadParameter(
                f"{quoted(name)} is named twice; one replay of it is enough", param_hint="--policy"
            )
    plain = [Policy.load(name) for name in names]
    known = {"budget"}.union(*(policy.params for policy in plain))
    unknown = params.keys() - known
    loaded = []
    for name, policy in zip(names, plain, strict=True):
        has = policy.params.keys() | {"budget"} | unknown  # an unknown one makes the policy say what it has instead
        loaded.append(Policy.load(name, {key: value for key, value in params.items() if key in has}))
    shared = Counter(policy.name for policy in loaded)
    return {
        printable(policy.name if shared[policy.name] == 1 else name): policy
        for name, policy in zip(names, loaded, strict=True)
    }
