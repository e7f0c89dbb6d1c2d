"""What every benchmark writes: the machine, the commit and its rows, as one JSON file under `benchmarks/results/`.

A benchmark checks correctness first (`require`), measures, makes a `row` of each figure, and hands the rows to
`write`:

    report.require(compiled == expected, "the compiled policy differs from the evaluator")
    rows = [report.row("M10", 4.6, 0.1, 6.0, "x an empty call", ok=True)]
    report.write(report.default_path("decide"), rows)
"""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"

Row = dict[str, Any]


def require(correct: bool, what: str) -> None:
    """End the benchmark with exit status 1 unless `correct`: a fast wrong answer is no result."""
    if not correct:
        raise SystemExit(f"not measured, because the result is wrong: {what}")


def row(id: str, value: float, spread: float, target: float | None, unit: str, ok: bool | None) -> Row:
    """One figure: its `value` and `spread` (half the distance between the quartiles) in `unit`.

    `target` and `ok` are None for a figure that is reported without a promise.
    """
    return {"id": id, "value": value, "spread": spread, "target": target, "unit": unit, "ok": ok}


def machine() -> dict[str, Any]:
    """What the figures depend on: processor, cores this process may use, Python, and the GPU if torch is loaded."""
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
    """The commit measured, with `-dirty` when tracked files differ from it.

    A copy of the tree without its history can name the commit in the environment variable `KVMOVE_COMMIT`.
    """
    named = os.environ.get("KVMOVE_COMMIT")
    if named:
        return named
    head = _first_line(["git", "-C", str(ROOT), "rev-parse", "--short=12", "HEAD"])
    if head is None:
        return None
    # The results themselves are tracked; writing them must not make the next run look like another program.
    changes = ["git", "-C", str(ROOT), "status", "--porcelain", "-uno", "--", ".", ":!benchmarks/results"]
    return f"{head}-dirty" if _first_line(changes) else head


def default_path(thing: str) -> Path:
    """`benchmarks/results/<thing>-<machine>.json`."""
    return RESULTS / f"{thing}-{machine_name()}.json"


def write(path: Path, rows: Sequence[Row]) -> None:
    """Print the rows and write them to `path` with the machine and the commit.

    Raises:
        ValueError: there are no rows, or two have the same id.
    """
    ids = [r["id"] for r in rows]
    if not ids or len(set(ids)) != len(ids):
        raise ValueError(f"a report needs rows with different ids, got {ids}")
    facts = machine()
    document = {"machine": facts, "commit": commit(), "rows": list(rows)}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    print(", ".join(f"{key} {value}" for key, value in facts.items()))
    for r in rows:
        verdict = "" if r["ok"] is None else ("  met" if r["ok"] else "  MISSED")
        target = "" if r["target"] is None else f"  target {r['target']:g}"
        print(f"{r['id']:32} {r['value']:10.4g} ± {r['spread']:.2g} {r['unit']}{target}{verdict}")
    print(f"wrote {path}")


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
