"""What figures depend on: the machine, and the commit that was measured."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[2]


def machine() -> dict[str, Any]:
    """Processor, cores this process may use, system, Python, and the GPU if torch is loaded."""
    facts: dict[str, Any] = {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }
    # Looked up, not imported: a benchmark of the deciding half runs without torch.
    torch = sys.modules.get("torch")
    if torch is not None:
        facts["torch"] = torch.__version__
        if torch.cuda.is_available():
            facts["gpu"] = torch.cuda.get_device_name()
            facts["gpus"] = torch.cuda.device_count()
            facts["cuda"] = torch.version.cuda
            facts["driver"] = _first_line(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"])
    triton = sys.modules.get("triton")
    if triton is not None:
        facts["triton"] = triton.__version__
    return facts


def machine_name() -> str:
    """A short file-name part for this machine: the GPU's name where torch sees one, else the processor's."""
    facts = machine()
    name = re.sub(r"\([^)]*\)|@.*$|\b(cpu|processor)\b", " ", facts.get("gpu", facts["cpu"]).lower())
    return re.sub(r"[^a-z0-9]+", "-", name).strip("-") or "unknown"


def commit() -> str | None:
    """The commit measured, with `-dirty` when tracked files differ from it; None where there is no history.

    A copy of the tree without its history can name the commit in the environment variable `KVMOVE_COMMIT`.
    """
    named = os.environ.get("KVMOVE_COMMIT")
    if named:
        return named
    # An installed package may lie inside somebody else's repository.
    if not (_ROOT / ".git").exists():
        return None
    head = _first_line(["git", "-C", str(_ROOT), "rev-parse", "--short=12", "HEAD"])
    if head is None:
        return None
    # The results themselves are tracked; writing them must not make the next run look like another program.
    changes = ["git", "-C", str(_ROOT), "status", "--porcelain", "-uno", "--", ".", ":!benchmarks/results"]
    return f"{head}-dirty" if _first_line(changes) else head


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()


def _first_line(command: list[str]) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.splitlines()[0].strip() if done.stdout.strip() else None
