"""Everything that `kvmove bench` measures, into `benchmarks/results/`: what is committed for a machine.

    python -m benchmarks.bench_gpu [SECTION ...] [--quick]

Writes `gpu-<machine>.json`, and with all sections also the figures, into `figures-<machine>/`. Sections or `--quick`
write `gpu-partial-<machine>.json` instead, so that a look never replaces a full result.
"""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys

import torch

from benchmarks import report
from kvmove.bench.machine import machine_name


def main() -> int:
    """Run `kvmove bench`. Returns its exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("section", nargs="*")
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("this benchmark needs a CUDA device")
    full = not (args.section or args.quick)
    command = [sys.executable, "-m", "kvmove", "bench", *args.section, *["--quick"] * args.quick]
    command += ["--output", str(report.default_path("gpu" if full else "gpu-partial"))]
    if full and importlib.util.find_spec("matplotlib"):
        command += ["--figures", str(report.RESULTS / f"figures-{machine_name()}")]
    return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
