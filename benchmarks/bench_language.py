"""What the policy language costs before and between decisions: import, check and compile, proofs, and refusals.

    python -m benchmarks.bench_language [--output PATH] [--runs 5]        (or `make bench-language`)

Every run is a process of its own and takes each figure several times; a figure is the median of the runs' medians, its
spread half the distance between the largest and the smallest run. Times have two rows, which share their target: by the
clock, and CPU time, which other work on the machine stretches less.

- `import`: `import kvmove.kvpol` in a new interpreter, without torch.
- `check + compile, 20 rules`: `Policy.parse` of 20 rules with 5 comparisons each, in a process that has parsed before.
- `first check + compile`: the same as the first policy of a process, which imports lark and builds the grammar.
- `one decision, 10 rules`: a hit for which all 20 comparisons of 10 rules are evaluated, as a ratio to an empty call,
  taken as `bench_decide` does.
- `prove, 30 linear rules`: `prove` of 30 rules, two lets and two asserts; z3 is loaded before.
- `kvmove check` and `kvmove prove`: the commands from start to end, on those policies.
- `slowest refusal`: the slowest of a few texts that are made to hurt, each of the largest size that is looked at.

Before anything is measured: the compiled policies decide as the tree evaluator does, the proof says that every rule can
decide and every assert holds, and the hostile texts are refused.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks import bench_decide, report
from kvmove import Policy, PolicyError
from kvmove.bench.rows import Row
from kvmove.kvpol.evaluate import Evaluator

ROOT = Path(__file__).resolve().parent.parent
DECISIONS = ("sync", "recompute", "defer", "async")

# id, unit, target; without a target the figure is there to be seen.
FIGURES: dict[str, tuple[str, str, float | None]] = {
    "import": ("import kvmove.kvpol", "ms", 100),
    "check": ("check + compile, 20 rules", "ms", 60),
    "first": ("first check + compile", "ms", None),
    "decide": ("one decision, 10 rules", "x an empty call", 10),
    "prove": ("prove, 30 linear rules", "s", 2),
    "refusal": ("slowest refusal", "ms", None),
    "kvmove check": ("kvmove check, 20 rules", "ms", None),
    "kvmove prove": ("kvmove prove, 30 linear rules", "s", None),
}

Times = dict[str, list[tuple[float, float]]]  # for each figure (by the clock, of the CPU), in its unit


def twenty_rules() -> str:
    """A policy of 20 rules and 100 comparisons, with a param, a let and an assert."""
    lines = ['policy "twenty"', "param budget: bytes = 64MiB", "let async_cost = load_time + async_delay"]
    lines += [
        f"@r{i} {DECISIONS[i % 4]} if bytes <= budget_remaining and tokens <= {64 * (i + 1)}tok "
        f"and async_cost > {i + 1} * load_time or recompute_time < {i + 1}ms and waiting < {i + 3}"
        for i in range(20)
    ]
    return "\n".join([*lines, "assert sync implies load_bytes <= budget", ""])


def ten_rules() -> str:
    """Ten rules with two comparisons each, of which the measured hit meets none."""
    lines = [f"{DECISIONS[i % 4]} if bytes <= budget_remaining and tokens <= {8 * (i + 1)}tok" for i in range(10)]
    return "\n".join([*lines, ""])


def thirty_rules() -> str:
    """Thirty rules of linear conditions, each of which can decide."""
    lines = ["let async_cost = load_time + async_delay", "let room = budget_remaining - inflight_bytes"]
    lines += [_linear_rule(i) for i in range(30)]
    lines += ["assert sync implies bytes <= budget_remaining", "assert defer implies deferrals < 1", ""]
    return "\n".join(lines)


def _linear_rule(i: int) -> str:
    match i % 3:
        case 0:
            return f"sync if bytes <= budget_remaining and tokens <= {64 * (i + 1)}tok and waiting > {60 - i}"
        case 1:
            return f"recompute if recompute_time + {i}ms < load_time and 2 * bytes > room and running > {99 - i}"
    return f"defer if async_cost > {40 - i} * load_time and deferrals < 1 and priority > {99 - i}"


HOSTILE = {
    "nesting": "sync if " + "(" * 60_000,
    "names": "sync if " + " or ".join(f"byte{i} < 3B" for i in range(700)),
    "mistakes": "async if 1 +\n" * 900,
    "strays": "$ % ^ ~ ` " * 6_000,
    "digits": "sync if bytes < " + "9" * 60_000 + "B",
    "lets": "let a0 = bytes\n" + "".join(f"let a{i} = a{i - 1} + 1B\n" for i in range(1, 400)),
    "megabyte": "(" * (1 << 20),
}


def check() -> None:
    """Refuse to measure what is wrong."""
    rng = random.Random(0)
    for text in (twenty_rules(), ten_rules(), thirty_rules()):
        policy = Policy.parse(text)
        evaluator = Evaluator(policy.analysis.file, policy.program.params)
        for _ in range(300):
            h, s = bench_decide.random_situation(rng)
            report.require(policy.decide(h, s) == evaluator.rule(h, s), f"{h} {s}: not what the evaluator decides")
    ten = Policy.parse(ten_rules())
    report.require(ten.decide(bench_decide.hit(), bench_decide.step()) == 10, "the measured hit is taken by a rule")
    for name, text in HOSTILE.items():
        try:
            Policy.parse(text)
        except PolicyError:
            continue
        report.require(False, f"the text `{name}` is accepted")
    from kvmove.kvpol.proof import prove

    proved = prove(Policy.parse(thirty_rules()))
    report.require(proved.status == "proved", f"the proof of 30 rules says {proved.status}")
    report.require(len(proved.rules) == 30 and len(proved.asserts) == 2, "the proof is of another policy")


def timed(work: Callable[[], object], scale: float) -> tuple[float, float]:
    """What `work` takes, by the clock and of the CPU, in units of which a second has `scale`."""
    clock, cpu = time.perf_counter(), time.process_time()
    work()
    return (time.perf_counter() - clock) * scale, (time.process_time() - cpu) * scale


def refused(text: str) -> None:
    """Have `text` refused."""
    try:
        Policy.parse(text)
    except PolicyError:
        return


def one_run() -> Times:
    """Every figure that needs no process of its own, several times, in a process where nothing was parsed yet."""
    found: Times = {}
    text = twenty_rules()
    found["first"] = [timed(lambda: Policy.parse(text), 1e3)]
    found["check"] = [timed(lambda: Policy.parse(text), 1e3) for _ in range(21)]
    found["refusal"] = [_slowest(3)]
    decide = Policy.parse(ten_rules()).decide
    by_clock, of_cpu = (bench_decide.measure(decide, clock)[0] for clock in (time.perf_counter, time.process_time))
    found["decide"] = list(zip(by_clock, of_cpu, strict=True))
    import z3  # type: ignore[import-untyped]  # noqa: F401 - loaded before the proof is timed

    from kvmove.kvpol.proof import prove

    thirty = Policy.parse(thirty_rules())
    found["prove"] = [timed(lambda: prove(thirty), 1) for _ in range(3)]
    return found


def _slowest(times: int) -> tuple[float, float]:
    medians = []
    for text in HOSTILE.values():
        taken = [timed(lambda t=text: refused(t), 1e3) for _ in range(times)]  # type: ignore[misc]
        medians.append((statistics.median(t[0] for t in taken), statistics.median(t[1] for t in taken)))
    return max(medians)


IMPORT = """
import sys, time
clock, cpu = time.perf_counter(), time.process_time()
import kvmove.kvpol
print((time.perf_counter() - clock) * 1e3, (time.process_time() - cpu) * 1e3)
assert "torch" not in sys.modules and "triton" not in sys.modules
"""


def imports(times: int) -> list[tuple[float, float]]:
    """The import, in as many new interpreters."""
    found = []
    for _ in range(times):
        clock, cpu = _output([sys.executable, "-c", IMPORT]).split()
        found.append((float(clock), float(cpu)))
    return found


def command(arguments: Sequence[str], scale: float) -> tuple[float, float]:
    """What a kvmove command takes from start to end."""
    import resource

    def cpu() -> float:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    before, clock = cpu(), time.perf_counter()
    _output([sys.executable, "-m", "kvmove", *arguments])
    return (time.perf_counter() - clock) * scale, (cpu() - before) * scale


def _output(line: Sequence[str]) -> str:
    done = subprocess.run(line, capture_output=True, text=True, check=False, cwd=ROOT)
    report.require(done.returncode == 0, f"{' '.join(line[1:4])} ended with {done.returncode}: {done.stderr[-500:]}")
    return done.stdout


def measure(runs: int) -> list[Times]:
    """Every figure of so many runs."""
    taken: list[Times] = []
    with tempfile.TemporaryDirectory() as folder:
        twenty, thirty = Path(folder, "twenty.kvpol"), Path(folder, "thirty.kvpol")
        twenty.write_text(twenty_rules(), encoding="utf-8")
        thirty.write_text(thirty_rules(), encoding="utf-8")
        for _ in range(runs):
            found: Times = json.loads(_output([sys.executable, "-m", "benchmarks.bench_language", "--one-run"]))
            found["import"] = imports(5)
            found["kvmove check"] = [command(["check", str(twenty)], 1e3)]
            found["kvmove prove"] = [command(["prove", str(thirty)], 1)]
            taken.append(found)
    return taken


def rows(taken: Sequence[Times]) -> list[Row]:
    """Two rows for each figure: by the clock and of the CPU."""
    made = []
    for name, (id, unit, target) in FIGURES.items():
        for kind, which in (("", 0), (", CPU", 1)):
            runs = [[value[which] for value in run[name]] for run in taken]
            made.append(Row.of_runs(id + kind, runs, unit, at_most=target))
    return made


def main() -> None:
    """Check, measure and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--output", type=Path, default=report.default_path("language"))
    parser.add_argument("--runs", type=int, default=5, help="how many processes take every figure (at least 3)")
    parser.add_argument("--one-run", action="store_true", help="print the figures of one process as JSON")
    options = parser.parse_args()
    if options.one_run:
        print(json.dumps(one_run()))
        return
    if options.runs < 3:
        parser.error("--runs: at least 3, or there is no spread to speak of")
    check()
    report.write(options.output, rows(measure(options.runs)))


if __name__ == "__main__":
    main()
