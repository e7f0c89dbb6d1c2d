"""`kvmove trace synth`: make a trace up, for those who have none."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, TextIO

import typer

from kvmove.errors import Refused
from kvmove.kvpol.source import printable
from kvmove.replay.synth import Workload, synthesize, write_trace

_DEFAULT = Workload()

trace = typer.Typer(help="Make traces of requests.", no_args_is_help=True, rich_markup_mode=None)


@trace.callback()
def _trace() -> None:
    """Make traces of requests."""


@trace.command()
def synth(
    requests: Annotated[int, typer.Option(help="Requests to make.", metavar="N")] = 1_000,
    seed: Annotated[int, typer.Option(help="The same seed gives the same trace.", metavar="N")] = 0,
    output: Annotated[str, typer.Option(help="File to write; - is standard output.", metavar="FILE")] = "-",
    requests_per_s: Annotated[
        float, typer.Option(help="Requests a second, in the long run.", metavar="X")
    ] = _DEFAULT.requests_per_s,
    turns: Annotated[float, typer.Option(help="Mean turns of a session.", metavar="X")] = _DEFAULT.turns,
    think_s: Annotated[
        float, typer.Option(help="Median seconds between an answer and the next turn.", metavar="X")
    ] = _DEFAULT.think_s,
    system_prompts: Annotated[
        int, typer.Option(help="System prompts that sessions share.", metavar="N")
    ] = _DEFAULT.system_prompts,
    popularity_skew: Annotated[
        float, typer.Option(help="0 takes all system prompts alike; at 1 the n-th is taken 1/n as often.", metavar="X")
    ] = _DEFAULT.popularity_skew,
    system_tokens: Annotated[
        int, typer.Option(help="Median tokens of a system prompt.", metavar="N")
    ] = _DEFAULT.system_tokens,
    question_tokens: Annotated[
        int, typer.Option(help="Median tokens that a turn adds.", metavar="N")
    ] = _DEFAULT.question_tokens,
    answer_tokens: Annotated[
        int, typer.Option(help="Median tokens of an answer.", metavar="N")
    ] = _DEFAULT.answer_tokens,
    max_prompt_tokens: Annotated[
        int, typer.Option(help="A session ends before its prompt gets longer.", metavar="N")
    ] = _DEFAULT.max_prompt_tokens,
    block_tokens: Annotated[
        int, typer.Option(help="Tokens of a block, which has one id.", metavar="N")
    ] = _DEFAULT.block_tokens,
) -> None:
    """Make up a trace of conversations that share prefixes: JSON lines, as `kvmove replay` reads them.

    Exit status 0: written. 2: an option is out of range, or the file cannot be written.
    """
    workload = Workload(
        requests_per_s=requests_per_s,
        system_prompts=system_prompts,
        popularity_skew=popularity_skew,
        turns=turns,
        system_tokens=system_tokens,
        question_tokens=question_tokens,
        answer_tokens=answer_tokens,
        think_s=think_s,
        max_prompt_tokens=max_prompt_tokens,
        block_tokens=block_tokens,
    )
    made = synthesize(requests, seed=seed, workload=workload)
    if output == "-":
        write_trace(made, sys.stdout)
        return
    with _opened(output) as file:
        written = write_trace(made, file)
    typer.echo(f"{printable(output)}: {written} requests", err=True)


@contextmanager
def _opened(path: str) -> Iterator[TextIO]:
    try:
        with open(path, "w", encoding="ascii", newline="\n") as file:
            yield file
    except OSError as e:
        raise Refused(f"{printable(path)}: cannot be written: {(e.strerror or str(e)).lower()}") from None
