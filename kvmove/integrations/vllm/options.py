"""What an operator writes into `kv_connector_extra_config`, checked before the engine starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kvmove.errors import Refused
from kvmove.kvpol.suggest import did_you_mean
from kvmove.schema import MAX_BYTES, MAX_COUNT

DEFAULT_POLICY = "budgeted"
_OWN = ("policy", "policy_params", "policy_watch", "policy_max_deferrals")


@dataclass(frozen=True, slots=True)
class Options:
    """kvmove's part of the extra configuration; everything else there is vLLM's.

    Attributes:
        policy: a policy's file, or the name of a policy that kvmove ships.
        policy_params: values for the policy's params, by name.
        policy_watch: follow the file, and use a new version from the step after the next look.
        sync_load_budget_bytes: bytes on one GPU that a step may load inside itself; None: what the policy says.
        policy_max_deferrals: in how many steps a request may be deferred before its hit loads asynchronously.
    """

    policy: str = DEFAULT_POLICY
    policy_params: Mapping[str, str | int | bool] = field(default_factory=dict)
    policy_watch: bool = False
    sync_load_budget_bytes: int | None = None
    policy_max_deferrals: int = 16

    @classmethod
    def read(cls, extra_config: Mapping[str, Any]) -> Options:
        """The options of an extra configuration.

        Raises:
            Refused: a value is of the wrong kind or out of range, or a name that starts with `policy` is none of ours.
        """
        for name in extra_config:
            if str(name).startswith("policy") and name not in _OWN:
                hint = did_you_mean(str(name), _OWN)
                raise Refused(f"kv_connector_extra_config has no {name}; {hint or 'there are ' + ', '.join(_OWN)}")
        policy = extra_config.get("policy", DEFAULT_POLICY)
        if not isinstance(policy, str) or not policy:
            raise Refused(f"policy is {policy!r}; a policy's file or the name of a shipped policy is needed")
        params = extra_config.get("policy_params", {})
        if not isinstance(params, Mapping) or not all(
            isinstance(k, str) and isinstance(v, str | int) for k, v in params.items()
        ):
            raise Refused(f'policy_params is {params!r}; an object such as {{"small": "8192tok"}} is needed')
        watch = extra_config.get("policy_watch", False)
        if not isinstance(watch, bool):
            raise Refused(f"policy_watch is {watch!r}; true or false is needed")
        budget_bytes = _count(extra_config, "sync_load_budget_bytes", None, MAX_BYTES)
        max_deferrals = _count(extra_config, "policy_max_deferrals", cls().policy_max_deferrals, MAX_COUNT)
        assert max_deferrals is not None
        return cls(policy, dict(params), watch, budget_bytes, max_deferrals)


def _count(extra_config: Mapping[str, Any], name: str, default: int | None, most: int) -> int | None:
    value = extra_config.get(name, default)
    if value is default or (type(value) is int and 0 <= value <= most):
        return value
    raise Refused(f"{name} is {value!r}; an int from 0 to {most} is needed")
