"""What an example of a policy is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kvmove.kvpol.params import Override
from kvmove.records import Action, Demotion, Hit


@dataclass(frozen=True, slots=True)
class ExpectedHit:
    """One hit of an example, and what is expected of it.

    Attributes:
        hit: the hit, with what was not given assumed.
        given: the values as the file gives them, by their names in the language.
        expect: what happens to the hit, after the guard rails.
        rule: the label, with its `@`, or the number from 1 of the rule that decides; None: any.
        guard_rail: the guard rail that changes what the policy asked for; None: none may.
        blocks: how many leading blocks are loaded; None: any number.
        max_bytes: the most bytes that are loaded; None: any number.
        line: where it starts in the file, counted from 1.
    """

    hit: Hit
    given: Mapping[str, object]
    expect: Action
    rule: str | int | None
    guard_rail: Demotion | None
    blocks: int | None
    max_bytes: int | None
    line: int


@dataclass(frozen=True, slots=True)
class Example:
    """One example: hits that are decided in order in one step, and share its budget.

    Attributes:
        name: unique in its file.
        hits: at least one.
        step: values of the step as the file gives them, by their names in the language.
        params: values for params of the policy, instead of those that it has.
        file: the name of the file, for messages.
        line: where it starts in the file, counted from 1.
    """

    name: str
    hits: tuple[ExpectedHit, ...]
    step: Mapping[str, object]
    params: Mapping[str, Override]
    file: str
    line: int
