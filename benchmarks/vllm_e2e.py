"""The whole of vLLM with its own offloading connector and with kvmove's, on this GPU, engine beside engine.

    python -m benchmarks.vllm_e2e --part ttft-idle [--seconds 540] [--output FILE]
    python -m benchmarks.vllm_e2e --self-check          # on any machine: settings, arithmetic and the table, no engine

Needs a CUDA device with 100 GiB or more, 80 GiB of host memory (24 of it in /dev/shm), and vLLM 0.33 that can run a
dense model; no network, tokenizer or weights: these are random, of a well-known shape (`--model 4b` or `8b`).

Every engine has a process of its own (`benchmarks.vllm_engine`), all of them stay up, and one works at a time: they are
measured in turn, repetition by repetition, with the same prompts. Parts, each within `--seconds`, start-up included (15
to 45 s an engine); what is left when the time is up is not done, and the rows say how many repetitions they are of:

    tokens        200 prompts, cold, from the GPU cache, from host memory in and between steps: tokens, KV bytes
    ttft-idle     extra time to first token of a tail that only host memory has, over the same all in the GPU cache
    ttft-loaded   the same while a cold prefill of 6,000 tokens arrives in every step (steps of 0.1 to 0.5 s)
    small         tails of 512 and 1,024 tokens, idle and loaded, 50 pairs, with an interval
    rates         stores and loads of prompts of 16,384 tokens, by the device's time
    trace         conversations that together exceed the GPU cache, in rounds: seconds and tokens
    graphs        one tail, idle, with CUDA graphs of decode steps

Engines: `theirs-async` and `theirs-sync` are vLLM's connector and worker, without and with `sync_load_budget_bytes`;
`ours-async` and `ours-worker` are vLLM's connector over kvmove's worker, `ours-policy` is kvmove's connector and
worker.
Rows go to `benchmarks/results/vllm-e2e-<machine>.json`; rows of other parts in it stay.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Protocol

from benchmarks import report, versus
from benchmarks.versus import Versus
from benchmarks.vllm_engine import CONNECTORS, EngineSettings, serve

TAILS = (512, 2048, 8192, 15872)
PREFIX = 8192
TARGET_FROM = 2048  # tokens; shorter tails are reported with an interval
TARGET = 0.8
START_S = 240.0
CALL_S = 120.0

Values = dict[str, Any]


class Running(Protocol):
    """An engine that does what `benchmarks.vllm_engine.Engine` does."""

    def call(self, method: str, **arguments: Any) -> Values:
        """Do it, and return what it returns.

        Raises:
            RuntimeError: it failed; the message has the engine's traceback.
        """

    def close(self) -> None:
        """End the engine's process."""


class EngineProcess:
    """An engine in a process of its own."""

    def __init__(self, settings: EngineSettings) -> None:
        context = multiprocessing.get_context("spawn")
        self._name = settings.connector
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(theirs, settings), daemon=True)
        self._process.start()
        theirs.close()
        try:
            self.facts = self._answer(START_S)
        except BaseException:
            self.close()
            raise

    def call(self, method: str, **arguments: Any) -> Values:
        self._pipe.send((method, arguments))
        return self._answer(CALL_S)

    def _answer(self, seconds: float) -> Values:
        if not self._pipe.poll(seconds):
            raise RuntimeError(f"{self._name}: no answer within {seconds:.0f} s")
        try:
            kind, value = self._pipe.recv()
        except EOFError:
            raise RuntimeError(f"{self._name}: the engine's process ended") from None
        if kind == "error":
            raise RuntimeError(f"{self._name}: {value}")
        return dict(value)

    def close(self) -> None:
        with suppress(OSError):
            self._pipe.send(None)
        self._process.join(5)
        if self._process.is_alive():
            self._process.kill()


class Clock:
    """How much of a call's time is left, and what failed in it.

    Attributes:
        failures: a sentence each. The first ends the rounds; what was measured before it counts.
    """

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds
        self.failures: list[str] = []

    def part(self, share: float) -> Clock:
        """A clock that ends when this share of what is left has gone by."""
        own = Clock((self._end - time.monotonic()) * share)
        own.failures = self.failures
        return own

    def rounds(self, most: int, do: Callable[[int], None]) -> None:
        """Call `do` with 0, 1, ... `most` - 1, while another as long as the longest so far fits and none fails."""
        longest = 0.0
        for i in range(most):
            began = time.monotonic()
            if began + 1.2 * longest > self._end or self.failures:
                return
            try:
                do(i)
            except RuntimeError as error:
                self.failures.append(str(error))
            longest = max(longest, time.monotonic() - began)


Engines = Mapping[str, Running]


def in_turn(engines: Engines, number: int) -> list[str]:
    """The engines' names, in another order each round."""
    names = list(engines)
    shift = number % len(names)
    return names[shift:] + names[:shift]


def _all(made: dict[str, list[Values]], engines: Engines, number: int, method: str, **arguments: Any) -> None:
    """Call every engine, and add what they return once all have."""
    results = {name: engines[name].call(method, **arguments) for name in in_turn(engines, number)}
    for name, result in results.items():
        made[name].append(result)


def tokens(engines: Engines, clock: Clock, args: argparse.Namespace) -> list[Versus]:
    """Greedy tokens and KV bytes of every prompt in every state, across engines."""
    made: dict[str, list[Values]] = {name: [] for name in engines}

    def one(i: int) -> None:
        length = 512 + 97 * (i % 24)  # 512 to 2,743, and so of every offset in a block
        _all(made, engines, i, "tokens", seed=100_000 + i, length=length, new_tokens=8)

    clock.rounds(args.prompts, one)
    rows = []
    for name, results in made.items():
        n = len(results)
        same_bytes = sum(r["host"]["digest"] == r["cold"]["digest"] == r["gpu"]["digest"] != "" for r in results)
        right_load = sum(
            r["host"]["load_bytes"] >= r["expected_bytes"] and r["host"]["sync"] is not name.endswith("-async")
            for r in results
        )
        rows.append(versus.count(f"tokens, {name}: KV bytes loaded are those computed", same_bytes, n))
        rows.append(versus.count(f"tokens, {name}: host hit of every whole block, in its lane", right_load, n))
        rows.append(
            versus.count(
                f"tokens, {name}: host hit and GPU hit",
                sum(r["host"]["tokens"] == r["gpu"]["tokens"] for r in results),
                n,
            )
        )
        rows.append(_cold(name, results))
    first = next(iter(made))
    for name, results in made.items():
        if name != first:
            same = sum(a["host"]["tokens"] == b["host"]["tokens"] for a, b in zip(made[first], results, strict=True))
            rows.append(versus.count(f"tokens, {name} and {first}: host hit", same, len(results)))
    return rows


def _cold(name: str, results: Sequence[Values]) -> Versus:
    """A cold prefill has other shapes than one after a hit: reported, with how close the call was where they part."""
    margins = []
    for r in results:
        pairs = zip(r["cold"]["tokens"], r["gpu"]["tokens"], r["cold"]["margins"], strict=True)
        margins += [margin for a, b, margin in pairs if a != b][:1]
    note = f"largest margin where they part: {max(margins):.3g} nats" if margins else "they never part"
    return Versus(
        id=f"tokens, {name}: cold and GPU hit",
        value=len(results) - len(margins),
        theirs=len(results),
        unit="of",
        ratio=(len(results) - len(margins)) / len(results) if results else None,
        runs=len(results),
        note=note,
    )


def _probe(
    engines: Engines, clock: Clock, tails: Sequence[int], repeat: int, loaded: bool, seed: int
) -> dict[int, dict[str, list[Values]]]:
    """`ttft` for every tail and engine, with the same prompts in all of them; the first of each is not counted."""
    made: dict[int, dict[str, list[Values]]] = {tail: {name: [] for name in engines} for tail in tails}
    first: dict[str, list[Values]] = {name: [] for name in engines}

    def one(i: int) -> None:
        for n, tail in enumerate(tails):
            own = made[tail] if i else first
            _all(own, engines, i, "ttft", seed=seed + 10 * i + n, prefix=PREFIX, tail=tail, loaded=loaded)

    clock.rounds(repeat + 1, one)
    return made


PAIRS = (
    ("ours-worker", "theirs-sync", "sync, worker only"),
    ("ours-policy", "theirs-sync", "sync, worker and policy"),
    ("ours-async", "theirs-async", "async, worker only"),
)


def _ttft_rows(made: Mapping[int, Mapping[str, Sequence[Values]]], load: str, *, tail_rows: bool) -> list[Versus]:
    rows = []
    for tail, results in made.items():
        for ours, theirs, what in PAIRS:
            mine, other = results.get(ours), results.get(theirs)
            if not mine or not other:
                continue
            x, y = [r["extra_ms"] for r in mine], [r["extra_ms"] for r in other]
            held = tail >= TARGET_FROM and what.startswith("sync")
            label = f"extra TTFT, {what}, {load}, tail {tail}"
            note = (
                f"GPU hit {statistics.median(r['gpu_s'] for r in mine) * 1e3:.1f} and "
                f"{statistics.median(r['gpu_s'] for r in other) * 1e3:.1f} ms; "
                f"steps {statistics.median(r['host_steps'] for r in mine):g} and "
                f"{statistics.median(r['host_steps'] for r in other):g}; "
                f"copy {statistics.median(r['copy_ms'] for r in mine):.2f} and "
                f"{statistics.median(r['copy_ms'] for r in other):.2f} ms"
            )
            rows.append(versus.compare(label, x, y, "ms", at_most=TARGET if held else None, note=note))
            if tail_rows:
                rows.append(versus.compare(f"{label}, p99", x, y, "ms", statistic=versus.p99))
            same = [sum(r["same_token"] for r in each) for each in (mine, other)]
            rows.append(versus.count(f"{label}, same first token", same[0], len(mine), note=f"theirs {same[1]}"))
        async_, sync = results.get("theirs-async"), results.get("ours-policy") or results.get("ours-worker")
        if async_ and sync:
            x, y = [r["extra_ms"] for r in sync], [r["extra_ms"] for r in async_]
            rows.append(versus.compare(f"extra TTFT, our sync over their async, {load}, tail {tail}", x, y, "ms"))
    return rows


def ttft_idle(engines: Engines, clock: Clock, args: argparse.Namespace) -> list[Versus]:
    """Extra time to first token where nothing else runs."""
    return _ttft_rows(_probe(engines, clock, TAILS, args.repeat, False, 200_000), "idle", tail_rows=False)


def ttft_loaded(engines: Engines, clock: Clock, args: argparse.Namespace) -> list[Versus]:
    """Extra time to first token beside prefills."""
    return _ttft_rows(_probe(engines, clock, TAILS, args.repeat, True, 300_000), "loaded", tail_rows=False)


def small(engines: Engines, clock: Clock, args: argparse.Namespace) -> list[Versus]:
    """Short tails, often enough for an interval."""
    rows = []
    for load in (False, True):
        own = clock if load else clock.part(0.4)  # the idle ones are the shorter
        made = _probe(engines, own, (512, 1024), args.pairs, load, 400_000 + 5000 * load)
        rows += _ttft_rows(made, "loaded, often" if load else "idle, often", tail_rows=True)
    return rows


def graphs(engines: Engines, clock: Clock, args: argparse.Namespace) -> list[Versus]:
    """One tail with CUDA graphs on."""
    made = _probe(engines, clock, (8192,), args.repeat, False, 500_000)
    return _ttft_rows(made, "idle, CUDA graphs", tail_rows=False)


def rates(engines: Engines, clock: Clock, args: argparse.Namespace) -> list[Versus]:
    """GB/s of stores and loads on the device, of a whole prompt."""
    made: dict[str, list[Values]] = {name: [] for name in engines}
    clock.rounds(args.repeat + 1, lambda i: _all(made, engines, i, "rates", seed=600_000 + i, length=16384))
    rows = []
    for ours, theirs, what in PAIRS:
        for kind in ("loads", "stores"):
            x, y = (_rates(made.get(name, [])[1:], kind) for name in (ours, theirs))
            if x and y:
                rows.append(versus.compare(f"rate of {kind}, {what}", x, y, "GB/s", at_least=1.0))
    return rows


def _rates(results: Sequence[Values], kind: str) -> list[float]:
    """GB/s of the large transfers of each result."""
    made = []
    for result in results:
        large = [(n, s) for n, s in result[kind] if n >= 64 << 20 and s > 0]
        if large:
            made.append(sum(n for n, _ in large) / sum(s for _, s in large) / 1e9)
    return made


def trace(engines: Engines, clock: Clock, args: argparse.Namespace) -> list[Versus]:
    """Rounds of conversations: seconds after the first round, in which everything is cold."""
    made: dict[str, list[Values]] = {name: [] for name in engines}
    traffic = {"conversations": 20, "turns": 4, "turn_tokens": 1000, "new_tokens": 32}
    clock.rounds(args.repeat, lambda i: _all(made, engines, i, "trace", seed=700_000 + i, **traffic))
    rows = []
    for ours, theirs, what in PAIRS:
        mine, other = made.get(ours), made.get(theirs)
        if not mine or not other:
            continue
        x, y = ([r["new_tokens"] * 3 / 4 / sum(r["rounds_s"][1:]) for r in each] for each in (mine, other))
        note = f"loaded {mine[0]['load_bytes'] / 1e9:.1f} and {other[0]['load_bytes'] / 1e9:.1f} GB a run"
        rows.append(versus.compare(f"multi-turn throughput, {what}", x, y, "tokens/s", at_least=1.0, note=note))
        both = [(a, b) for r, q in zip(mine, other, strict=True) for a, b in zip(r["tokens"], q["tokens"], strict=True)]
        flat = [(a, b) for first, second in both for a, b in zip(first, second, strict=True)]
        same = sum(a == b for a, b in flat)
        rows.append(
            Versus(
                id=f"multi-turn outputs that are the same, {what}",
                value=same,
                theirs=len(flat),
                unit="of",
                ratio=same / len(flat),
                runs=len(mine),
                note="batches differ between engines, so shapes do",
            )
        )
    return rows


Part = Callable[[Engines, Clock, argparse.Namespace], list[Versus]]
SYNC = ("theirs-sync", "ours-worker", "ours-policy")
PARTS: Mapping[str, tuple[Part, tuple[str, ...], Mapping[str, Any]]] = {
    "tokens": (tokens, ("theirs-sync", "theirs-async", "ours-policy", "ours-async"), {"kv_gib": 6.0, "host_gib": 8.0}),
    "ttft-idle": (ttft_idle, ("theirs-async", *SYNC), {}),
    "ttft-loaded": (ttft_loaded, ("theirs-async", *SYNC), {}),
    "small": (small, ("theirs-sync", "ours-policy"), {}),
    "rates": (rates, ("theirs-sync", "ours-worker", "theirs-async", "ours-async"), {}),
    "trace": (trace, ("theirs-async", "theirs-sync", "ours-async", "ours-policy"), {"kv_gib": 6.0}),
    "graphs": (graphs, ("theirs-sync", "ours-policy"), {"cuda_graphs": True}),
}


def settings_of(args: argparse.Namespace) -> list[EngineSettings]:
    """The engines of the part that was asked for."""
    _, names, own = PARTS[args.part]
    chosen = args.engines.split(",") if args.engines else list(names)
    base = EngineSettings(
        connector=chosen[0], model=args.model, kv_gib=args.kv_gib, host_gib=args.host_gib, attention=args.attention
    )
    return [replace(base, **own, connector=name) for name in chosen]


def measure(args: argparse.Namespace, start: Callable[[EngineSettings], Running]) -> tuple[list[Versus], list[str]]:
    """The rows of a part, and what failed on the way."""
    clock = Clock(args.seconds)
    engines: dict[str, Running] = {}
    rows: list[Versus] = []
    try:
        for settings in settings_of(args):
            began = time.monotonic()
            engines[settings.connector] = start(settings)
            print(f"{settings.connector} is up after {time.monotonic() - began:.0f} s", flush=True)
        rows = PARTS[args.part][0](engines, clock, args)
    except RuntimeError as error:
        clock.failures.append(f"{args.part}: {error}")
    finally:
        for engine in engines.values():
            engine.close()
    return rows, clock.failures


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--part", choices=sorted(PARTS))
    parser.add_argument("--self-check", action="store_true", help="run every part over engines that are made up")
    parser.add_argument("--engines", default="", help=f"instead of the part's own: of {', '.join(CONNECTORS)}")
    parser.add_argument("--model", default="4b", choices=["4b", "8b"])
    parser.add_argument("--seconds", type=float, default=540.0, help="for the whole call, start-up included")
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--pairs", type=int, default=50, help="of the part `small`")
    parser.add_argument("--prompts", type=int, default=200, help="of the part `tokens`")
    parser.add_argument("--kv-gib", type=float, default=12.0)
    parser.add_argument("--host-gib", type=float, default=12.0)
    parser.add_argument("--attention", default="FLASH_ATTN")
    parser.add_argument("--output", type=Path, default=None)
    args = parser.parse_args(arguments)
    unknown = [name for name in args.engines.split(",") if name and name not in CONNECTORS]
    if unknown:
        parser.error(f"there is no engine {unknown[0]!r}; choose from: {', '.join(CONNECTORS)}")
    if not args.self_check and args.part is None:
        parser.error("--part or --self-check is needed")
    return args


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure a part and write its rows. Returns the exit status: 2 where something failed, 1 for a missed target."""
    args = parse(arguments)
    if args.self_check:
        return self_check(args)
    rows, failures = measure(args, EngineProcess)
    settings: dict[str, Any] = {args.part: [asdict(s) for s in settings_of(args)], "vllm": _vllm_version()}
    if failures:
        print("\n".join(failures), file=sys.stderr)
        settings[f"{args.part}, failed"] = [f.strip().splitlines()[-1] for f in failures]
    if rows:
        versus.write(args.output or report.default_path("vllm-e2e"), rows, settings)
    return 2 if failures else int(any(row.ok is False for row in rows))


def _vllm_version() -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("vllm")
    except PackageNotFoundError:
        return None


class MadeUpEngine:
    """Answers as an engine would, with figures that follow from its name: ours take 0.7 times as long."""

    def __init__(self, settings: EngineSettings) -> None:
        self._settings = settings
        self._factor = 0.7 if settings.connector.startswith("ours") else 1.0
        settings.arguments("model")  # must be possible for every engine of every part

    def call(self, method: str, **arguments: Any) -> Values:
        is_async = self._settings.connector.endswith("-async")
        if method == "ttft":
            extra = self._factor * (arguments["tail"] / 300 + (370 if is_async and arguments["loaded"] else 0))
            gpu = 0.2 if arguments["loaded"] else 0.02
            return {
                "host_s": gpu + extra / 1e3, "gpu_s": gpu, "extra_ms": extra, "host_steps": 2, "gpu_steps": 2,
                "same_token": True, "load_bytes": 1, "sync": not is_async, "copy_ms": extra / 2,
            }  # fmt: skip
        if method == "tokens":
            state = {"tokens": [1, 2], "margins": [0.5, 0.1], "digest": "d", "load_bytes": 0}
            host = {**state, "load_bytes": 64, "sync": not is_async, "async": is_async}
            return {"cold": {**state, "tokens": [1, 3]}, "gpu": state, "host": host, "expected_bytes": 64}
        if method == "rates":
            return {"stores": [(1 << 30, 0.02 * self._factor)], "loads": [(1 << 30, 0.02 * self._factor), (9, 1.0)]}
        if method == "trace":
            outputs = [[[1, 2], [3, 4]] for _ in range(4)]
            seconds = [2.0] + [self._factor] * 3
            return {"rounds_s": seconds, "tokens": outputs, "load_bytes": 1, "new_tokens": 2560}
        raise RuntimeError(f"no engine has {method}")

    def close(self) -> None:
        return


def self_check(args: argparse.Namespace) -> int:
    """Run every part over made-up engines, and write the table to a file that is thrown away."""
    with tempfile.TemporaryDirectory() as folder:
        path = args.output or Path(folder) / "rows.json"
        for part in sorted(PARTS):
            args.part = part
            rows, failures = measure(args, MadeUpEngine)
            report.require(not failures and bool(rows), f"{part}: {failures}")
            versus.write(path, rows, {part: [asdict(s) for s in settings_of(args)]})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
