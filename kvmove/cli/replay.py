"""`kvmove replay`: run a trace through a simulated engine under policies, with every loaded byte compared."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvmove.cli.policies import load_policies
from kvmove.cli.progress import progress_bar
from kvmove.cli.quantities import parse_bytes, parse_params
from kvmove.errors import Refused
from kvmove.kvpol.library import shipped
from kvmove.kvpol.source import printable
from kvmove.kvpol.units import BYTES, show
from kvmove.replay.settings import Model, Settings
from kvmove.replay.trace import Request, read_requests, read_trace

if TYPE_CHECKING:
    from kvmove.kvpol import Policy
    from kvmove.replay.report import PolicyReport

MISMATCH = 1
_DEFAULT = Settings()
_WIDTH = 160  # columns of a table that goes to a file: nothing wraps there, and diffs stay readable


class Device(StrEnum):
    """Where the replica of the cache is."""

    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"


def replay(
    trace: Annotated[str, typer.Argument(help="Trace to replay (JSON lines); - is standard input.", metavar="TRACE")],
    policy: Annotated[
        list[str] | None,
        typer.Option(
            help=f"Policy to replay under: a file, or one that comes with kvmove ({', '.join(shipped())}). Repeat it "
            "to compare policies.  [default: budgeted]",
            metavar="NAME|FILE",
            show_default=False,
        ),
    ] = None,
    shadow: Annotated[
        str | None,
        typer.Option(
            help="Policy that decides beside each of them and is only counted: where would it have done another thing?",
            metavar="NAME|FILE",
            show_default=False,
        ),
    ] = None,
    why_not: Annotated[
        bool, typer.Option("--why-not", help="Count for every rule how often it decided, and why it did not.")
    ] = False,
    param: Annotated[
        list[str] | None,
        typer.Option(
            help="Value for a param of the policies, such as budget=64MiB; of several policies, it is for those "
            "that have the param. Repeatable.",
            metavar="NAME=VALUE",
            show_default=False,
        ),
    ] = None,
    requests: Annotated[
        int | None,
        typer.Option(help="Replay the first N requests only.  [default: all]", metavar="N", min=1, show_default=False),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            help="Bytes that a step may load synchronously, such as 64MiB, or 0.  [default: what the policy says]",
            metavar="SIZE",
            show_default=False,
        ),
    ] = None,
    slots: Annotated[
        int, typer.Option(help="Blocks that the GPU cache holds.", metavar="N", min=1)
    ] = _DEFAULT.num_slots,
    host_blocks: Annotated[
        int, typer.Option(help="Blocks that the host tier holds.", metavar="N", min=1)
    ] = _DEFAULT.num_host_blocks,
    block_tokens: Annotated[
        int, typer.Option(help="Tokens for which the trace has one id.", metavar="N", min=1)
    ] = _DEFAULT.block_tokens,
    kv_bytes_per_token: Annotated[
        str, typer.Option(help="KV of one token on one GPU, as policies see it.", metavar="SIZE")
    ] = show(Fraction(_DEFAULT.model.kv_bytes_per_token), BYTES),
    rate: Annotated[
        float, typer.Option(help="Rate of arrivals; 0.5 stretches the trace to twice its time.", metavar="X")
    ] = _DEFAULT.rate,
    device: Annotated[
        Device, typer.Option(help="Where bytes really move; auto takes a GPU where there is one.")
    ] = Device.AUTO,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, and no table.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress.")] = False,
) -> None:
    """Replay a trace on a small simulated engine that really moves bytes, and show what each policy did.

    Times are simulated and the same in every run. Every loaded page is compared with what its block has to hold.

    Exit status 0: no page differed. 1: some did; the first are named. 2: the trace, a policy or an option cannot be
    used.
    """
    settings = Settings(
        model=Model(kv_bytes_per_token=parse_bytes(kv_bytes_per_token, "--kv-bytes-per-token")),
        block_tokens=block_tokens,
        num_slots=slots,
        num_host_blocks=host_blocks,
        budget_bytes=None if budget is None else parse_bytes(budget, "--budget"),
        rate=rate,
    )
    _refuse_without_memory(settings)
    # Whatever can be wrong is looked at before torch is imported, which takes seconds.
    policies, beside = _load(policy or ["budgeted"], shadow, parse_params(param or []))
    options = {"shadow": beside, "explain": why_not, "device": device}
    reports = _replay(policies, _read(trace, block_tokens, requests), settings, quiet, options)
    _print(reports, settings, as_json, why_not)
    if any(r.mismatches for r in reports):
        _print_mismatches(reports)
        raise typer.Exit(MISMATCH)


def _refuse_without_memory(settings: Settings) -> None:
    """Refuse a replica that this machine cannot hold. Asking for it could end other processes before it fails."""
    needed = (settings.num_slots + settings.num_host_blocks) * settings.replica_block_bytes
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > there:
        raise Refused(
            f"{settings.num_slots} slots and {settings.num_host_blocks} host blocks need {needed >> 20} MiB of memory "
            f"to really move, and this machine has {there >> 20} MiB; lower --slots or --host-blocks"
        )


def _load(
    names: Sequence[str], shadow: str | None, params: Mapping[str, str]
) -> tuple[Mapping[str, Policy], Policy | None]:
    """The policies by label, and the shadow, which may be one of them. A param may be the shadow's alone."""
    extra = [] if shadow is None or shadow in names else [shadow]
    loaded = load_policies([*names, *extra], params)
    if shadow is None:
        return loaded, None
    labels = list(loaded)
    beside = loaded[labels[[*names, *extra].index(shadow)]]
    return {label: loaded[label] for label in labels[: len(names)]}, beside


def _replay(
    policies: Mapping[str, Policy],
    requests: Sequence[Request],
    settings: Settings,
    quiet: bool,
    options: Mapping[str, Any],
) -> list[PolicyReport]:
    from kvmove.replay.engine import replay as run

    reports = []
    for label, policy in policies.items():
        with progress_bar(label, len(requests), quiet) as progress:
            report = run(policy, requests, settings, progress=progress, **options)
        reports.append(replace(report, policy=label))
    return reports


def _read(trace: str, block_tokens: int, limit: int | None) -> Sequence[Request]:
    if trace == "-":
        return list(read_requests(sys.stdin.buffer, "<stdin>", block_tokens=block_tokens, limit=limit))
    return list(read_trace(trace, block_tokens=block_tokens, limit=limit))


def _print(reports: Sequence[PolicyReport], settings: Settings, as_json: bool, why_not: bool) -> None:
    from kvmove.replay import report
    from kvmove.replay.rules import rules_table

    if as_json:
        typer.echo(json.dumps(report.as_json(reports, settings), indent=2))
        return
    from rich.console import Console

    console = Console(highlight=False, width=None if sys.stdout.isatty() else _WIDTH)
    console.print(report.table(reports))
    for r in reports if why_not else ():
        console.print()
        console.print(rules_table(r.policy, r.rules))
    if not any(r.hits for r in reports):
        typer.echo(
            "note: no prefix was in host memory alone, so no policy was asked. With fewer --slots than "
            f"{settings.num_slots} or more requests, the GPU cache loses blocks that are wanted again",
            err=True,
        )


def _print_mismatches(reports: Sequence[PolicyReport]) -> None:
    for r in reports:
        for mismatch in r.first_mismatches:
            typer.echo(f"mismatch: {r.policy}: {printable(str(mismatch))}", err=True)
        more = r.mismatches - len(r.first_mismatches)
        if more:
            typer.echo(f"mismatch: {r.policy}: {more:,} more pages", err=True)
