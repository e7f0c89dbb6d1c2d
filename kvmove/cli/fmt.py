"""`kvmove fmt`: give policy files their one layout."""

from __future__ import annotations

import difflib
import errno
import os
import shutil
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from kvmove.cli.policy_files import policy_files
from kvmove.errors import PolicyError
from kvmove.kvpol.format import format_text
from kvmove.kvpol.limits import READ_BYTES, decode
from kvmove.kvpol.source import printable

OK, WOULD_CHANGE, UNUSABLE = 0, 1, 2


def fmt(
    files: Annotated[
        list[str],
        typer.Argument(
            help="Policy files (.kvpol), or folders of them; - formats standard input to standard output.",
            metavar="FILES...",
            show_default=False,
        ),
    ],
    check: Annotated[bool, typer.Option("--check", help="Write nothing; say what would change.")] = False,
    diff: Annotated[bool, typer.Option("--diff", help="Write nothing; print what would change as a diff.")] = False,
) -> None:
    """Lay policy files out: columns aligned, long conditions wrapped, comments kept.

    Exit status 0: done, or nothing to do. 1: with --check or --diff, a file would change. 2: a file cannot be read,
    parsed or written; it is left as it is.
    """
    worst = OK
    for name in policy_files(files):
        worst = max(worst, _format_file(name, check=check, diff=diff))
    if worst:
        raise typer.Exit(worst)


def _format_file(name: str, *, check: bool, diff: bool) -> int:
    shown = "<stdin>" if name == "-" else name
    try:
        data = _read(name)
        before = decode(data, shown).text
        after = format_text(before, name=shown)
        changes = after.encode() != data
        if not check and not diff:
            if name == "-":
                sys.stdout.write(after)
            elif changes:
                _replace(Path(name), after.encode())
                typer.echo(f"{printable(name)}: formatted", err=True)
            return OK
    except OSError as e:
        typer.echo(f"error: {printable(shown)}: {(e.strerror or str(e)).lower()}", err=True)
        return UNUSABLE
    except PolicyError as e:
        typer.echo(str(e) if e.findings else f"error: {e}", err=True)
        return UNUSABLE
    if diff:
        sys.stdout.writelines(_diff(before, after, printable(shown)))
    if changes:
        typer.echo(f"{printable(shown)}: would be formatted", err=True)
    return WOULD_CHANGE if changes else OK


def _read(name: str) -> bytes:
    """The first bytes of the file, enough to tell that it is too large."""
    if name == "-":
        return sys.stdin.buffer.read(READ_BYTES)
    if os.path.exists(name) and not os.path.isfile(name):
        raise OSError("neither a file nor a folder")  # a pipe could not be replaced, and - is for it
    with open(name, "rb") as file:
        return file.read(READ_BYTES)


def _replace(path: Path, data: bytes) -> None:
    """Write a file so that readers see the old text or the new, never half of one. Links, mode and owner stay.

    Raises:
        OSError: the file is read-only, or its folder cannot be written; the file is as it was.
    """
    target = path.resolve()
    if not os.access(target, os.W_OK):
        raise PermissionError(errno.EACCES, "cannot be written; change its mode, or pass it as standard input")
    owner = target.stat()
    descriptor, temporary = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(descriptor)
        with suppress(OSError):  # only root may give a file away
            os.chown(temporary, owner.st_uid, owner.st_gid)
        shutil.copymode(target, temporary)
        os.replace(temporary, target)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise


def _diff(before: str, after: str, name: str) -> list[str]:
    def lines(text: str) -> list[str]:
        return [printable(line) + "\n" for line in text.removesuffix("\n").split("\n")] if text else []

    return list(difflib.unified_diff(lines(before), lines(after), name, f"{name} (formatted)"))
