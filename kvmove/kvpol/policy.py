"""`Policy`: a checked and compiled policy, as an engine's scheduler uses it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from kvmove.records import Action

if TYPE_CHECKING:
    from fractions import Fraction

    from kvmove.kvpol.analyse import Analysis
    from kvmove.kvpol.checked import Program
    from kvmove.kvpol.findings import Finding
    from kvmove.kvpol.params import Override, Overrides
    from kvmove.kvpol.source import Source

# The passes are imported when the first policy is made: a process that only passes policies' names around, or
# only uses records, imports none of them.


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule of a policy. The implicit last rule has no line."""

    index: int
    label: str | None
    action: Action
    text: str  # as written in the file
    line: int | None  # counted from 1

    @property
    def is_implicit(self) -> bool:
        """Whether this is the `async` that ends every policy which does not end itself."""
        return self.line is None


class Policy:
    """A policy that can decide. Make one with `Policy.load` or `Policy.parse`; it never changes.

    Attributes:
        name: The name that the file gives itself, else the file's stem, else `policy`.
        text: The policy as written.
        hash: 12 hexadecimal digits of the SHA-256 of the text and the effective params.
        params: The effective value of each param in canonical units (bytes, tokens, nanoseconds): an int, a
            bool, or for a number that is not whole a Fraction.
        budget_bytes: The step budget that the policy or an override names, in bytes; None when neither does.
        rules: The rules, with the implicit last rule where the file does not end with a rule that always matches.
        warnings: What looks like a mistake and does not keep the policy from being used.
        decide: The compiled function `decide(hit, step) -> int`, which reads the attributes of `Hit` and
            `StepState` and returns `(blocks << 8) | rule`: the index of the rule that matched, and the leading
            blocks to load, 0 for the whole hit. It is pure.
        decide_batch: The compiled function `decide_batch(hits, step, admit)`: it calls `admit(hit, verdict)` for each
            hit in order, with the verdict that `decide` gives at that moment. `admit` may change what is left of the
            step's budget and its number of sync loads, and no other attribute of the step.
    """

    __slots__ = (
        "_origin", "analysis", "budget_bytes", "decide", "decide_batch", "hash", "name", "params", "program", "rules",
        "text", "warnings",
    )  # fmt: skip

    name: str
    text: str
    hash: str
    params: Mapping[str, int | Fraction | bool]
    budget_bytes: int | None
    rules: tuple[Rule, ...]
    warnings: tuple[Finding, ...]
    decide: Callable[[Any, Any], int]
    decide_batch: Callable[[Iterable[Any], Any, Callable[[Any, int], object]], None]
    analysis: Analysis
    program: Program

    def __init__(self, analysis: Analysis, overrides: Overrides, default_name: str) -> None:
        from kvmove.kvpol.compiler import compile_batch, compile_program
        from kvmove.kvpol.usage import count_usage

        program = analysis.usable()
        source = analysis.source
        self.analysis, self.program = analysis, program
        self.text = source.text
        self.name = program.name or default_name
        self.params = MappingProxyType({name: _plain(value) for name, value in program.params.items()})
        self.budget_bytes = program.budget_bytes
        self.rules = _rules(program, source)
        self.warnings = tuple(f for f in analysis.findings if not f.is_error)
        self.hash = _hash(self.text, self.params)
        usage = count_usage(program)
        self.decide = compile_program(program, source, usage)
        self.decide_batch = compile_batch(program, source, usage)
        self._origin = (source.name, dict(overrides), default_name)

    @classmethod
    def load(cls, name_or_path: str | os.PathLike[str], params: Overrides | None = None) -> Policy:
        """The policy that comes with kvmove under a bare name (`"budgeted"`), or the one in a file.

        `params` overrides params of the file: an int in canonical units (bytes, tokens, nanoseconds), a text as
        a policy would write it (`"128MiB"`), or a bool. `budget` can be given for every policy.

        Raises:
            PolicyError: there is no such policy, it has mistakes (`findings` has them all), or a param is
                unknown or of another unit.
        """
        from kvmove.kvpol import library

        source = library.read(name_or_path)
        return cls._from_source(source, params or {}, PurePath(source.name).stem or "policy")

    @classmethod
    def parse(cls, text: str, *, name: str | None = None, params: Overrides | None = None) -> Policy:
        """The policy that `text` holds; `name` is its name unless the text gives one, and stands in messages.

        Raises:
            PolicyError: as `load`.
        """
        from kvmove.kvpol.source import Source

        return cls._from_source(Source(name or "<policy>", text.removeprefix("\ufeff")), params or {}, name or "policy")

    @classmethod
    def _from_source(cls, source: Source, overrides: Overrides, default_name: str) -> Policy:
        from kvmove.kvpol.analyse import analyse

        return cls(analyse(source, overrides), overrides, default_name)

    def explain(self, hit: Any, step: Any) -> tuple[int, Sequence[str]]:
        """The rule that decides, and for each rule before it, in order, what kept it from matching.

        That is text of the policy, such as a part of its condition, and no value of the hit: it can be counted.
        Explaining takes hundreds of times as long as deciding; `kvmove.kvpol.trace` has all of it, with the values.
        """
        from kvmove.kvpol.trace import trace

        found = trace(self, hit, step)
        return found.rule.index, [rule.why_not() or "" for rule in found.rules[: found.rule.index]]

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (self.text, *self._origin)

    def __repr__(self) -> str:
        return f"<Policy {self.name} {self.hash}, {len(self.rules)} rules>"


def _restore(text: str, source_name: str, overrides: dict[str, Override], default_name: str) -> Policy:
    from kvmove.kvpol.analyse import analyse
    from kvmove.kvpol.source import Source

    return Policy(analyse(Source(source_name, text), overrides), overrides, default_name)


def _rules(program: Program, source: Source) -> tuple[Rule, ...]:
    rules = [
        Rule(i, r.label, r.action, source.slice(r.span), source.line_of(r.span.start))
        for i, r in enumerate(program.rules)
    ]
    if not program.ends_itself:
        rules.append(Rule(len(rules), None, Action.ASYNC, "async", None))
    return tuple(rules)


def _hash(text: str, params: Mapping[str, int | Fraction | bool]) -> str:
    import hashlib

    effective = "".join(f"\n{name}={value}" for name, value in sorted(params.items()))
    # The length keeps a text that ends like a param apart from a param.
    return hashlib.sha256(f"{len(text)}\n{text}{effective}".encode()).hexdigest()[:12]


def _plain(value: Fraction | bool) -> int | Fraction | bool:
    if isinstance(value, bool) or value.denominator != 1:
        return value
    return int(value)
