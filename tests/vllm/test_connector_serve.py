"""The commands of docs/vllm.md as vLLM reads them: they parse, and make an engine's configuration, without a GPU.

In a process of its own that tells vLLM to be on a CPU: without a device, vLLM does not say which it would be on.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_worker_guide import GUIDE, SERVE, config

from benchmarks.vllm_e2e import PARTS, parse, settings_of
from benchmarks.vllm_engine import BLOCK_TOKENS, CONNECTORS, EngineSettings
from kvmove.integrations.vllm.metrics import DEFINITIONS

HERE = Path(__file__).resolve().parent
PROGRAM = """
import json, sys
import vllm.platforms
from vllm.platforms.cpu import CpuPlatform
vllm.platforms._current_platform = CpuPlatform()
from vllm.engine.arg_utils import EngineArgs
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.entrypoints.common.cli_args import make_arg_parser, validate_parsed_serve_args
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.v1.kv_offload.factory import OffloadingSpecFactory

made = []
for given in json.loads(sys.stdin.read()):
    if isinstance(given, list):
        args = make_arg_parser(FlexibleArgumentParser()).parse_args(given)
        args.model = args.model_tag
        validate_parsed_serve_args(args)
        arguments = EngineArgs.from_cli_args(args)
    else:
        arguments = EngineArgs(**given)
    config = arguments.create_engine_config()
    transfer = config.kv_transfer_config
    connector = KVConnectorFactory.get_connector_class(transfer)
    spec = OffloadingSpecFactory.get_spec_cls(transfer.kv_connector_extra_config)
    made.append([connector.__name__, spec.__name__, config.cache_config.block_size, transfer.kv_load_failure_policy])
print("RESULT", json.dumps(made))
"""


def engine_configs(given: list[Any]) -> list[list[Any]]:
    """Connector, spec, block size and failure policy of each engine, as vLLM makes them."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        cwd=HERE.parents[1],
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    return json.loads(line.removeprefix("RESULT "))


def benchmark_engines() -> list[dict[str, Any]]:
    """Arguments of every engine of every part. Its attention backend needs a GPU, and so is left out."""
    settings: list[EngineSettings] = []
    for part in PARTS:
        first = settings_of(parse(["--part", part]))[0]
        settings += [replace(first, connector=name) for name in CONNECTORS]
    made = []
    for each in dict.fromkeys(settings):
        arguments = {**each.arguments(str(HERE / "tiny_model")), "max_model_len": 4096}
        del arguments["attention_backend"]
        made.append(arguments)
    return made


@pytest.fixture(scope="module")
def made() -> list[list[Any]]:
    """What vLLM makes of the guide's commands, with the model replaced by one that is here, and of the benchmarks."""
    commands = [[str(HERE / "tiny_model"), "--skip-tokenizer-init", *command[3:]] for command in SERVE]
    return engine_configs([*commands, *benchmark_engines()])


def test_the_guides_commands_make_an_engines_configuration(made: list[list[Any]]) -> None:
    """Parsed by vLLM's own parser; the classes are found, and the failure policy is the one that was written."""
    expected = [
        ["KVMoveConnector", "KVMoveOffloadingSpec"],
        ["OffloadingConnector", "KVMoveOffloadingSpec"],
        ["KVMoveConnector", "CPUOffloadingSpec"],
    ]
    assert [each[:2] for each in made[: len(SERVE)]] == expected
    failing = [config(c).get("kv_load_failure_policy", "fail") for c in SERVE]
    assert [each[3] for each in made[: len(SERVE)]] == failing


def test_the_benchmarks_engines_make_an_engines_configuration(made: list[list[Any]]) -> None:
    """Every engine of every part, so that no minute of a GPU goes to finding out."""
    engines = made[len(SERVE) :]
    assert len(engines) >= 3 * len(CONNECTORS)
    assert {each[2] for each in engines} == {BLOCK_TOKENS}


@pytest.mark.parametrize("name", sorted(DEFINITIONS))
def test_every_metric_is_in_the_guide(name: str) -> None:
    """By the name under which it is scraped."""
    kind = type(DEFINITIONS[name]).__name__
    assert name + ("_total" if "Counter" in kind else "") in GUIDE
