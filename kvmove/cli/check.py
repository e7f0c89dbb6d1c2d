"""`kvmove check`: say what is wrong in policy files, without an engine, a GPU or torch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kvmove.errors import PolicyError
from kvmove.kvpol.analyse import Analysis, analyse
from kvmove.kvpol.findings import Finding
from kvmove.kvpol.library import read_file
from kvmove.kvpol.render import render

OK, FOUND, UNUSABLE = 0, 1, 2


def check(
    files: Annotated[list[Path], typer.Argument(help="Policy files (.kvpol).", metavar="FILES...", show_default=False)],
    strict: Annotated[
        bool,
        typer.Option(
            "--strict",
            help="Fail on warnings too; want the last rule written; say where an unknown estimate decides.",
        ),
    ] = False,
) -> None:
    """Check policy files: names, units, exactness, bounds, rules that cannot be reached.

    Exit status 0: no errors. 1: errors (with --strict: warnings too). 2: a file is missing or is not a text.
    """
    worst = OK
    for path in files:
        worst = max(worst, _check_file(path, strict))
    if worst:
        raise typer.Exit(worst)


def _check_file(path: Path, strict: bool) -> int:
    try:
        source = read_file(path)
    except PolicyError as e:
        _print_error(str(e))
        return UNUSABLE
    try:
        analysis = analyse(source, strict=strict)
    except PolicyError as e:
        _print_block(str(e), "error")
        return FOUND
    for finding in analysis.findings:
        _print_block(render(finding, source), str(finding.severity))
    failing = [f for f in analysis.findings if strict or f.is_error]
    typer.echo(f"{path}: {_summary(analysis, failing)}")
    return FOUND if failing else OK


def _summary(analysis: Analysis, failing: list[Finding]) -> str:
    errors = sum(f.is_error for f in analysis.findings)
    warnings = len(analysis.findings) - errors
    counts = [_count(n, word) for n, word in ((errors, "error"), (warnings, "warning")) if n]
    verdict = "failed" if failing else f"ok, {_count(sum(1 for _ in analysis.file.rules), 'rule')}"
    return ", ".join([verdict, *counts])


def _count(n: int, word: str) -> str:
    return f"{n} {word}" if n == 1 else f"{n} {word}s"


def _print_error(message: str) -> None:
    typer.secho(f"error: {message}", err=True)


def _print_block(text: str, severity: str) -> None:
    """Print a finding; on a terminal its first line and its carets are coloured. An empty line follows."""
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, soft_wrap=True, emoji=False, markup=False)
    colour = "red" if severity == "error" else "yellow"
    shown = Text(text)
    shown.stylize(f"bold {colour}", 0, len(severity))
    shown.highlight_regex(r"(?m)^ *\| *\^+$", colour)
    shown.highlight_regex(r"(?m)^ *= (help|note):", "bold cyan")
    console.print(shown)
    console.print()
