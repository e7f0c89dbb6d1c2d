"""`kvmove calibrate`: measure this machine's paths, and write the profile that movers choose by."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvmove.errors import Refused
from kvmove.kvpol.source import printable

if TYPE_CHECKING:
    from kvmove.bench.calibrate import Calibration

PROMISED_ERROR = 0.10  # median, on samples that the model was not fitted to


def calibrate(
    output: Annotated[Path, typer.Option(help="JSON file to write.", metavar="FILE")] = Path("kvmove-profile.json"),
) -> None:
    """Measure every path on this machine's GPU, in less than a minute, and write a profile.

    `Mover(..., profile=Profile.read(FILE))` then takes the path that is predicted to be the quickest for each job, and
    results say what was predicted. The profile holds for this GPU model, its driver and this version of kvmove.

    Exit status 0: written. 1: written, and some path could not be measured. 2: there is no CUDA device.
    """
    import torch

    if not torch.cuda.is_available():
        raise Refused("calibrating needs a CUDA device, and torch sees none; without a profile built-in defaults serve")
    from kvmove.bench.calibrate import calibrate as measure
    from kvmove.bench.device import CudaDevice
    from kvmove.bench.plan import FULL
    from kvmove.bench.session import Session

    session = Session(CudaDevice(), FULL, tell=lambda what: typer.echo(what, err=True))
    made = measure(session)
    made.profile.write(output)
    show(made)
    typer.echo(f"{printable(str(output))}: written", err=True)
    for failure in session.failures:
        typer.echo(f"not measured: {printable(failure)}", err=True)
    if session.failures:
        raise typer.Exit(1)


def show(made: Calibration) -> None:
    """Print the model's terms, and its error on samples that were left out of the fit in turn."""
    from rich.console import Console
    from rich.table import Table

    from kvmove.bench.calibrate import error_rows

    errors = {key: (count, median, worst) for key, count, median, worst in error_rows(made.errors)}
    table = Table(title=f"{made.profile.gpu}, driver {made.profile.driver}", title_justify="left", title_style="bold")
    table.add_column("job")
    for column in ("fixed us", "GB/s", "ns a block", "ns a page", "samples", "median error", "largest"):
        table.add_column(column, justify="right")
    for key, terms in made.profile.model.terms.items():
        rate = f"{1 / terms.ns_per_byte:.1f}" if terms.ns_per_byte else "-"
        count, median, worst = errors.get(key, (0, None, None))
        table.add_row(
            f"{key.kind}, {key.path}, {key.lane}",
            f"{terms.fixed_ns / 1e3:.1f}",
            rate,
            f"{terms.ns_per_block:.0f}",
            f"{terms.ns_per_page:.2f}",
            str(count),
            "-" if median is None else f"{median:.1%}",
            "-" if worst is None else f"{worst:.1%}",
        )
    Console(highlight=False, width=None if sys.stdout.isatty() else 140).print(table)
    error = made.profile.median_error
    verdict = "too few samples to say" if error is None else f"{error:.1%}, of at most {PROMISED_ERROR:.0%}"
    typer.echo(f"median error on samples that were left out: {verdict}; measured in {made.took_s:.0f} s")
