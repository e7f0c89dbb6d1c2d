"""The README's and the guides' examples run as they stand."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import kvmove

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def code_blocks(language: str) -> list[str]:
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)
    return [text for name, text in fenced if name == language]


def test_the_engine_quick_start_runs_and_moves_what_it_says() -> None:
    """The blocks that were stored come back, in the slots that the example names."""
    (example,) = code_blocks("python")
    names: dict[str, object] = {}
    # What the example leaves to its reader: something worth keeping in the cache.
    example = example.replace("layout = ", "torch.manual_seed(0)\nfor t in cache:\n    t.normal_()\nlayout = ", 1)
    exec(compile(example, "README.md", "exec"), names)
    mover, cache, ended = names["mover"], names["cache"], names["ended"]
    assert isinstance(mover, kvmove.Mover)
    assert isinstance(cache, list)
    assert isinstance(ended, list)
    assert sorted(r.job for r in ended) == [1, 2]
    for tensor in cache:
        assert tensor[:, 5].any()
        assert (tensor[:, 5] == tensor[:, 33]).all()
        assert (tensor[:, 9] == tensor[:, 7]).all()
    mover.close()
    mover.pool.close()


def test_the_policy_quick_starts_are_policies() -> None:
    """Both policies of the README are complete, and the longer one decides as its rules say."""
    one_line, longer = code_blocks("")
    assert kvmove.Policy.parse(one_line).warnings == ()
    policy = kvmove.Policy.parse(longer)
    assert policy.name == "small hits now, cheap ones again"
    hit = kvmove.Hit(
        request="r", bytes=1 << 20, tokens=512, blocks=1, prompt_tokens=1024, cached_tokens=0, compute_tokens=512
    )
    scheduler = kvmove.StepScheduler(policy)
    scheduler.begin_step()
    assert scheduler.decide(hit).action is kvmove.Action.SYNC


def test_the_commands_of_the_readme_exist() -> None:
    """Every `kvmove` and `make` command shown is one that there is."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    shown = "\n".join(code_blocks("sh"))
    for target in re.findall(r"^make ([\w-]+)", shown, flags=re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target
    commands = re.findall(r"^kvmove (\w+)", shown, flags=re.MULTILINE)
    assert commands
    for command in commands:
        subprocess.run([sys.executable, "-m", "kvmove", command, "--help"], check=True, capture_output=True, cwd=ROOT)


@pytest.mark.parametrize(
    "document", sorted(p.relative_to(ROOT).as_posix() for p in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
)
def test_links_between_documents_lead_somewhere(document: str) -> None:
    """A file that a document links to exists."""
    text = (ROOT / document).read_text(encoding="utf-8")
    for target in re.findall(r"\]\((?!https?://|#)([^)#]+)", text):
        assert ((ROOT / document).parent / target).exists(), f"{document} links to {target}"
