"""Helpers for tests of kvmove and of code built on it. Needs the `test` extra (hypothesis)."""

from kvmove.testing.policies import policies
from kvmove.testing.records import hits, steps

__all__ = ["hits", "policies", "steps"]
