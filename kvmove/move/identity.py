"""What measured times hold for: the GPU's model, its driver, and kvmove's version."""

from __future__ import annotations

import re
import subprocess
from contextlib import suppress
from pathlib import Path

import torch

from kvmove import __version__

_DRIVER_FILE = Path("/proc/driver/nvidia/version")


def identity(device: torch.device) -> dict[str, str]:
    """`gpu`, `driver` and `version`, as `Profile.refuse_elsewhere` takes them; `cpu` and `none` without CUDA."""
    if device.type != "cuda":
        return {"gpu": "cpu", "driver": "none", "version": __version__}
    return {"gpu": torch.cuda.get_device_name(device), "driver": _driver(), "version": __version__}


def _driver() -> str:
    with suppress(OSError):
        found = re.search(r"Kernel Module.*?\s(\d+(?:\.\d+)+)", _DRIVER_FILE.read_text(encoding="utf-8"))
        if found:
            return found[1]
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    with suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20)
        if done.stdout.strip():
            return done.stdout.split()[0]
    return "unknown"
