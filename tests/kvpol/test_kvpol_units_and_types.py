"""Which expressions have which unit, which are refused, and what quantities are worth."""

from __future__ import annotations

from fractions import Fraction

import pytest

from kvmove import Policy, PolicyError
from kvmove.kvpol.units import BYTES, NUMBER, TIME, TOKENS, Dimension, QuantityError, parse_quantity, show


@pytest.mark.parametrize(
    ("text", "amount", "dimension"),
    [
        ("0B", 0, BYTES),
        ("1B", 1, BYTES),
        ("2KB", 2_000, BYTES),
        ("3MB", 3_000_000, BYTES),
        ("1GB", 10**9, BYTES),
        ("1KiB", 1024, BYTES),
        ("64MiB", 64 << 20, BYTES),
        ("1.5GiB", 3 << 29, BYTES),
        ("0.5KiB", 512, BYTES),
        ("4_096tok", 4096, TOKENS),
        ("7ns", 7, TIME),
        ("0.3us", 300, TIME),
        ("1.25ms", 1_250_000, TIME),
        ("2s", 2 * 10**9, TIME),
        ("50%", Fraction(1, 2), NUMBER),
        ("12.5%", Fraction(1, 8), NUMBER),
        ("1.5", Fraction(3, 2), NUMBER),
        ("10_000", 10_000, NUMBER),
    ],
)
def test_quantity_has_exact_amount(text: str, amount: int | Fraction, dimension: Dimension) -> None:
    """A quantity is worth an exact amount in its canonical unit."""
    assert parse_quantity(text) == (amount, dimension)


@pytest.mark.parametrize(
    ("text", "help"),
    [
        ("1.5B", "write `1B` or `2B`"),
        ("0.5ns", "write `0ns` or `1ns`"),
        ("0.5tok", "write `0tok` or `1tok`"),
        ("64mb", "write `64MB` or `64MiB`"),
        ("64M", "write `64MB` or `64MiB`"),
        ("64mib", "write `64MiB`"),
        ("9k", "write `9KB` or `9KiB`"),
        ("4096tokens", "write `4096tok`"),
        ("3sec", "write `3s`"),
        ("5percent", "write `5%`"),
        ("1e9", "write `1000000000`"),
        ("1.5e3", "write `1500`"),
        ("1e", "all its digits"),
        ("3parsec", "the units are"),
    ],
)
def test_wrong_quantity_is_refused_with_help(text: str, help: str) -> None:
    """A quantity with an unknown unit or an inexact amount is refused, and the help says what to write."""
    with pytest.raises(QuantityError) as caught:
        parse_quantity(text)
    assert help in (caught.value.help or "")


@pytest.mark.parametrize(
    ("dimension", "text"),
    [
        (NUMBER, "number"),
        (BYTES, "bytes"),
        (BYTES / TIME, "bytes/time"),
        (BYTES * BYTES, "bytes^2"),
        (NUMBER / TIME, "1/time"),
        (BYTES * TOKENS / TIME / TIME, "bytes*tokens/time^2"),
    ],
)
def test_dimension_is_spelled(dimension: Dimension, text: str) -> None:
    """A product of units is written as one would say it."""
    assert str(dimension) == text


@pytest.mark.parametrize(
    ("amount", "dimension", "text"),
    [(64 << 20, BYTES, "64MiB"), (3, BYTES, "3B"), (0, TIME, "0ns"), (2_000_000, TIME, "2ms"), (5, NUMBER, "5")],
)
def test_amount_is_shown_in_its_largest_unit(amount: int, dimension: Dimension, text: str) -> None:
    """An amount is shown in the largest unit that leaves a whole number."""
    assert show(Fraction(amount), dimension) == text


TYPED = [
    "bytes <= budget_remaining",
    "bytes + 1MiB - inflight_bytes < 2 * budget",
    "2 * bytes < bytes * 3 / 2",
    "bytes / tokens < 1KiB / 1tok",
    "bytes * bytes > 1MiB * 1MiB",
    "load_time / recompute_time_or_1 < 50%",
    "running / blocks > 1.5",
    "min(bytes, 1MiB) == max(1MiB, bytes)",
    "abs(priority) > 3 and -priority < 4",
    "clamp(bytes, 1MiB, 2MiB) < 1.5MiB",
    "known(load_time + step_time)",
    "not (running > 3 or waiting > 3)",
    "1MiB < bytes <= 8MiB and 8 > running >= 2",
    "running > 3 or false",
    "bytes / max(load_time, 1ns) > 1B / 1us",
    "tokens / prompt_tokens >= 25%",
]


@pytest.mark.parametrize("condition", TYPED)
def test_typed_condition_is_accepted(condition: str) -> None:
    """A condition whose units agree is accepted without a finding."""
    text = f"let recompute_time_or_1 = max(recompute_time, 1ns)\nsync if recompute_time_or_1 > 5ns or ({condition})"
    assert Policy.parse(text).warnings == ()


UNTYPED = [
    ("bytes <= load_time", "cannot compare bytes with time", "<="),
    ("load_time <= bytes", "cannot compare time with bytes", "<="),
    ("bytes + tokens > 3B", "cannot add tokens to bytes", "+"),
    ("bytes - 3 > 3B", "cannot subtract a number from bytes", "-"),
    ("bytes > 0", "cannot compare bytes with a number", ">"),
    ("bytes / tokens > 3B", "cannot compare bytes/tokens with bytes", ">"),
    ("bytes * bytes > bytes", "cannot compare bytes^2 with bytes", ">"),
    ("1MiB < bytes <= 8tok", "cannot compare bytes with tokens", "<="),
    ("min(bytes, tokens) > 3B", "the arguments of `min` need one unit, but this is in tokens", "tokens"),
    ("true == false", "`==` compares amounts, but this is a condition", "true"),
    ("bytes", "a rule's condition is true or false, but this is bytes", "bytes"),
    ("not bytes", "what `not` turns round is true or false, but this is bytes", "bytes"),
    ("true and 3", "each side of `and` is true or false, but this is a number", "3"),
    ("-true < 3", "`-` needs an amount, but this is a condition", "true"),
    ("abs(true) < 3", "`abs` needs amounts, but this is a condition", "true"),
    ("known(true)", "`known` asks about an amount, but this is a condition", "true"),
    ("bytes / waiting > 3B", "`waiting` may be zero here, and it divides", "waiting"),
    ("bytes / (tokens - 1tok) > 3B / 1tok", "`tokens - 1tok` may be zero here, and it divides", "tokens - 1tok"),
    ("bytes * bytes * bytes > 3B", "this can reach 2^132, and amounts stay below 2^128", "bytes * bytes * bytes"),
]


@pytest.mark.parametrize(("condition", "message", "place"), UNTYPED)
def test_untyped_condition_is_refused_at_its_place(condition: str, message: str, place: str) -> None:
    """A condition with a mistake has one error, which underlines the operator or the operand that is wrong."""
    text = f"sync if {condition}"
    with pytest.raises(PolicyError) as caught:
        Policy.parse(text)
    (finding,) = caught.value.findings
    assert finding.message == message
    assert text[finding.span.start : finding.span.end] == place


def test_a_mistake_in_a_let_is_reported_once() -> None:
    """Whatever uses a let with a mistake is not reported for it."""
    with pytest.raises(PolicyError) as caught:
        Policy.parse(
            "let cost = bytes + load_time\nlet twice = cost * 2\nsync if twice < 3 and not cost\nasync if cost"
        )
    assert [f.message for f in caught.value.findings] == ["cannot add time to bytes"]
