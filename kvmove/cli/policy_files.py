"""The policy files that a command line names, one by one or as folders."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import typer

from kvmove.kvpol.library import SUFFIX
from kvmove.kvpol.source import quoted


def policy_files(names: Sequence[str]) -> list[str]:
    """What `names` name, each once: a folder stands for the policy files in it and below, in the order of names.

    Hidden folders, such as `.git`, are left out. What is no folder is passed on as it is.

    Raises:
        typer.BadParameter: a folder has no policy file.
    """
    found: dict[str, None] = {}
    for name in names:
        if not os.path.isdir(name):
            found[name] = None
            continue
        inside = sorted(_below(name))
        if not inside:
            raise typer.BadParameter(f"the folder {quoted(name)} has no {SUFFIX} file", param_hint="FILES...")
        found.update(dict.fromkeys(inside))
    return list(found)


def _below(folder: str) -> Iterator[str]:
    for parent, folders, files in os.walk(folder):
        folders[:] = [f for f in folders if not f.startswith(".")]
        yield from (str(Path(parent, file)) for file in files if file.endswith(SUFFIX))
