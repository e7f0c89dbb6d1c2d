"""`kvmove check`: say what is wrong in policy files, without an engine, a GPU or torch."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvmove.cli.policy_files import policy_files
from kvmove.errors import PolicyError
from kvmove.kvpol.library import read_file
from kvmove.kvpol.limits import READ_BYTES, decode
from kvmove.kvpol.reports import FileReport
from kvmove.kvpol.selection import Selection, UnknownCode
from kvmove.kvpol.source import Source, printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvmove.kvpol.findings import Finding

# The checker is imported when a file is checked: every other command imports this module too.

OK, FOUND, UNUSABLE = 0, 1, 2


class Format(StrEnum):
    """How to print what was found."""

    PRETTY = "pretty"
    JSON = "json"
    GITHUB = "github"
    SARIF = "sarif"


@dataclass(frozen=True, slots=True)
class _Checked:
    """One file with what was found in it, and what that means for the exit status."""

    report: FileReport
    status: int
    rules: int = 0
    errors_left_out: int = 0


def check(
    files: Annotated[
        list[str],
        typer.Argument(
            help="Policy files (.kvpol), or folders of them; - is standard input.",
            metavar="FILES...",
            show_default=False,
        ),
    ],
    strict: Annotated[
        bool,
        typer.Option(
            "--strict",
            help="Fail on warnings too; want the last rule written; say where an unknown estimate decides.",
        ),
    ] = False,
    select: Annotated[
        list[str] | None,
        typer.Option(
            help="Report these codes only, such as KV2,KV301; a prefix stands for all that begin so. Repeatable.",
            metavar="CODE,...",
            show_default=False,
        ),
    ] = None,
    ignore: Annotated[
        list[str] | None,
        typer.Option(
            help="Leave these codes out; of a code that --select names too, the longer prefix counts. Repeatable.",
            metavar="CODE,...",
            show_default=False,
        ),
    ] = None,
    format: Annotated[
        Format, typer.Option(help="How to print it: for people, as JSON, as annotations of GitHub Actions, as SARIF.")
    ] = Format.PRETTY,
) -> None:
    """Check policy files: names, units, exactness, bounds, rules that cannot be reached.

    Exit status 0: no errors. 1: errors (with --strict: warnings too). 2: a file is missing or is not a text, or an
    option cannot be used. What --select and --ignore leave out does not count; a policy with an error cannot be used
    all the same.
    """
    try:
        selection = Selection.of(select or (), ignore or ())
    except UnknownCode as e:
        raise typer.BadParameter(str(e), param_hint="--select, --ignore") from None
    all_checked: list[_Checked] = []
    for name in policy_files(files):
        checked = _check_file(name, strict, selection)
        all_checked.append(checked)
        if checked.report.problem is not None:
            typer.secho(f"error: {checked.report.problem}", err=True)
        elif format is Format.PRETTY:
            _print_pretty(checked)
    if format is not Format.PRETTY:
        _print_for_programs(format, [c.report for c in all_checked])
    worst = max(c.status for c in all_checked)
    if worst:
        raise typer.Exit(worst)


def _check_file(name: str, strict: bool, selection: Selection) -> _Checked:
    try:
        source = _read(name)
    except PolicyError as e:
        return _Checked(FileReport(name, None, problem=str(e)), UNUSABLE)
    rules, findings = _findings(source, strict or selection.wants_strict)
    reported, left_out = selection.split(findings, strict=strict)
    failing = any(strict or f.is_error for f in reported)
    errors_left_out = sum(f.is_error for f in left_out)
    return _Checked(FileReport(name, source, reported), FOUND if failing else OK, rules, errors_left_out)


def _read(name: str) -> Source:
    if name == "-":
        return decode(sys.stdin.buffer.read(READ_BYTES), "<stdin>")
    return read_file(Path(name))


def _findings(source: Source, strict: bool) -> tuple[int, Sequence[Finding]]:
    """How many rules the policy has, and what is found in it."""
    from kvmove.kvpol.analyse import analyse

    try:
        analysis = analyse(source, strict=strict)
    except PolicyError as e:  # over the size limit, which is a finding
        return 0, e.findings
    return sum(1 for _ in analysis.file.rules), analysis.findings


def _print_pretty(checked: _Checked) -> None:
    from kvmove.kvpol.render import render

    report = checked.report
    assert report.source is not None
    for finding in report.findings:
        _print_block(render(finding, report.source), str(finding.severity))
    typer.echo(f"{printable(report.source.name)}: {_summary(checked)}")


def _summary(checked: _Checked) -> str:
    findings, left_out = checked.report.findings, checked.errors_left_out
    errors = sum(f.is_error for f in findings)
    warnings = len(findings) - errors
    counts = [_count(n, word) for n, word in ((errors, "error"), (warnings, "warning")) if n]
    if left_out:
        counts.append(f"{_count(left_out, 'error')} left out")
    if checked.status:
        verdict = "failed"
    else:
        verdict = "cannot be used" if left_out else f"ok, {_count(checked.rules, 'rule')}"
    return ", ".join([verdict, *counts])


def _count(n: int, word: str) -> str:
    return f"{n} {word}" if n == 1 else f"{n} {word}s"


def _print_for_programs(format: Format, reports: Sequence[FileReport]) -> None:
    if format is Format.GITHUB:
        from kvmove.kvpol.reports import as_annotations

        for line in as_annotations(reports):
            typer.echo(line)
    elif format is Format.JSON:
        from kvmove.kvpol.reports import as_json

        typer.echo(json.dumps(as_json(reports), indent=2))
    else:
        from kvmove.kvpol.sarif import as_sarif

        typer.echo(json.dumps(as_sarif(reports), indent=2))


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
