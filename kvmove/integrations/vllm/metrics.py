"""kvmove's metrics in vLLM, beside those of vLLM's own offloading: what was decided, why, and how much it moves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import OffloadingConnectorStats, OffloadPromMetrics
from vllm.v1.kv_offload.base import (
    OffloadingCounterMetadata,
    OffloadingGaugeMetadata,
    OffloadingHistogramMetadata,
    OffloadingMetricMetadata,
)

from kvmove.kvpol import Policy
from kvmove.records import Action, Demotion, StepPlan

# vLLM clears its metrics by the "vllm" in their names.
DECISIONS = "vllm:kvmove_decisions"
DEMOTIONS = "vllm:kvmove_demotions"
LOAD_BYTES = "vllm:kvmove_load_bytes"
STEP_SYNC_BYTES = "vllm:kvmove_step_sync_bytes"
NOT_ADMITTED = "vllm:kvmove_not_admitted"
POLICY_ERRORS = "vllm:kvmove_policy_errors"
POLICY_RELOADS = "vllm:kvmove_policy_reloads"
POLICY_FILE_BROKEN = "vllm:kvmove_policy_file_broken"
POLICY_INFO = "vllm:kvmove_policy_info"

_KIB, _MIB = 1 << 10, 1 << 20
DEFINITIONS: Mapping[str, OffloadingMetricMetadata] = {
    DECISIONS: OffloadingCounterMetadata(
        "Number of decisions about host hits, by what was done and by the rule that asked for it.",
        ("action", "rule"),
    ),
    DEMOTIONS: OffloadingCounterMetadata(
        "Number of decisions in which a guard rail loaded asynchronously what a policy wanted otherwise.", ("reason",)
    ),
    LOAD_BYTES: OffloadingCounterMetadata(
        "Bytes on one GPU of the loads that were decided: inside their step (sync), or in the background (async).",
        ("action",),
    ),
    STEP_SYNC_BYTES: OffloadingHistogramMetadata(
        "Histogram of the bytes on one GPU that a step with hits loads inside itself.",
        buckets=(0, 256 * _KIB, _MIB, 4 * _MIB, 16 * _MIB, 64 * _MIB, 256 * _MIB, 1024 * _MIB),
    ),
    NOT_ADMITTED: OffloadingCounterMetadata(
        "Number of decisions to load that the engine did not act on in that step; their budget was returned."
    ),
    POLICY_ERRORS: OffloadingCounterMetadata("Number of steps in which the policy failed, a bug of kvmove's."),
    POLICY_RELOADS: OffloadingCounterMetadata("Number of steps that began with another policy than the one before."),
    POLICY_FILE_BROKEN: OffloadingGaugeMetadata("1 while the followed policy file cannot be used, else 0."),
    POLICY_INFO: OffloadingGaugeMetadata("1 for the policy that decides, 0 for those before it.", ("policy", "hash")),
}


class KVMovePromMetrics(OffloadPromMetrics):
    """vLLM's metrics of offloading, and kvmove's."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name, metadata in DEFINITIONS.items():
            self._offloading_metric_metadata[name] = metadata
            self._offloading_metric_defs[name] = self._create_metric(name, metadata)


def rule_label(policy: Policy, rule: int | None) -> str:
    """What a rule is called in a metric: its label, else its number, counted from 1."""
    if rule is None:
        return "none"
    return policy.rules[rule].label or f"{rule + 1}"


def record_plan(stats: OffloadingConnectorStats, plan: StepPlan, policy: Policy) -> None:
    """Count what a step decided."""
    for decision in plan.decisions:
        stats.increase_counter(DECISIONS, 1, (decision.action.value, rule_label(policy, decision.rule)))
        if decision.demotion is not None:
            stats.increase_counter(DEMOTIONS, 1, (decision.demotion.value,))
        if decision.action in (Action.SYNC, Action.ASYNC):
            stats.increase_counter(LOAD_BYTES, decision.bytes, (decision.action.value,))
    if any(decision.demotion is Demotion.POLICY_FAILED for decision in plan.decisions):
        stats.increase_counter(POLICY_ERRORS)
    if plan.decisions:
        stats.observe_histogram(STEP_SYNC_BYTES, plan.sync_bytes)


def record_policy(stats: OffloadingConnectorStats, policy: Policy, before: Policy | None) -> None:
    """Note the policy that decides from now on, and the one that did until now."""
    if before is not None:
        stats.set_gauge(POLICY_INFO, 0, (before.name, before.hash))
        stats.increase_counter(POLICY_RELOADS)
    stats.set_gauge(POLICY_INFO, 1, (policy.name, policy.hash))
