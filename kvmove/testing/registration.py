"""What hypothesis calls when it is imported: `from_type(Hit)` and what is built on it then draw kvmove's records.

It is named in the entry point `hypothesis` of the package, so it imports as little as it can: the records, and no
strategy before one is drawn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy


def register() -> None:
    """Tell hypothesis how to draw `Hit`, `StepState` and `Policy`."""
    from hypothesis.strategies import register_type_strategy

    from kvmove.kvpol.policy import Policy
    from kvmove.records import Hit, StepState

    # Functions of the type, which hypothesis calls when it first draws one.
    register_type_strategy(Hit, _hits)
    register_type_strategy(StepState, _steps)
    register_type_strategy(Policy, _policies)


def _hits(_type: Any) -> SearchStrategy[Any]:
    from kvmove.testing.records import hits

    return hits()


def _steps(_type: Any) -> SearchStrategy[Any]:
    from kvmove.testing.records import steps

    return steps()


def _policies(_type: Any) -> SearchStrategy[Any]:
    from kvmove.kvpol.policy import Policy
    from kvmove.testing.texts import policies

    return policies().map(Policy.parse)
