"""Test kits: for policies, and for code that moves KV.

The policy half needs the `test` extra (hypothesis), and with the extra `prove` it proves what it can:
strategies `hits`, `steps`, `situations` and `policies`, and assertions about every hit and step. Nothing is imported
before it is used: the pytest plugin and hypothesis's entry point live here too.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvmove.testing.assertions import (
        assert_always,
        assert_budget_respected,
        assert_equivalent,
        assert_monotone,
    )
    from kvmove.testing.records import Situation, hits, situations, steps
    from kvmove.testing.texts import policies

_HOME = {
    "Situation": "records",
    "assert_always": "assertions",
    "assert_budget_respected": "assertions",
    "assert_equivalent": "assertions",
    "assert_monotone": "assertions",
    "hits": "records",
    "policies": "texts",
    "situations": "records",
    "steps": "records",
}

__all__ = [
    "Situation",
    "assert_always",
    "assert_budget_respected",
    "assert_equivalent",
    "assert_monotone",
    "hits",
    "policies",
    "situations",
    "steps",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
