"""A trace as text: every rule with its condition, and the values that made it true or false."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from kvmove.kvpol.trace import Condition, Operand, RuleTrace, Trace, Truth


def truth_text(truth: Truth) -> str:
    """`true`, `false` or `unknown`."""
    return "unknown" if truth is None else "true" if truth else "false"


def named(index: int, label: str | None, line: int | None) -> str:
    """What a rule is called in messages: `rule 2 @fits (line 13)`."""
    if line is None:
        return f"rule {index + 1} (the implicit async)"
    return f"rule {index + 1} {f'@{label} ' if label else ''}(line {line})"


def rule_name(rule: RuleTrace) -> str:
    """What a traced rule is called in messages."""
    return named(rule.index, rule.label, rule.line)


def rules_text(trace: Trace, blocks: int, rules: Iterable[RuleTrace] | None = None) -> Iterator[str]:
    """The lines that say of `rules` (None: of all) whether they match, and why; the hit has `blocks`."""
    lets = dict(trace.lets)
    for rule in trace.rules if rules is None else rules:
        matches = "matches, but comes too late" if rule.matches else "does not match"
        yield f"{rule_name(rule)}: {'decides' if rule is trace.rule else matches}"
        yield f"    {rule.text}"
        if rule.condition is not None:
            yield from _condition(rule.condition, 1, lets, set())
        if rule.limit is not None:
            yield f"    {_limit(rule.limit, rule.blocks or 0, blocks)}"


def lets_text(trace: Trace) -> Iterator[str]:
    """A line for each let that is an amount: its value. Conditions stand in the rules that read them."""
    for name, value in trace.lets:
        if isinstance(value, Operand):
            unknown = f" ({_listed(value.unknown)})" if value.unknown else ""
            yield f"{name} = {value.text} = {value}{unknown}"


def _limit(limit: Operand, fit: int, blocks: int) -> str:
    if limit.value is None:
        return f"at most {limit.text}: unknown ({_listed(limit.unknown)}), so no block fits"
    value = "" if limit.text == str(limit) else f" = {limit}"
    return f"at most {limit.text}{value}: {fit} of {blocks} {'block' if blocks == 1 else 'blocks'} fit"


def _condition(
    condition: Condition, depth: int, lets: dict[str, Operand | Condition], shown: set[str]
) -> Iterator[str]:
    """The condition and its parts; what a let stands for is shown below it, the first time in a rule."""
    line = f"{'  ' * depth}  {truth_text(condition.truth):<7} {condition.text}"
    values = [f"{o.text} = {_value(o)}" for o in condition.operands if not o.is_constant]
    if values and condition.kind != "known":
        line += f"   [{', '.join(dict.fromkeys(values))}]"
    elif condition.kind == "known" and condition.operands[0].unknown:
        line += f"   [unknown: {_listed(condition.operands[0].unknown)}]"
    yield line
    for part in condition.parts:
        yield from _condition(part, depth + 1, lets, shown)
    meaning = lets.get(condition.text) if condition.kind == "let" else None
    if isinstance(meaning, Condition) and condition.text not in shown:
        shown.add(condition.text)
        yield from _condition(meaning, depth + 1, lets, shown)


def _value(operand: Operand) -> str:
    if operand.value is not None:
        return str(operand)
    return "unknown" if operand.unknown == (operand.text,) else f"unknown ({_listed(operand.unknown)})"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names)
