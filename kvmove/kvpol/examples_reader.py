"""From the tables of a TOML file to examples, with every problem and its line."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, TypeVar

from kvmove import schema
from kvmove.kvpol.examples_records import Example, ExpectedHit
from kvmove.kvpol.given import BadValue, hit_of, step_of
from kvmove.kvpol.source import quoted
from kvmove.kvpol.suggest import did_you_mean, listed
from kvmove.kvpol.units import BYTES, QuantityError, parse_quantity
from kvmove.records import Action, Demotion

T = TypeVar("T")

EXAMPLE_KEYS = ("name", "hit", "step", "params", "expect", "rule", "guard_rail", "blocks", "max_bytes", "hits")
_HIT_KEYS = ("hit", "expect", "rule", "guard_rail", "blocks", "max_bytes")


class Reader:
    """Makes examples of what `tomllib` read, and keeps every problem with its line."""

    def __init__(self, file: str, lines: Mapping[tuple[str | int, ...], int]) -> None:
        self.file, self.lines = file, lines
        self.problems: list[tuple[int, str]] = []
        self.names: dict[str, int] = {}

    def line(self, *path: str | int) -> int:
        """The line of a key; of what holds it, where it is not there."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)

    def problem(self, message: str, *path: str | int) -> None:
        self.problems.append((self.line(*path), message))

    def examples(self, data: Mapping[str, Any]) -> Iterator[Example]:
        self.only(data, ("example",), "a file of examples")
        items = data.get("example", [])
        if not isinstance(items, list):
            self.problem("an example starts with `[[example]]`, in double brackets", "example")
            return
        if not items and not self.problems:
            self.problem("there is no example; each starts with `[[example]]`")
        for i, item in enumerate(items):
            if not isinstance(item, dict):
                self.problem("an example is a table; it starts with `[[example]]`", "example", i)
                continue
            example = self.example(item, "example", i)
            if example is not None:
                yield example

    def example(self, item: Mapping[str, Any], *path: str | int) -> Example | None:
        before = len(self.problems)
        self.only(item, EXAMPLE_KEYS, "an example", *path)
        name = self.name(item, *path)
        step, params = self.table(item, "step", *path), self.table(item, "params", *path)
        self.check_step(step, *path)
        self.check_params(params, *path)
        if "hits" in item:
            hits = self.hits(item, *path)
        else:
            hits = [self.hit(item, *path)]
        if len(self.problems) > before or name is None:
            return None
        kept = tuple(hit for hit in hits if hit is not None)
        return Example(name, kept, MappingProxyType(step), MappingProxyType(params), self.file, self.line(*path))

    def name(self, item: Mapping[str, Any], *path: str | int) -> str | None:
        name = item.get("name")
        if not isinstance(name, str) or not name.strip():
            self.problem("an example wants a `name`, a text that says what it shows", *path, "name")
            return None
        if not name.isprintable():
            self.problem("a `name` is one line of printable text", *path, "name")
        if name in self.names:
            self.problem(f"{quoted(name)} is the name of the example in line {self.names[name]} too", *path, "name")
        self.names.setdefault(name, self.line(*path))
        return name

    def hits(self, item: Mapping[str, Any], *path: str | int) -> list[ExpectedHit | None]:
        for key in _HIT_KEYS:
            if key in item:
                self.problem(f"with `hits`, `{key}` belongs to each of them", *path, key)
        items = item["hits"]
        if not isinstance(items, list) or not items or not all(isinstance(hit, dict) for hit in items):
            self.problem('`hits` are tables, such as `[{ hit = {}, expect = "sync" }]`', *path, "hits")
            return []
        for i, hit in enumerate(items):
            self.only(hit, _HIT_KEYS, "one of `hits`", *path, "hits", i)
        return [self.hit(hit, *path, "hits", i) for i, hit in enumerate(items)]

    def hit(self, item: Mapping[str, Any], *path: str | int) -> ExpectedHit | None:
        given = self.table(item, "hit", *path)
        hit = self.built(lambda values: hit_of(values)[0], given, *path, "hit")
        expect = self.one_of(item, "expect", tuple(Action), *path)
        if "expect" not in item:
            self.problem(f"`expect` is missing: {listed(Action)}", *path)
        rail = self.one_of(item, "guard_rail", tuple(d for d in Demotion if d is not Demotion.POLICY_FAILED), *path)
        rule, blocks, max_bytes = self.rule(item, *path), self.blocks(item, *path), self.max_bytes(item, *path)
        if expect in (Action.RECOMPUTE, Action.DEFER):
            for key in ("blocks", "max_bytes"):
                if key in item:
                    self.problem(f"`{expect}` loads nothing, so there is no `{key}` to expect", *path, key)
        if hit is None or expect is None:
            return None
        if blocks is not None and blocks > hit.blocks:
            self.problem(f"{blocks} blocks are expected of a hit of {hit.blocks}", *path, "blocks")
        return ExpectedHit(
            hit, MappingProxyType(given), Action(expect), rule, Demotion(rail) if rail else None, blocks, max_bytes,
            self.line(*path),
        )  # fmt: skip

    def one_of(self, item: Mapping[str, Any], key: str, words: tuple[str, ...], *path: str | int) -> str | None:
        value = item.get(key)
        if key not in item or value in words:
            return value
        hint = did_you_mean(value, words) if isinstance(value, str) else None
        self.problem(f"`{key}` is {quoted(str(value))}; {hint or 'write one of ' + listed(words)}", *path, key)
        return None

    def rule(self, item: Mapping[str, Any], *path: str | int) -> str | int | None:
        value = item.get("rule")
        if value is None or (type(value) is int and value >= 1):
            return value
        if isinstance(value, str) and value.startswith("@") and len(value) > 1:
            return value
        self.problem(
            f"`rule` is {quoted(str(value))}; write a label such as `@fits`, or the number of a rule from 1", *path,
            "rule",
        )  # fmt: skip
        return None

    def blocks(self, item: Mapping[str, Any], *path: str | int) -> int | None:
        value = item.get("blocks")
        if value is None or (type(value) is int and 1 <= value <= schema.MAX_COUNT):
            return value
        self.problem(f"`blocks` is {quoted(str(value))}; a number of blocks from 1 is needed", *path, "blocks")
        return None

    def max_bytes(self, item: Mapping[str, Any], *path: str | int) -> int | None:
        value = item.get("max_bytes")
        if value is None:
            return None
        try:
            amount, dimension = parse_quantity(value[:64] if isinstance(value, str) else str(value))
            if dimension == BYTES:
                return int(amount)
            problem = "is not in bytes"
        except QuantityError as e:
            problem = f"is no size: {e.message}" + (f"; {e.help}" if e.help else "")
        self.problem(f"`max_bytes` {quoted(str(value))} {problem}; write it like `3MiB`", *path, "max_bytes")
        return None

    def check_step(self, step: Mapping[str, object], *path: str | int) -> None:
        self.built(lambda values: step_of(values, None), step, *path, "step")

    def built(
        self, build: Callable[[Mapping[str, object]], T], given: Mapping[str, object], *path: str | int
    ) -> T | None:
        """What `build` makes of the values; None where some are wrong, each of which is a problem.

        That values contradict each other is said only where each is right by itself.
        """
        left = dict(given)
        while True:
            try:
                built = build(left)
            except BadValue as e:
                if e.name in left:
                    self.problem(str(e), *path, e.name)
                    del left[e.name]
                    continue
                if len(left) == len(given):
                    self.problem(str(e), *path)
                return None
            return built if len(left) == len(given) else None

    def check_params(self, params: dict[str, Any], *path: str | int) -> None:
        for name, value in params.items():
            if not isinstance(value, str | int):
                self.problem(
                    f"param {quoted(name)} is {quoted(str(value))}; write a text as a policy does, such as \"64MiB\", "
                    "a whole number, or true or false", *path, "params", name,
                )  # fmt: skip

    def table(self, item: Mapping[str, Any], key: str, *path: str | int) -> dict[str, Any]:
        value = item.get(key, {})
        if isinstance(value, dict):
            return value
        self.problem(f"`{key}` is a table, such as `{key} = {{}}`", *path, key)
        return {}

    def only(self, item: Mapping[str, Any], known: tuple[str, ...], what: str, *path: str | int) -> None:
        for key in item:
            if key not in known:
                hint = did_you_mean(key, known) or f"the keys are {listed(known)}"
                self.problem(f"{what} has no {quoted(key)}; {hint}", *path, key)
