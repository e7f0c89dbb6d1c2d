"""kvmove inside vLLM, by configuration alone.

`KVMoveConnector` (for `kv_connector` with `kv_connector_module_path`) asks a policy what each hit does;
`KVMoveOffloadingSpec` (for `spec_name` with `spec_module_path`) moves the bytes. Either works without the other:
the module path of both is `kvmove.integrations.vllm`. docs/vllm.md says how to use them.

Importing this package needs no vLLM; taking one of the two classes from it does. `connector`, `scheduler` and `metrics`
know vLLM's internals on the scheduler's side; `options`, `hit_sizes`, `estimates` and `step_decisions` run, and are
tested, without vLLM.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvmove.integrations.vllm.supported import installed_version, require_supported_version

if TYPE_CHECKING:
    from kvmove.integrations.vllm.connector import KVMoveConnector
    from kvmove.integrations.vllm.spec import KVMoveOffloadingSpec

__all__ = ["KVMoveConnector", "KVMoveOffloadingSpec", "installed_version", "require_supported_version"]

_MODULE_OF = {"KVMoveConnector": "connector", "KVMoveOffloadingSpec": "spec"}


def __getattr__(name: str) -> Any:
    """Import a class that needs vLLM when it is first asked for.

    Raises:
        Refused: there is no vLLM, or one whose internals this version of kvmove does not know.
    """
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    require_supported_version(installed_version())
    return getattr(import_module(f"{__name__}.{module}"), name)
