"""How often a program reads each variable and each let, and which lets are computed ahead of a rule.

A let is normally computed where it is first needed. One that is needed at several places, of which none is
always passed first, would be written out at each; nested, that doubles with every level. Such a let is
computed ahead of the first rule that uses it ("hoisted"), unless it is small.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from kvmove.kvpol import checked
from kvmove.kvpol.checked import CheckedRule, Condition, Program
from kvmove.kvpol.exact import Ratio
from kvmove.kvpol.whole import Const, Least, Local, Magnitude, Most, Read, Times, Total, Whole
from kvmove.schema import Variable

SMALL = 32  # nodes; computing that much twice is cheaper than computing it when no rule needs it

LetPart = tuple[int, str]  # a let's index, and: numerator, denominator, condition or opposite


@dataclass(slots=True)
class Usage:
    """Counts over every rule's condition and limit, and the lets that they reach."""

    program: Program
    reads: Counter[Variable] = field(default_factory=Counter)
    lets: Counter[LetPart] = field(default_factory=Counter)
    hoisted: set[LetPart] = field(default_factory=set)

    def hoisted_for(self, rule: CheckedRule) -> list[LetPart]:
        """The hoisted lets that a rule's condition and limit need, those that others build on first."""
        if not self.hoisted:
            return []
        found: set[LetPart] = set()
        waiting = [part for node in _nodes(rule) for part in _parts(node)]
        seen: set[LetPart] = set()
        while waiting:
            part = waiting.pop()
            if part not in seen:
                seen.add(part)
                found |= {part} & self.hoisted
                waiting += _parts(_definition(self.program, part))
        return sorted(found)


def count_usage(program: Program) -> Usage:
    """Count what the rules of `program` use."""
    usage = Usage(program)
    waiting = [node for rule in program.rules for node in _nodes(rule)]
    seen: set[LetPart] = set()
    while waiting:
        node = waiting.pop()
        for leaf in _leaves(node):
            if isinstance(leaf, tuple):
                usage.lets[leaf] += 1
                if leaf not in seen:
                    seen.add(leaf)
                    waiting.append(_definition(program, leaf))
            else:
                usage.reads[leaf] += 1
    # The guards of a limit, and those of a hoisted amount, read its estimates once more.
    for rule in program.rules:
        usage.reads.update(() if rule.limit is None else rule.limit.needs)
    for let, _ in seen:
        usage.reads.update(program.lets[let].needs)
    _hoist(usage, seen)
    return usage


def _nodes(rule: CheckedRule) -> list[Condition | Whole]:
    if rule.limit is None:
        return [rule.condition]
    return [rule.condition, rule.limit.amount.numerator, rule.limit.amount.denominator]


def _hoist(usage: Usage, seen: set[LetPart]) -> None:
    written: dict[LetPart, int] = {}  # nodes that a let takes where it is written out
    for part in sorted(seen):  # a let builds on earlier ones only
        definition = _definition(usage.program, part)
        size = 0
        for leaf in _leaves(definition):
            size += written[leaf] if isinstance(leaf, tuple) else 1
        size = max(size, definition.size if isinstance(definition, Whole) else 1)
        hoist = usage.lets[part] > 1 and (size > SMALL or not isinstance(definition, Whole))
        if hoist:
            usage.hoisted.add(part)
        written[part] = 1 if hoist else size


def _definition(program: Program, part: LetPart) -> Condition | Whole:
    value = program.lets[part[0]].value
    if isinstance(value, Ratio):
        return value.denominator if part[1] == "denominator" else value.numerator
    return checked.opposite(value) if part[1] == "opposite" else value


def _parts(node: Condition | Whole) -> Iterator[LetPart]:
    return (leaf for leaf in _leaves(node) if isinstance(leaf, tuple))


def _leaves(node: Condition | Whole) -> Iterator[Variable | LetPart]:
    """The variables and lets at the leaves of `node`, one for each time they are read."""
    waiting: list[Condition | Whole] = [node]
    while waiting:
        x = waiting.pop()
        match x:
            case Read():
                yield x.variable
            case Local():
                yield x.let, "denominator" if x.denominator else "numerator"
            case Total():
                waiting += [*x.plus, *x.minus]
            case Times():
                waiting += x.factors
            case Least() | Most():
                waiting += x.items
            case Magnitude():
                waiting.append(x.item)
            case checked.Compare():
                yield from x.needs
                waiting += [x.left, x.right]
            case checked.Known():
                yield from x.variables
            case checked.LetHolds():
                yield x.let, "opposite" if x.negated else "condition"
            case checked.Every() | checked.Some():
                waiting += x.items
            case Const() | checked.Truth() | Whole():
                pass
