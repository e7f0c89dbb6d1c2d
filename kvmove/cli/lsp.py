"""`kvmove lsp`: what an editor starts to check, complete and format policies while they are written."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Annotated

import typer

from kvmove.errors import Refused


def lsp(
    stdio: Annotated[
        bool, typer.Option("--stdio", help="Standard input and output, which is the only way; editors say it.")
    ] = True,
    strict: Annotated[bool, typer.Option("--strict", help="Show what `kvmove check --strict` does.")] = False,
) -> None:
    """Serve an editor over standard input and output, with the Language Server Protocol.

    Exit status 0: the editor shut the server down. 1: it left without. 2: the extra `lsp` is not installed.
    """
    if find_spec("pygls") is None or find_spec("lsprotocol") is None:
        raise Refused("the language server needs pygls 2 or newer; install it with: pip install 'kvmove[lsp]'")
    from kvmove.editors.server import serve

    raise typer.Exit(serve(strict=strict))
