"""`kvmove bench`: measure the data plane on this machine's GPU; `kvmove bench figures` draws committed results."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from kvmove.bench.plan import FULL, KIB, MIB, QUICK, Plan, Shape
from kvmove.bench.sections import SECTIONS
from kvmove.errors import Refused
from kvmove.kvpol.source import printable, quoted

if TYPE_CHECKING:
    from kvmove.bench.results import Report

FAILED = 1
_DRAWN = "bandwidth, interference, overlap and programs"
_WIDTH = 140  # columns of a table that goes to a file: nothing wraps there
_MOST_PAGE_KIB, _MOST_SIZE_MIB = 64 * 1024, 256 * 1024


class _Bench(TyperGroup):
    """`kvmove bench SECTION...` is `kvmove bench run SECTION...`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or args[0] not in self.commands:
            args = ["run", *args]
        return super().parse_args(ctx, args)


bench = typer.Typer(cls=_Bench, rich_markup_mode=None)


@bench.callback()
def _bench() -> None:
    """Measure on this machine's GPU, and draw what was measured."""


@bench.command(
    "run",
    epilog="Sections: " + "; ".join(f"{name}: {what}" for name, what in SECTIONS.items()) + ".  "
    "`kvmove bench figures RESULTS` draws a report that was written before.",
)
def run_sections(
    section: Annotated[
        list[str] | None,
        typer.Argument(help="What to measure; everything if none is named.", metavar="SECTION"),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer shapes, repetitions and runs: a look.")] = False,
    output: Annotated[Path | None, typer.Option(help="JSON file to write.", metavar="FILE", show_default=False)] = None,
    figures: Annotated[
        Path | None,
        typer.Option(help="Folder for figures (SVG; needs kvmove[report]).", metavar="DIR", show_default=False),
    ] = None,
    page_kib: Annotated[
        str | None,
        typer.Option(help="Page sizes of `bandwidth`, such as 0.5625,4,16.", metavar="N,...", show_default=False),
    ] = None,
    sizes_mib: Annotated[
        str | None,
        typer.Option(help="Sizes of `bandwidth`, such as 96,768.", metavar="N,...", show_default=False),
    ] = None,
) -> None:
    """Measure loads and stores on this machine's GPU beside a contiguous DMA of the same bytes.

    Every path is checked byte by byte before it is measured. Missing a target is a result, not an error.

    Exit status 0: everything was measured. 1: something could not be, or copied wrongly; its rows are missing.
    2: there is no CUDA device, or an option cannot be used.
    """
    names = _sections(section or [])
    plan = _plan(quick, page_kib, sizes_mib)
    if figures is not None:
        _refuse_figures(names)
    from kvmove.bench.device import CudaDevice
    from kvmove.bench.run import run
    from kvmove.bench.session import Session

    _refuse_without_cuda()
    with _progress() as tell:
        report = run(names, Session(CudaDevice(), plan, tell=tell))
    finish(report, output, figures)


@bench.command("figures")
def draw_figures(
    results: Annotated[Path, typer.Argument(help="A file that `kvmove bench --output` wrote.", metavar="RESULTS")],
    output: Annotated[Path, typer.Option(help="Folder for the SVG files.", metavar="DIR")] = Path("figures"),
) -> None:
    """Draw a report that was written before. Needs no GPU.

    Exit status 0: drawn. 2: the file cannot be used, or matplotlib is missing.
    """
    from kvmove.bench.results import read

    if not _draw(read(results), output):
        raise Refused(f"{printable(str(results))}: nothing to draw; measure at least one of the sections {_DRAWN}")


def finish(report: Report, output: Path | None, figures: Path | None) -> None:
    """Print, write and draw a report.

    Raises:
        typer.Exit: something could not be measured.
    """
    from rich.console import Console

    from kvmove.bench.table import tables

    console = Console(highlight=False, width=None if sys.stdout.isatty() else _WIDTH)
    console.print(*tables(report), sep="\n")
    if output is not None:
        report.write(output)
        typer.echo(f"{printable(str(output))}: {len(report.rows)} rows", err=True)
    for failure in report.failures:
        typer.echo(f"not measured: {printable(failure)}", err=True)
    if figures is not None:
        _draw(report, figures)
    if report.failures:
        raise typer.Exit(FAILED)


def _draw(report: Report, folder: Path) -> bool:
    from kvmove.bench.figures import draw

    made = draw(report, folder)
    for path in made:
        typer.echo(printable(str(path)), err=True)
    return bool(made)


def _sections(named: list[str]) -> list[str]:
    for name in named:
        if name not in SECTIONS:
            raise typer.BadParameter(
                f"{quoted(name)} is no section; choose from: {', '.join(SECTIONS)}", param_hint="SECTION"
            )
    return list(dict.fromkeys(named)) or list(SECTIONS)


def _plan(quick: bool, page_kib: str | None, sizes_mib: str | None) -> Plan:
    plan = QUICK if quick else FULL
    if page_kib is not None:
        pages = [round(KIB * n) for n in _numbers(page_kib, "--page-kib", _MOST_PAGE_KIB)]
        plan = replace(plan, shapes=tuple(Shape.for_page(page) for page in dict.fromkeys(pages)))
    if sizes_mib is not None:
        sizes = [round(MIB * n) for n in _numbers(sizes_mib, "--sizes-mib", _MOST_SIZE_MIB)]
        plan = replace(plan, sizes_bytes=tuple(dict.fromkeys(sizes)))
    return plan


def _numbers(text: str, option: str, most: int) -> list[float]:
    numbers = []
    for part in text.split(","):
        try:
            number = float(part)
        except ValueError:
            raise typer.BadParameter(
                f"{quoted(part.strip())} is no number; write numbers with commas between them", param_hint=option
            ) from None
        if not 1 / KIB <= number <= most:  # a NaN is not
            raise typer.BadParameter(f"{quoted(part.strip())} is not in [1/1024, {most}]", param_hint=option)
        numbers.append(number)
    return numbers


def _refuse_without_cuda() -> None:
    import torch

    if not torch.cuda.is_available():
        raise Refused(
            "measuring needs a CUDA device, and torch sees none; `kvmove bench figures RESULTS` draws results of "
            "another machine"
        )


def _refuse_figures(names: list[str]) -> None:
    """Refuse figures that could not be drawn, before minutes of measuring."""
    from importlib.util import find_spec

    if not {"bandwidth", "interference", "overlap", "programs"} & set(names):
        raise typer.BadParameter(f"only the sections {_DRAWN} have figures", param_hint="--figures")

    if find_spec("matplotlib") is None:
        raise Refused("--figures needs matplotlib; install it with: pip install 'kvmove[report]'")


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """What is told what is being measured: a spinner for people, lines with the seconds so far in a log."""
    began = time.monotonic()
    if not sys.stderr.isatty():
        yield lambda what: typer.echo(f"{time.monotonic() - began:5.0f} s  {what}", err=True)
        return
    from rich.console import Console

    with Console(stderr=True).status("starting") as status:
        yield lambda what: status.update(what.replace("[", r"\["))
