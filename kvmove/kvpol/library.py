"""Where policies are found: by bare name among those that come with kvmove, by path anywhere else."""

from __future__ import annotations

import os
from importlib.resources import files
from pathlib import Path

from kvmove.errors import PolicyError
from kvmove.kvpol.limits import READ_BYTES, decode
from kvmove.kvpol.source import Source, printable, quoted
from kvmove.kvpol.suggest import did_you_mean, listed

SUFFIX = ".kvpol"


def shipped() -> list[str]:
    """The names of the policies that come with kvmove."""
    names = (entry.name for entry in files("kvmove.policies").iterdir())
    return sorted(name.removesuffix(SUFFIX) for name in names if name.endswith(SUFFIX))


def read(name_or_path: str | os.PathLike[str]) -> Source:
    """The text of a policy: `budgeted` is one that comes with kvmove, `./budgeted.kvpol` is a file.

    Raises:
        PolicyError: there is no such policy, or it is not a text.
    """
    name = os.fspath(name_or_path)
    if not name:
        raise PolicyError(f"a policy is named or has a path, and this is empty; kvmove comes with {listed(shipped())}")
    bare = isinstance(name_or_path, str) and not os.path.dirname(name) and not name.endswith(SUFFIX)
    if bare and name in shipped():
        return decode(files("kvmove.policies").joinpath(name + SUFFIX).read_bytes(), name + SUFFIX)
    path = Path(name)
    if bare and not path.exists():
        lines = [f"there is no policy {quoted(name)}", did_you_mean(name, shipped())]
        lines += [f"kvmove comes with {listed(shipped())}; a path names any other file"]
        raise PolicyError("\n  = help: ".join(line for line in lines if line))
    return read_file(path)


def read_file(path: Path) -> Source:
    """The text of the policy file `path`.

    Raises:
        PolicyError: the file cannot be read, or is not a text.
    """
    try:
        with path.open("rb") as f:
            data = f.read(READ_BYTES)  # enough to tell that a file is too large, however large it is
    except OSError as e:
        raise PolicyError(f"{printable(str(path))}: cannot be read: {(e.strerror or str(e)).lower()}") from None
    except ValueError:
        raise PolicyError(f"{quoted(str(path))} is no path") from None
    return decode(data, str(path))
