"""Examples under their policy: which hold, why the others do not, and what of the policy they exercise."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from kvmove.errors import PolicyError
from kvmove.kvpol.analyse import analyse
from kvmove.kvpol.dry_run import WHY, DryDecision, DryRun
from kvmove.kvpol.examples_coverage import Coverage
from kvmove.kvpol.examples_records import Example, ExpectedHit
from kvmove.kvpol.given import BadValue, step_of
from kvmove.kvpol.policy import Policy
from kvmove.kvpol.reasons import named, rule_name, rules_text
from kvmove.kvpol.source import quoted
from kvmove.kvpol.suggest import did_you_mean, listed
from kvmove.kvpol.units import BYTES, show


@dataclass(frozen=True, slots=True)
class ExampleResult:
    """One example that was run.

    Attributes:
        problems: what does not hold, a text for each hit that it does not hold of; empty where all does.
        decisions: what was decided, hit by hit; empty where the example cannot be run under this policy.
    """

    example: Example
    problems: tuple[str, ...]
    decisions: tuple[DryDecision, ...]

    @property
    def passed(self) -> bool:
        """Whether everything that the example expects holds."""
        return not self.problems


@dataclass(frozen=True, slots=True)
class Report:
    """Examples that were run under one policy."""

    policy: Policy
    results: tuple[ExampleResult, ...]
    coverage: Coverage

    @property
    def passed(self) -> bool:
        """Whether every example holds."""
        return all(result.passed for result in self.results)

    @property
    def failed(self) -> tuple[ExampleResult, ...]:
        """The examples that do not hold."""
        return tuple(result for result in self.results if not result.passed)


def run(policy: Policy, examples: Iterable[Example]) -> Report:
    """Run `examples` under `policy`; see `kvmove.kvpol.examples.run_examples`."""
    runner = _Runner(policy)
    results = tuple(runner.result(example) for example in examples)
    return Report(policy, results, runner.coverage)


class _Runner:
    def __init__(self, policy: Policy) -> None:
        self.policy, self.coverage = policy, Coverage(policy)
        self._with_params: dict[str, Policy] = {}

    def result(self, example: Example) -> ExampleResult:
        try:
            policy = self.policy_of(example)
            state, _ = step_of(example.step, policy.budget_bytes)
        except (PolicyError, BadValue) as e:
            return ExampleResult(example, (str(e),), ())
        dry_run = DryRun(policy, state)
        decisions = [dry_run.decide(expected.hit) for expected in example.hits]
        problems: list[str] = []
        for i, (expected, found) in enumerate(zip(example.hits, decisions, strict=True)):
            self.coverage.add(found.trace)
            wrong = list(_wrong(policy, expected, found))
            if wrong:
                which = f"hit {i + 1} of {len(decisions)}: " if len(decisions) > 1 else ""
                problems.append(which + "\n".join([*wrong, *_why(policy, expected, found)]))
        return ExampleResult(example, tuple(problems), tuple(decisions))

    def policy_of(self, example: Example) -> Policy:
        """The policy with the params of the example in place of its own."""
        if not example.params:
            return self.policy
        key = repr(sorted(example.params.items()))
        if key not in self._with_params:
            overrides = {**self.policy.params, **example.params}
            analysis = analyse(self.policy.analysis.source, overrides)
            self._with_params[key] = Policy(analysis, overrides, self.policy.name)
        return self._with_params[key]


def _wrong(policy: Policy, expected: ExpectedHit, found: DryDecision) -> Iterator[str]:
    """What does not hold, a line each."""
    decision, rule = found.decision, found.trace.rule
    wanted = _index_of(expected.rule, policy)
    if isinstance(wanted, str):
        yield wanted
    wrong_rule = isinstance(wanted, int) and wanted != rule.index
    if decision.action is not expected.expect or wrong_rule:
        by = f" by {_name(policy, wanted)}" if isinstance(wanted, int) else ""
        yield f"expected {expected.expect}{by}, got {decision.action} by {rule_name(rule)}"
    if decision.demotion is not expected.guard_rail:
        if decision.demotion is None:
            yield f"expected the guard rail {expected.guard_rail}, and none changed the {decision.action} asked for"
        else:
            said = f', not "{expected.guard_rail}"' if expected.guard_rail else ""
            yield (
                f"the policy asked for {decision.asked}, which a guard rail made {decision.action}: "
                f'{WHY[decision.demotion]}; where that is meant, write guard_rail = "{decision.demotion}"{said}'
            )
    if decision.action is not expected.expect:
        return
    if expected.blocks is not None and decision.blocks != expected.blocks:
        yield f"expected {expected.blocks} blocks, got {decision.blocks} of {expected.hit.blocks}"
    if expected.max_bytes is not None and decision.bytes > expected.max_bytes:
        yield f"expected at most {_bytes(expected.max_bytes)}, got {_bytes(decision.bytes)}"


def _index_of(rule: str | int | None, policy: Policy) -> int | str | None:
    """The index of the rule that is expected, or why there is none."""
    if rule is None:
        return None
    if isinstance(rule, int):
        if rule <= len(policy.rules):
            return rule - 1
        return f"there is no rule {rule}; the policy has {len(policy.rules)}"
    labels = {f"@{r.label}": r.index for r in policy.rules if r.label}
    if rule in labels:
        return labels[rule]
    hint = did_you_mean(rule, labels) or (f"its labels are {listed(labels)}" if labels else "it has no labels")
    return f"the policy has no rule {quoted(rule)}; {hint}"


def _name(policy: Policy, index: int) -> str:
    rule = policy.rules[index]
    return named(index, rule.label, rule.line)


def _why(policy: Policy, expected: ExpectedHit, found: DryDecision) -> Iterator[str]:
    """Why the rules up to the one that decides, and the one that was expected to, matched or did not."""
    wanted = _index_of(expected.rule, policy)
    traced = found.trace
    rules = [r for r in traced.rules if r.index <= traced.rule.index or r.index == wanted]
    yield from (f"  {line}" for line in rules_text(traced, found.hit.blocks, rules))


def _bytes(num_bytes: int) -> str:
    from fractions import Fraction

    return show(Fraction(num_bytes), BYTES)
