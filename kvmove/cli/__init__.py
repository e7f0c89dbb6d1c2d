"""The command line. Commands live in modules of their own; what they have in common about failing is here.

Nothing here imports torch: only `kvmove replay`, `kvmove bench` and `kvmove calibrate` do, when they begin to work.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from kvmove import __version__
from kvmove.cli.bench import bench as _bench
from kvmove.cli.calibrate import calibrate as _calibrate
from kvmove.cli.check import check as _check
from kvmove.cli.decide import decide as _decide
from kvmove.cli.diff import diff as _diff
from kvmove.cli.explain import explain as _explain
from kvmove.cli.fmt import fmt as _fmt
from kvmove.cli.lsp import lsp as _lsp
from kvmove.cli.prove import prove as _prove
from kvmove.cli.replay import replay as _replay
from kvmove.cli.test import run_tests as _test
from kvmove.cli.trace import trace as _trace
from kvmove.errors import InternalError, KVMoveError, PolicyError, TraceError
from kvmove.kvpol.source import printable

UNUSABLE = 2
BROKEN_PIPE = 141  # what a shell reports for a program that the closed pipe ended


class _Commands(TyperGroup):
    """Runs a command so that what kvmove raises on purpose is a message and an exit status, never a traceback.

    Typer itself turns an interrupt into the exit status 130, without a word.
    """

    def invoke(self, ctx: Any) -> Any:
        try:
            try:
                return super().invoke(ctx)
            finally:
                sys.stdout.flush()  # here, where a closed pipe or a full disk can still be dealt with
        except BrokenPipeError:
            _drop_output()
            raise typer.Exit(BROKEN_PIPE) from None
        except OSError as e:
            if e.filename is None:
                _drop_output()
            typer.echo(f"error: {_reason(e)}", err=True)
            raise typer.Exit(UNUSABLE) from None
        except KVMoveError as e:
            typer.echo(_message(e), err=True)
            raise typer.Exit(UNUSABLE) from None


def _reason(error: OSError) -> str:
    reason = (error.strerror or str(error)).lower()
    return f"{printable(error.filename)}: {reason}" if isinstance(error.filename, str) else reason


def _message(error: KVMoveError) -> str:
    if isinstance(error, PolicyError) and error.findings:
        return str(error)  # each finding says for itself that it is an error, and where
    if isinstance(error, TraceError):
        return f"error: {printable(error.path)}, line {error.line}: {error.reason}"
    if isinstance(error, InternalError):
        return f"error: {error}\n  = note: this is a bug in kvmove, please report it"
    return f"error: {error}"


def _drop_output() -> None:
    """Let nothing fail again when the interpreter flushes at exit what nobody reads."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    with suppress(OSError):  # a stand-in for stdout, such as a test's, has no descriptor
        os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


# Plain help and plain errors: they read the same in a terminal, a log and a bug report.
app = typer.Typer(
    name="kvmove",
    cls=_Commands,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.command(short_help="Say what is wrong in policy files.")(_check)
app.command(short_help="Lay policy files out.")(_fmt)
app.command(short_help="Say what a policy decides about one hit, and why.")(_decide)
app.command("test", short_help="Run the examples beside policies.")(_test)
app.command(short_help="Prove what holds of a policy for every hit and step.")(_prove)
app.command(short_help="Say how two policies differ, with an example.")(_diff)
app.command(short_help="Explain the code of a finding.")(_explain)
app.command(short_help="Check and complete policies in an editor.")(_lsp)
app.command(short_help="Run a trace under policies, and compare them.")(_replay)
app.add_typer(_trace, name="trace")
app.add_typer(_bench, name="bench", short_help="Measure on this machine's GPU.")
app.command(short_help="Measure which path is quickest here.")(_calibrate)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"kvmove {__version__}")
        raise typer.Exit


@app.callback()
def _kvmove(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Check policies that decide on KV-cache hits, replay traces of requests under them, and measure copies."""


def main() -> None:
    """Run the command that `sys.argv` names, and exit."""
    _open_closed_streams()
    app()


def _open_closed_streams() -> None:
    """Give a program that was started with `<&-` or `>&-` an empty input, or an output that nobody reads."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 - for as long as the process lives
