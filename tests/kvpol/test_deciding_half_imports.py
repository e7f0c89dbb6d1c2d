"""A process that only decides loads neither torch nor triton, and no parser before it parses."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import sys
import kvmove, kvmove.kvpol
assert not {"lark", "numpy", "typer", "rich", "kvmove.kvpol.findings"} & set(sys.modules), "imported too early"
policy = kvmove.Policy.load("compute_aware")
hit = kvmove.Hit(request="r", bytes=1, tokens=1, blocks=1, prompt_tokens=2, cached_tokens=0, compute_tokens=1)
step = kvmove.StepState(budget_bytes=1, budget_remaining_bytes=1)
assert policy.rules[policy.decide(hit, step)].action == "sync"
import kvmove.cli.check
assert not {"torch", "triton"} & set(sys.modules), "the deciding half imports torch"
"""


def test_deciding_half_imports_no_torch() -> None:
    """Importing kvmove, parsing, deciding and checking need neither torch nor triton."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_what_findings_are_made_of_is_there_when_asked_for() -> None:
    """`kvmove.kvpol` has every name that it lists, and says which it does not have."""
    import kvmove.kvpol

    for name in kvmove.kvpol.__all__:
        assert getattr(kvmove.kvpol, name).__name__ == name
    assert set(kvmove.kvpol.__all__) <= set(dir(kvmove.kvpol))
    with pytest.raises(AttributeError, match="no attribute 'Findingz'"):
        _ = kvmove.kvpol.Findingz
