"""One process either interprets the Triton kernels or compiles them: Triton decides when a kernel is imported.

`pytest` interprets them (any machine); `pytest -m gpu` compiles them and needs a CUDA device.
"""

from __future__ import annotations

import os
import sys

import pytest
from hypothesis import settings

settings.register_profile("kvmove", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("kvmove")


def pytest_configure(config: pytest.Config) -> None:
    if config.option.markexpr != "gpu":
        assert "kvmove.kernels.pages" not in sys.modules
        os.environ["TRITON_INTERPRET"] = "1"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.option.markexpr == "gpu":
        import torch

        reason = None if torch.cuda.is_available() else "no CUDA device"
    else:
        reason = "this process interprets the kernels; run `pytest -m gpu`"
    if reason:
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason=reason))
