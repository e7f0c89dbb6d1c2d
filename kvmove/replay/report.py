"""What a replay found, as records, as JSON and as a table with a column for each policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from kvmove.records import Action, Lane
from kvmove.replay.figures import percent, seconds, size
from kvmove.replay.rules import RuleReport, ShadowReport, rule_reports, shadow_report, shadow_rows
from kvmove.replay.settings import SECOND_NS, Settings
from kvmove.replay.tally import Mismatch, Tally

if TYPE_CHECKING:
    from rich.table import Table

    from kvmove.replay.replica import Replica
    from kvmove.schedule import HitPolicy, Statistics
    from kvmove.tier.records import TierStatistics

REPORT_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Simulated times to the first token, in nanoseconds; percentiles are values that occurred. None: no requests."""

    count: int
    mean_ns: int | None
    p50_ns: int | None
    p99_ns: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyReport:
    """One policy's replay. `bytes` and the budget are the modelled LLM's, `moved_bytes` are the replica's."""

    policy: str
    policy_hash: str
    device: str  # what moved the bytes
    paths: tuple[str, ...]  # how: direct, staged, engine, reference
    requests: int
    finished: int
    refused: int  # longer than the whole GPU cache
    hits: int  # requests that found a prefix in the host tier
    joined: int  # waits for another request's load of the same prefix
    tokens: dict[str, int]  # prompt, cached, loaded, computed
    decisions: dict[str, int]  # by action, after the guard rails; a request that is deferred n times counts n times
    partial_loads: int  # of the decisions, those to load only some leading blocks of a hit
    demotions: dict[str, int]  # decisions that a guard rail changed, by reason
    refunds: int
    policy_errors: int
    rules: tuple[RuleReport, ...]
    shadow: ShadowReport | None  # None: the replay had none
    bytes: dict[str, int]  # loaded, by lane
    moved_bytes: dict[str, int]  # by lane, and stored
    budget: dict[str, int | float | None]  # of the steps with a decision
    stored_blocks: int
    evictions: dict[str, int]  # of blocks, by tier
    steps: int
    simulated_ns: int
    ttft: Latency
    ttft_of_hits: Latency
    loaded_blocks: int
    loaded_pages: int  # each was compared with what its block has to hold
    cached_pages: int  # used from the GPU cache; likewise
    mismatches: int  # pages that differed
    first_mismatches: tuple[Mismatch, ...]


def report(
    policy: HitPolicy,
    settings: Settings,
    replica: Replica,
    tally: Tally,
    scheduler: Statistics,
    tier: TierStatistics,
    gpu_evictions: int,
    shadow: HitPolicy | None = None,
) -> PolicyReport:
    """Put together what the parts counted."""
    used, offered = scheduler.budget_used_bytes, tally.hit_steps_offered_bytes
    return PolicyReport(
        policy=policy.name,
        policy_hash=policy.hash,
        device=replica.device_name,
        paths=tuple(sorted(tally.paths)),
        requests=tally.requests,
        finished=tally.finished,
        refused=tally.refused,
        hits=tally.hits,
        joined=tally.joined,
        tokens={
            "prompt": tally.prompt_tokens,
            "cached": tally.cached_tokens,
            "loaded": tally.loaded_tokens,
            "computed": tally.computed_tokens,
        },
        decisions={str(action): scheduler.decisions[action] for action in Action},
        partial_loads=scheduler.partial_loads,
        demotions={str(reason): count for reason, count in scheduler.demotions.items()},
        refunds=scheduler.refunds,
        policy_errors=scheduler.policy_errors,
        rules=rule_reports(policy, scheduler),
        shadow=None if shadow is None or scheduler.shadow is None else shadow_report(shadow, scheduler.shadow),
        bytes={str(lane): scheduler.admitted_bytes[lane] for lane in Lane},
        moved_bytes={**{str(lane): tally.moved_bytes[lane] for lane in Lane}, "stored": tally.stored_bytes},
        budget={
            "offered_bytes": offered,
            "used_bytes": used,
            "used_percent": round(100 * used / offered, 2) if offered else None,
        },
        stored_blocks=tier.keys_stored,
        evictions={"gpu": gpu_evictions, "host": tier.keys_evicted},
        steps=tally.steps,
        simulated_ns=tally.simulated_ns,
        ttft=_latency(tally.ttft_ns),
        ttft_of_hits=_latency(tally.ttft_of_hits_ns),
        loaded_blocks=tally.loaded_blocks,
        loaded_pages=tally.loaded_blocks * settings.replica_pages,
        cached_pages=tally.cached_blocks * settings.replica_pages,
        mismatches=tally.mismatches,
        first_mismatches=tuple(tally.first_mismatches),
    )


def as_json(reports: Sequence[PolicyReport], settings: Settings) -> dict[str, Any]:
    """Plain values for `json.dumps`: the settings, and under `policies` one object a policy."""
    return {"version": REPORT_VERSION, "settings": asdict(settings), "policies": [asdict(r) for r in reports]}


def table(reports: Sequence[PolicyReport]) -> Table:
    """The policies side by side."""
    from rich.table import Table
    from rich.text import Text

    made = Table(title=None, show_edge=False, pad_edge=False)
    made.add_column("")
    for r in reports:
        made.add_column(Text(r.policy), justify="right")
    shadows = [r.shadow for r in reports if r.shadow is not None]
    columns = [_rows(r) + (shadow_rows(r.shadow, shadows) if shadows else []) for r in reports]
    for rows in zip(*columns, strict=True):
        name = rows[0][0]
        if name:
            made.add_row(name, *(value for _, value in rows))
        else:
            made.add_section()
    return made


def _rows(r: PolicyReport) -> list[tuple[str, str]]:
    """Name and value of each line; a line without a name is a rule."""
    share = r.budget["used_percent"]
    decisions = [(f"  {action}", f"{count:,}") for action, count in r.decisions.items()]
    demotions = [(f"  demoted: {reason.replace('_', ' ')}", f"{count:,}") for reason, count in r.demotions.items()]
    return [
        ("requests", f"{r.requests:,}"),
        ("  refused (longer than the cache)", f"{r.refused:,}"),
        ("hits in the host tier", f"{r.hits:,}"),
        ("  waits for another's load", f"{r.joined:,}"),
        ("decisions", f"{sum(r.decisions.values()):,}"),
        *decisions,
        ("  of a part of the hit", f"{r.partial_loads:,}"),
        *demotions,
        ("  refunded", f"{r.refunds:,}"),
        ("", ""),
        ("loaded in the step", size(r.bytes[Lane.EXPEDITED])),
        ("loaded in the background", size(r.bytes[Lane.BULK])),
        ("budget used, steps with hits", "-" if share is None else f"{share:.1f}%"),
        ("prompt tokens from the GPU cache", percent(r.tokens["cached"], r.tokens["prompt"])),
        ("prompt tokens loaded", percent(r.tokens["loaded"], r.tokens["prompt"])),
        ("blocks stored", f"{r.stored_blocks:,}"),
        ("blocks evicted, GPU / host", f"{r.evictions['gpu']:,} / {r.evictions['host']:,}"),
        ("", ""),
        ("steps", f"{r.steps:,}"),
        ("simulated time", f"{r.simulated_ns / SECOND_NS:,.1f} s"),
        ("time to first token, mean", seconds(r.ttft.mean_ns)),
        ("  p50 / p99", f"{seconds(r.ttft.p50_ns)} / {seconds(r.ttft.p99_ns)}"),
        ("  mean of requests with a hit", seconds(r.ttft_of_hits.mean_ns)),
        ("", ""),
        ("bytes really moved, loads / stores", f"{size(_moved(r))} / {size(r.moved_bytes['stored'])}"),
        ("pages loaded and compared", f"{r.loaded_pages:,}"),
        ("pages reused and compared", f"{r.cached_pages:,}"),
        ("mismatches", f"{r.mismatches:,}"),
    ]


def _moved(r: PolicyReport) -> int:
    return sum(r.moved_bytes[lane] for lane in Lane)


def _latency(times_ns: list[int]) -> Latency:
    if not times_ns:
        return Latency(count=0, mean_ns=None, p50_ns=None, p99_ns=None)
    ordered, count = sorted(times_ns), len(times_ns)
    return Latency(
        count=count,
        mean_ns=sum(ordered) // count,
        p50_ns=ordered[(count * 50 + 99) // 100 - 1],  # nearest rank
        p99_ns=ordered[(count * 99 + 99) // 100 - 1],
    )
