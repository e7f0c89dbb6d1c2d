"""`kvmove explain`: what a finding's code means, and how to write it right."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from kvmove.kvpol.codes import CODES
from kvmove.kvpol.pages import find_code, nearest_code, page
from kvmove.kvpol.source import quoted


def explain(
    code: Annotated[
        str | None, typer.Argument(help="A code, such as KV201.", metavar="[CODE]", show_default=False)
    ] = None,
) -> None:
    """Explain the code of a finding, with an example that is wrong and one that is right; without CODE, list them all.

    Exit status 0, or 2 when there is no such code.
    """
    if code is None:
        for each in CODES.values():
            typer.echo(f"{each.name}  {each.title}")
        return
    found = find_code(code)
    if found is None:
        near = nearest_code(code)
        help = f"did you mean `{near}`?" if near else "`kvmove explain` lists them all"
        typer.echo(f"error: there is no code {quoted(code)}\n  = help: {help}", err=True)
        raise typer.Exit(2)
    text = page(found)
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.markdown import Markdown

        Console().print(Markdown(text.replace("```kvpol wrong", "```kvpol")))
    else:
        typer.echo(text.rstrip("\n"))
