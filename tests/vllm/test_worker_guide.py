"""What docs/vllm.md shows is true: its policy, its configurations, its options. Runs without vLLM."""

from __future__ import annotations

import json
import re
import shlex
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from kvmove import Policy
from kvmove.integrations.vllm import supported
from kvmove.integrations.vllm.options import Options
from kvmove.kvpol.library import shipped

GUIDE = (Path(__file__).resolve().parents[2] / "docs" / "vllm.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", GUIDE, flags=re.MULTILINE | re.DOTALL)
SHELL = [text.replace("\\\n", " ") for name, text in BLOCKS if name == "sh"]
SERVE = [shlex.split(text) for text in SHELL if text.startswith("vllm serve")]


def config(command: list[str]) -> dict[str, Any]:
    return json.loads(command[command.index("--kv-transfer-config") + 1])


def test_the_policy_to_begin_with_is_one() -> None:
    """It has no warnings, and its param is the budget."""
    (text,) = [text for name, text in BLOCKS if name == ""]
    policy = Policy.parse(text)
    assert policy.warnings == ()
    assert policy.name == "site"


@pytest.mark.parametrize("command", SERVE, ids=["both", "worker", "policy"])
def test_every_configuration_is_one_that_kvmove_takes(command: list[str]) -> None:
    """The classes exist, the options are right, a policy that is named is one that is shipped or saved before."""
    given = config(command)
    extra = given["kv_connector_extra_config"]
    options = Options.read(extra)
    assert options.policy in (*shipped(), "site.kvpol")
    if given["kv_connector"] == "KVMoveConnector":
        assert given["kv_connector_module_path"] == "kvmove.integrations.vllm"
    if "spec_name" in extra:
        assert (extra["spec_name"], extra["spec_module_path"]) == ("KVMoveOffloadingSpec", "kvmove.integrations.vllm")
    assert extra["cpu_bytes_to_use"] == 64 << 30


def test_three_ways_are_shown() -> None:
    """Both parts, the worker alone, the policy alone."""
    kinds = [(c["kv_connector"], "spec_name" in c["kv_connector_extra_config"]) for c in map(config, SERVE)]
    assert kinds == [("KVMoveConnector", True), ("OffloadingConnector", True), ("KVMoveConnector", False)]


def test_every_option_of_ours_is_in_the_table() -> None:
    """Those of the policy, and the worker's path."""
    for name in (*Options.__dataclass_fields__, "kvmove_path", "spec_name", "spec_module_path"):
        assert f"`{name}`" in GUIDE, name


def test_the_version_is_the_one_that_is_supported() -> None:
    """The guide names it, and the refusal that it quotes is the one that is raised."""
    with pytest.raises(Exception, match=r"0\.33\.x alone") as caught:
        supported.require_supported_version("0.34.0")
    quoted = "vLLM 0.34.0 is installed; this version of kvmove works with vLLM 0.33.x alone"
    assert quoted in str(caught.value)
    assert quoted in GUIDE


def test_the_benchmarks_are_there() -> None:
    """Every `python -m benchmarks...` shown is a module, and its parts are parts."""
    shown = [shlex.split(line, comments=True) for text in SHELL for line in text.splitlines() if "benchmarks." in line]
    assert len(shown) == 4
    for command in shown:
        module = import_module(command[2])
        if "--part" in command:
            module.parse(command[3:])
