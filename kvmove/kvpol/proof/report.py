"""Everything that `prove` asks about a policy, and what it found as findings."""

from __future__ import annotations

from time import perf_counter

from kvmove.kvpol import codes, tree
from kvmove.kvpol.findings import Finding, Note
from kvmove.kvpol.policy import Policy, Rule
from kvmove.kvpol.proof.claims import prove_assert, prove_monotone
from kvmove.kvpol.proof.confirm import outcome
from kvmove.kvpol.proof.describe import described
from kvmove.kvpol.proof.results import Example, Report, RuleProof, Status, Verdict
from kvmove.kvpol.proof.search import Answer, Search
from kvmove.kvpol.proof.session import Term
from kvmove.kvpol.proof.worlds import World, one_hit
from kvmove.kvpol.source import Span
from kvmove.records import Action

MORE_TIME = "give it more time with `--timeout`, or simplify what it is about"


def prove_policy(policy: Policy, monotone: bool, timeout_s: float) -> Report:
    """See `kvmove.kvpol.proof.prove`."""
    search = Search(one_hit(policy.program), timeout_s)
    rules = tuple(_prove_rule(search, policy, rule) for rule in policy.rules if not rule.is_implicit)
    asserts = tuple(prove_assert(search, policy.analysis, i) for i in range(len(policy.program.asserts)))
    is_monotone = prove_monotone(policy, timeout_s) if monotone else None
    findings = _Findings(policy)
    for proof in rules:
        findings.rule(proof)
    statements = [s for s in policy.analysis.file.statements if isinstance(s, tree.Assert)]
    for statement, verdict in zip(statements, asserts, strict=True):
        findings.claim(statement, verdict)
    if is_monotone is not None:
        findings.monotone(is_monotone)
    ordered = tuple(sorted(findings.all, key=lambda f: (f.span, f.message)))
    return Report(policy, rules, asserts, is_monotone, ordered)


def _prove_rule(search: Search, policy: Policy, rule: Rule) -> RuleProof:
    start, index = perf_counter(), rule.index

    def decides(world: World) -> Term:
        return world.models[0].fires[index]

    reached = search.find(decides, lambda found: outcome(policy, found[0]).rule == index, shrink=False)
    status = {True: Status.PROVED, False: Status.FALSE, None: Status.UNKNOWN}[reached.exists]
    shadows: tuple[Rule, ...] | None = ()
    beyond: bool | None = None
    example: Example | None = None
    reason = reached.reason
    if status is Status.FALSE:
        shadows = _shadows(search, policy, index)
    elif rule.action is Action.SYNC:
        answer = _beyond_budget(search, policy, index)
        beyond, reason = answer.exists, reason or answer.reason
        example = answer.examples[0] if answer.examples else None
    return RuleProof(rule, status, shadows, beyond, example, reason, perf_counter() - start)


def _shadows(search: Search, policy: Policy, index: int) -> tuple[Rule, ...] | None:
    """The earlier rules that take every hit which a rule would match; None where that is unknown."""

    def matches(world: World) -> Term:
        return world.models[0].matches[index]

    def none_of_the_earlier(world: World) -> list[Term]:
        return [world.session.opposite(m) for m in world.models[0].matches[:index]]

    found = search.needed(matches, none_of_the_earlier)
    return None if found is None else tuple(policy.rules[i] for i in found)


def _beyond_budget(search: Search, policy: Policy, index: int) -> Answer:
    """A hit for which a rule asks for `sync` with more bytes than are left of the budget."""

    def beyond(world: World) -> Term:
        model = world.models[0]
        remaining = world.inputs[0].values["budget_remaining"]
        return world.session.all_of([model.fires[index], model.taken(index).bytes > remaining])

    def confirmed(found: tuple[Example, ...]) -> bool:
        decided = outcome(policy, found[0])
        return decided.rule == index and decided.bytes > found[0].step.budget_remaining_bytes

    return search.find(beyond, confirmed)


class _Findings:
    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.all: list[Finding] = []

    def rule(self, proof: RuleProof) -> None:
        checked = self.policy.program.rules[proof.rule.index]
        if proof.status is Status.FALSE:
            self._dead(proof, checked.span)
        elif proof.status is Status.UNKNOWN:
            self._unknown("whether this rule can decide", checked.span, proof.reason)
        if proof.beyond_budget:
            self._add(
                codes.BEYOND_BUDGET,
                "this rule asks for `sync` with more bytes than the step's budget has left, for some hits",
                checked.span,
                proof.beyond_budget_example,
                help="the scheduler loads these `async`; to say so, add `bytes <= budget_remaining`",
            )
        elif proof.beyond_budget is None and proof.rule.action is Action.SYNC and proof.status is Status.PROVED:
            self._unknown("whether this rule keeps to the step's budget", checked.span, proof.reason)

    def claim(self, statement: tree.Assert, verdict: Verdict) -> None:
        if verdict.status is Status.UNKNOWN:
            self._unknown("whether this assert always holds", statement.span, verdict.reason)
        elif verdict.status is Status.FALSE:
            (example,) = verdict.examples
            decided = self._named(self.policy.rules[outcome(self.policy, example).rule])
            self._add(codes.ASSERT_FAILS, f"this assert is false where {decided} decides", statement.span, example)

    def monotone(self, verdict: Verdict) -> None:
        rules = self.policy.program.rules
        if verdict.status is Status.UNKNOWN:
            self._unknown("whether the policy is monotone", rules[0].span, verdict.reason)
        elif verdict.status is Status.FALSE:
            small, large = verdict.examples
            by, instead = (self.policy.rules[outcome(self.policy, e).rule] for e in (large, small))
            message = f"a larger hit is `sync` here, where for a smaller one {self._named(instead)} decides"
            notes = (
                Note(f"the smaller hit, `{instead.action}`: {described(small)}"),
                Note(f"the larger hit, `sync`: {described(large)}"),
            )
            self.all.append(Finding.of(codes.NOT_MONOTONE, message, rules[by.index].span, notes=notes))

    def _dead(self, proof: RuleProof, span: Span) -> None:
        rules, shadows = self.policy.program.rules, proof.shadowed_by
        if shadows is None:
            message = "this rule can never decide: the rules above it take every hit that it matches"
            self.all.append(Finding.of(codes.DEAD_RULE, message, span))
        elif not shadows:
            message = "this rule can never decide: its condition holds for no hit and step"
            self.all.append(Finding.of(codes.DEAD_RULE, message, span, help="remove it"))
        else:
            names = [self._named(r) for r in shadows]
            who = " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else names[0]
            takes = "takes" if len(shadows) == 1 else "together take"
            message = f"this rule can never decide: {who} {takes} every hit that it matches"
            notes = tuple(Note("it is shadowed by this rule", rules[r.index].span) for r in shadows)
            dead, above = rules[proof.rule.index], self.policy.rules[proof.rule.index - 1]
            if dead.unconditional and dead.limit is None and rules[above.index].limit is None:
                # Whatever gets as far as the rule above matches it, or else it would get here.
                help = f"remove it, and the condition of {self._named(above)}, which is the last then"
            else:
                help = "remove it, or move it above"
            self.all.append(Finding.of(codes.DEAD_RULE, message, span, notes=notes, help=help))

    def _unknown(self, what: str, span: Span, reason: str | None) -> None:
        because = "" if reason is None else f": {reason}"
        self.all.append(Finding.of(codes.UNDECIDED, f"{what} is unknown{because}", span, help=MORE_TIME))

    def _add(
        self, code: codes.Code, message: str, span: Span, example: Example | None, help: str | None = None
    ) -> None:
        notes = () if example is None else (Note(f"for example: {described(example)}"),)
        self.all.append(Finding.of(code, message, span, help=help, notes=notes))

    @staticmethod
    def _named(rule: Rule) -> str:
        if rule.is_implicit:
            return "the implicit last rule"
        return f"rule {rule.index + 1}" + (f" @{rule.label}" if rule.label else "")
