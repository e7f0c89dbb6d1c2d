"""Which rules of policies decided anything while tests ran."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from kvmove.kvpol.library import SUFFIX
from kvmove.kvpol.policy import Policy
from kvmove.kvpol.source import printable

_Rule = tuple[str, int | None]  # its text on one line, and its line; the implicit last rule has none
_Key = tuple[str, tuple[_Rule, ...]]  # the policy's file and its rules: with other params it is the same policy


class RuleCoverage:
    """Counts decisions by rule, of every policy that comes from a `.kvpol` file.

    Between `start` and `stop` each policy that is made counts what it decides, one by one and in batches. A
    policy that was made before decides uncounted.
    """

    def __init__(self) -> None:
        self._counts: dict[_Key, Counter[int]] = {}
        self._made: Callable[..., None] | None = None

    def start(self) -> None:
        """Count from now on."""
        made = self._made = Policy.__init__

        def make(policy: Policy, *args: Any, **named: Any) -> None:
            made(policy, *args, **named)
            if policy.analysis.source.name.endswith(SUFFIX):
                self._watch(policy)

        setattr(Policy, "__init__", make)  # noqa: B010 - no type says that this is allowed

    def stop(self) -> None:
        """Count no more. Calling it again does nothing."""
        if self._made is not None:
            Policy.__init__ = self._made  # type: ignore[method-assign]
            self._made = None

    def know(self, policy: Policy) -> Counter[int]:
        """Put a policy into the report, decided or not; the decisions by the index of its rules."""
        rules = tuple((" ".join(r.text.split()), r.line) for r in policy.rules)
        name = policy.analysis.source.name
        # However a test wrote the path, it is one file. A policy that comes with kvmove has a name and no path.
        place = os.path.realpath(name) if os.path.exists(name) else name
        return self._counts.setdefault((place, rules), Counter())

    def as_plain(self) -> list[Any]:
        """Everything as lists, texts and numbers, to be sent to another process."""
        return [[name, [list(rule) for rule in rules], list(n.items())] for (name, rules), n in self._counts.items()]

    def add_plain(self, plain: Iterable[Any]) -> None:
        """Add what `as_plain` of another process gave."""
        for name, rules, counts in plain:
            counted = self._counts.setdefault((name, tuple((text, line) for text, line in rules)), Counter())
            for rule, n in counts:
                counted[rule] += n

    @property
    def percent(self) -> float:
        """How many of the written rules decided something; 100 where there is none."""
        decided, written = self._totals()
        return 100 * decided / written if written else 100.0

    def lines(self) -> Iterator[str]:
        """The report."""
        if not self._counts:
            yield "no policy from a .kvpol file was loaded"
            return
        width = max(len(_shown(place)) for place, _ in self._counts)
        for (place, rules), counts in sorted(self._counts.items()):
            written = [i for i, (_, line) in enumerate(rules) if line is not None]
            decided = sum(1 for i in written if counts[i])
            total = counts.total()
            yield f"{_shown(place):<{width}}  {decided} of {len(written)} rules, {total:,} decisions"
            for i in written:
                if not counts[i]:
                    yield f"  line {rules[i][1]} never decided: {printable(rules[i][0])}"
        decided, all_written = self._totals()
        yield f"total: {decided} of {all_written} rules, {self.percent:.0f}%"

    def _totals(self) -> tuple[int, int]:
        decided = written = 0
        for (_, rules), counts in self._counts.items():
            indices = [i for i, (_, line) in enumerate(rules) if line is not None]
            written += len(indices)
            decided += sum(1 for i in indices if counts[i])
        return decided, written

    def _watch(self, policy: Policy) -> None:
        counts, decide = self.know(policy), policy.decide

        def counted(hit: Any, step: Any) -> int:
            verdict = decide(hit, step)
            counts[verdict & 0xFF] += 1
            return verdict

        policy.decide = counted
        decide_batch = policy.decide_batch

        def counted_batch(hits: Any, step: Any, admit: Callable[[Any, int], object]) -> None:
            def take(hit: Any, verdict: int) -> object:
                counts[verdict & 0xFF] += 1
                return admit(hit, verdict)

            decide_batch(hits, step, take)

        policy.decide_batch = counted_batch


def _shown(place: str) -> str:
    """The path from here where the file is below, else the whole path."""
    here = os.path.join(os.path.realpath(os.curdir), "")
    return printable(place.removeprefix(here))
