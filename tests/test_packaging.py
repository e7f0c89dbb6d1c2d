"""The package: what a wheel holds, what importing it costs, and that the tree is whole."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import kvmove

ROOT = Path(__file__).resolve().parent.parent
MAPPED = {"error_pages": "docs/errors", "kernels": "kernels", "grammar": "grammar", "policies": "policies"}


@pytest.mark.parametrize("folder", MAPPED)
def test_the_links_to_the_top_level_folders_are_there(folder: str) -> None:
    """An archive download or another file system can lose them; without them the tree only works installed."""
    link = ROOT / "kvmove" / folder
    to = f"../{MAPPED[folder]}"
    assert link.is_symlink(), f"kvmove/{folder} has to be a link to {to}; run: ln -s {to} kvmove/{folder}"
    assert link.resolve() == ROOT / MAPPED[folder]


def test_the_wheel_holds_the_tree_and_nothing_else(tmp_path: Path) -> None:
    """A subpackage or data file that pyproject forgets would be missing silently."""
    source = tmp_path / "source"
    tracked = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if tracked.returncode:
        pytest.skip("not a git checkout: what belongs to the tree is not known")
    # A copy, so that building leaves no build/ behind and cannot be fooled by an old one.
    for name in tracked.stdout.splitlines():
        path, copy = ROOT / name, source / name
        if not path.exists() or path.is_dir():  # deleted, or a link to a folder
            continue
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
    build = [
        sys.executable,
        "-m",
        "build",
        "--wheel",
        "--no-isolation",
        "--outdir",
        str(tmp_path / "dist"),
        str(source),
    ]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    held = {n for n in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in n}

    def files(folder: Path, prefix: str) -> set[str]:
        suffixes = {".py", ".typed", ".lark", ".kvpol", ".toml"}
        pages = folder.name == "errors"
        found = (p for p in folder.rglob("*") if p.suffix in suffixes or (pages and p.match("KV*.md")))
        found = (p for p in found if "__pycache__" not in p.parts)
        return {f"{prefix}/{p.relative_to(folder)}" for p in found}

    expected = {n for n in files(ROOT / "kvmove", "kvmove") if n.split("/")[1] not in MAPPED}
    for name, folder in MAPPED.items():
        expected |= files(ROOT / folder, f"kvmove/{name}")
    assert held == expected


DECIDING = """
import sys
import kvmove
from kvmove import schema, records
policy = kvmove.Policy.load("budgeted")
scheduler = kvmove.StepScheduler(policy)
tier = kvmove.HostTier(8)
scheduler.begin_step()
hit = kvmove.Hit(request="r", bytes=1, tokens=1, blocks=1, prompt_tokens=2, cached_tokens=0, compute_tokens=1)
assert scheduler.decide(hit).action is kvmove.Action.SYNC
blocks = tier.prepare_store(["k"]).blocks
scheduler.admit("r", blocks, [0])
scheduler.end_step()
wrong = [m for m in ("torch", "triton") if m in sys.modules]
assert not wrong, wrong
"""


def test_the_deciding_half_imports_no_torch() -> None:
    """A scheduler process has no GPU and should not pay for its libraries."""
    subprocess.run([sys.executable, "-c", DECIDING], check=True, cwd=ROOT)


def test_importing_kvmove_imports_nothing_heavy() -> None:
    """Neither torch nor numpy nor the parser is loaded before it is used."""
    code = "import sys, kvmove; print(*[m for m in ('torch', 'triton', 'numpy', 'lark', 'rich') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.split() == []


def test_every_public_name_exists_and_is_documented() -> None:
    """`kvmove.__all__` is what the package offers, and each says what it is."""
    for name in kvmove.__all__:
        assert getattr(kvmove, name).__doc__, name
    assert set(kvmove.__all__) <= set(dir(kvmove))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = kvmove.nothing
