"""A Hypothesis strategy for policies: random texts that are typed, bounded and accepted by the checker.

They use every operator, function and unit, lets that build on lets, conditions under `not`, ratios with
denominators that vary, and constants at the edges of ranges and words.
"""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import strategies as st

from kvmove import schema
from kvmove.kvpol.analyse import analyse
from kvmove.kvpol.source import Source
from kvmove.schema import Scope, Unit

_READABLE = [v for v in schema.VARIABLES if v.scope is not Scope.OUTCOME]
_UNITS = {
    Unit.BYTES: ["B", "KB", "MB", "GB", "KiB", "MiB", "GiB"],
    Unit.TOKENS: ["tok"],
    Unit.TIME: ["ns", "us", "ms", "s"],
    Unit.NUMBER: ["", "", "%"],
}
_NAMES = {unit: [v.name for v in _READABLE if v.unit is unit] for unit in Unit}
_SMALLEST = {Unit.BYTES: "B", Unit.TOKENS: "tok", Unit.TIME: "ns", Unit.NUMBER: ""}
_EDGES = [0, 1, 2, 3, 7, 100, 255, 1 << 10, (1 << 16) - 1, 1 << 24, (1 << 31) - 1, (1 << 44) - 1, 1 << 46]
# Every second one is exact in any unit; the others suit units of 1,000 or 1,024.
_FRACTIONS = ["0.5", "1.5", "2.25", "0.125"]


def policies(*, max_rules: int = 5, max_depth: int = 3) -> st.SearchStrategy[str]:
    """Draw the text of a policy that parses, checks and compiles."""
    return _texts(max_rules, max_depth).filter(_accepted)


def _accepted(text: str) -> bool:
    """Whether the checker takes the text: a product of drawn factors can pass the bound of 2**128."""
    return analyse(Source("<drawn>", text)).program is not None


@st.composite
def _texts(draw: st.DrawFn, max_rules: int, max_depth: int) -> str:
    writer = _Writer(draw, max_depth)
    lines = ['policy "drawn"'] if draw(st.booleans()) else []
    if draw(st.booleans()):
        lines.append("param budget: bytes = 64MiB")
    lines += [writer.param(i) for i in range(draw(st.integers(0, 2)))]
    lines += [writer.let(i) for i in range(draw(st.integers(0, 3)))]
    for i in range(draw(st.integers(0, max_rules))):
        label = f"@r{i} " if draw(st.booleans()) else ""
        lines.append(f"{label}{writer.decision()} if {writer.condition(max_depth)}")
    if draw(st.booleans()):
        lines.append(writer.decision())
    if draw(st.booleans()):
        lines.append(f"assert {writer.action()} implies {writer.condition(1)}")
    return "\n".join(lines) + "\n"


class _Writer:
    """Writes expressions of a wanted type, from a source of choices."""

    def __init__(self, draw: st.DrawFn, max_depth: int) -> None:
        self.draw, self.max_depth = draw, max_depth
        # A few variables of each unit: that the same one comes up again is what tests reading it once.
        self.amounts: dict[Unit, list[str]] = {
            unit: draw(st.lists(st.sampled_from(_NAMES[unit]), min_size=1, max_size=3)) for unit in Unit
        }
        self.conditions: list[str] = []
        self.estimates = [v.name for v in _READABLE if v.optional]

    def pick(self, items: list[str]) -> str:
        return self.draw(st.sampled_from(items))

    def unit(self) -> Unit:
        return self.draw(st.sampled_from(list(Unit)))

    def action(self) -> str:
        return self.pick(["sync", "async", "recompute", "defer"])

    def decision(self) -> str:
        """An action, which for one in three loads is cut to a limit."""
        action = self.action()
        if action not in ("sync", "async") or self.draw(st.integers(0, 2)):
            return action
        unit = self.draw(st.sampled_from([Unit.BYTES, Unit.TOKENS]))
        size = "bytes" if unit is Unit.BYTES else "tokens"
        ways: list[Callable[[], str]] = [
            lambda: self.pick(["budget_remaining", f"{size} / 2", f"{size} - 1{_SMALLEST[unit]}"]),
            lambda: self.amount(unit, self.max_depth),
            lambda: f"{size} * {self.group(self.ratio(unit, unit, 1))}",
        ]
        return f"{action} at most {self.draw(st.sampled_from(ways))()}"

    def param(self, index: int) -> str:
        name = f"p{index}"
        if self.draw(st.booleans()):
            self.conditions.append(name)
            return f"param {name}: bool = {self.pick(['true', 'false'])}"
        unit = self.unit()
        self.amounts[unit].append(name)
        return f"param {name}: {unit.value} = {self.pick(['', '-'])}{self.quantity(unit)}"

    def let(self, index: int) -> str:
        name = f"x{index}"
        if self.draw(st.booleans()):
            text = f"let {name} = {self.condition(self.max_depth)}"
            self.conditions.append(name)
            return text
        unit = self.unit()
        text = f"let {name} = {self.amount(unit, self.max_depth)}"
        self.amounts[unit].append(name)
        return text

    def quantity(self, unit: Unit) -> str:
        suffix = self.pick(_UNITS[unit])
        if suffix in ("KB", "KiB", "MiB", "us", "s", "", "%") and self.draw(st.booleans()):
            return self.pick(_FRACTIONS) + suffix
        return str(self.draw(st.sampled_from(_EDGES) | st.integers(0, 5000))) + suffix

    def leaf(self, unit: Unit) -> str:
        return self.quantity(unit) if self.draw(st.booleans()) else self.pick(self.amounts[unit])

    def divisor(self, unit: Unit) -> str:
        """Something of `unit` that cannot be zero."""
        never_zero = [v.name for v in _READABLE if v.low > 0 and v.unit is unit]
        plain = self.draw(st.booleans())
        if never_zero and plain:
            return self.pick(never_zero)
        return f"max({self.pick(self.amounts[unit])}, {self.pick(['1', '3', '1000'])}{_SMALLEST[unit]})"

    def amount(self, unit: Unit, depth: int) -> str:
        if depth == 0:
            return self.leaf(unit)

        def part() -> str:
            return self.amount(unit, depth - 1)

        other = self.unit()
        ways: list[Callable[[], str]] = [
            lambda: self.leaf(unit),
            lambda: f"({part()} + {part()})",
            lambda: f"({part()} - {part()} + {self.leaf(unit)})",
            lambda: f"{self.pick(['2', '3', '50%', '1.5', '-1', '-7'])} * {self.group(part())}",
            lambda: f"{self.group(part())} / {self.pick(['2', '3', '0.5', '-7'])}",
            lambda: f"-{self.group(part())}",
            lambda: f"min({part()}, {part()})",
            lambda: f"max({part()}, {part()}, {self.leaf(unit)})",
            lambda: f"abs({part()})",
            lambda: f"clamp({part()}, 0{_SMALLEST[unit]}, {self.divisor(unit)})",
            lambda: f"{self.leaf(unit)} * ({self.leaf(other)} / {self.divisor(other)})",
        ]
        return self.draw(st.sampled_from(ways))()

    @staticmethod
    def group(text: str) -> str:
        return f"({text})"

    def ratio(self, above: Unit, below: Unit, depth: int) -> str:
        return f"{self.group(self.amount(above, depth))} / {self.divisor(below)}"

    def condition(self, depth: int) -> str:
        if depth == 0 or self.draw(st.integers(0, 2)) == 0:
            return self.comparison(depth)
        ways: list[Callable[[], str]] = [
            lambda: f"({self.condition(depth - 1)} and {self.condition(depth - 1)})",
            lambda: f"({self.condition(depth - 1)} or {self.condition(depth - 1)} or {self.condition(0)})",
            lambda: f"not {self.group(self.condition(depth - 1))}",
            lambda: f"known({self.pick(self.estimates)})",
            lambda: f"not known({self.pick(self.estimates)} - {self.pick(self.amounts[Unit.TIME])})",
            lambda: self.pick(["true", "false", *self.conditions]),
        ]
        return self.draw(st.sampled_from(ways))()

    def comparison(self, depth: int) -> str:
        depth = min(depth, 2)
        operator = self.pick(["<", "<=", ">", ">=", "==", "!="])
        unit, below = self.unit(), self.unit()
        ways: list[Callable[[], str]] = [
            lambda: f"{self.amount(unit, depth)} {operator} {self.amount(unit, depth)}",
            lambda: f"{self.pick(self.amounts[unit])} {operator} {self.quantity(unit)}",
            lambda: f"{self.leaf(unit)} {self.pick(['<', '<='])} {self.amount(unit, depth)} <= {self.leaf(unit)}",
            lambda: f"{self.leaf(unit)} {self.pick(['>', '>='])} {self.amount(unit, depth)} > {self.leaf(unit)}",
            lambda: f"{self.ratio(unit, below, depth)} {operator} {self.ratio(unit, below, 0)}",
        ]
        return self.draw(st.sampled_from(ways))()
