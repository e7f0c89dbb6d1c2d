"""No input makes the parser or the checker fail or take long: it is a policy, or a `PolicyError`, or findings."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvmove import Policy, PolicyError
from kvmove.kvpol.grammar import grammar
from kvmove.kvpol.limits import decode
from kvmove.kvpol.syntax import KEYWORDS
from kvmove.kvpol.units import UNITS

# Calls of functions until a policy is refused: work that does not depend on what else the machine does. The largest
# policies that are accepted take a third of it. `benchmarks/bench_language.py` has the times.
MAX_CALLS = 1_000_000


def chain(word: str, count: int) -> str:
    return "sync if bytes < " + word.join(["1B"] * count)


HOSTILE = {
    "parentheses": ("sync if " + "(" * 10_000 + "bytes" + ")" * 10_000, "nests deeper"),
    "nots": ("sync if " + "not " * 3_000 + "true", "nests deeper"),
    "minuses": ("sync if 1B < " + "-" * 3_000 + "bytes", "nests deeper"),
    "calls": ("sync if 1B < " + "abs(" * 100 + "bytes" + ")" * 100, "nests deeper"),
    "digits": ("sync if bytes < " + "9" * 60_000 + "B", "digits"),
    "more digits": ("sync if bytes < " + "9" * 100_000 + "B", "larger than 64 KiB"),
    "decimals": ("sync if running < 0." + "3" * 60_000, "digits"),
    "size": ("# " + "x" * (1 << 20), "larger than 64 KiB"),
    "operands": (chain("+", 1_000), "operands"),
    "many operands": (chain("+", 20_000), "tokens"),
    "very many operands": (chain("+", 100_000), "larger than 64 KiB"),
    "factors": ("sync if 1 < " + "*".join(["running"] * 800), "reach"),
    "arguments": ("sync if 1B < max(" + "bytes," * 1_000 + "bytes)", "operands"),
    "statements": ("async if true\n" * 2_000, "tokens"),
    "rules": ("async if bytes < 3B\n" * 256, "more than 255 rules"),
    "strays": ("$ % ^ ~ ` " * 6_000, "means nothing here"),
    "lets": ("let a0 = bytes\n" + "".join(f"let a{i} = a{i - 1} + 1B\n" for i in range(1, 400)), "levels"),
    "ratios": (
        "sync if 0 < " + " + ".join(f"running / (tokens / {i}tok + {i})" for i in range(1, 60)),
        "reach",
    ),
    "fibonacci": ("sync if 0 < " + "1/(1+" * 60 + "1/blocks" + ")" * 60, "error"),
    "labels": ("@a" * 3_000, "expected"),
    "unknown names": ("sync if " + " or ".join(f"byte{i} < 3B" for i in range(700)), "unknown name"),
    "unknown functions": ("sync if " + " or ".join(f"mx{i}(3B) < 3B" for i in range(400)), "unknown function"),
    "mistakes": ("async if 1 +\n" * 900, "expected an expression"),
    "quotes": ('"' * 60_000, "more than 4000 tokens"),
    "long name": ("sync if " + "x" * 60_000 + " < 3B", "unknown name `xxxxx"),
    "long name defined": ("let " + "x" * 30_000 + " = " + "y" * 30_000, "unknown name `yyyyy"),
    "long function": ("sync if " + "x" * 60_000 + "(3B) < 3B", "unknown function `xxxxx"),
    "long type": ("param p: " + "x" * 60_000 + " = 3B", "unknown type `xxxxx"),
    "long unit": ("sync if bytes < 3" + "x" * 60_000, "unknown unit `xxxxx"),
    "long label": ("@" + "x" * 60_000, "expected"),
    "long decision": ("x" * 60_000 + " if bytes < 3B", "expected"),
    "long word": ("async " + "x" * 60_000, "`if` is missing"),
    "long title": ('policy "' + "\x01" * 60_000 + '"', "printable"),
    "long open string": ('policy "' + "x" * 60_000, "has no end"),
    "long run of strays": ("sync if " + "\u2260" * 20_000, "write `!=`"),
    "lines": ("\n" * 60_000 + "sync if byts < 3B", "unknown name"),
    "comments": ("#\n" * 30_000 + "sync if byts < 3B", "unknown name"),
    "comments between": ("sync if" + "#\n" * 30_000 + "byts < 3B", "unknown name"),
    "ifs": ("if\n" * 3_900, "a rule starts with its decision"),
    "misspelled": ("snyc if\n" * 1_900, "unknown decision"),
    "open parentheses": ("sync if (bytes < 3B\n" * 500, "never closed"),
    "deep statements": (("sync if " + "(" * 70 + "true" + ")" * 70 + "\n") * 25, "nests deeper"),
    "exponent": ("sync if running < 1e" + "9" * 60_000, "unknown unit `e9999"),
    "doubling": ("let a0 = bytes\n" + "".join(f"let a{i} = a{i - 1} * 2\n" for i in range(1, 400)), "levels"),
    "joined": ("sync if " + "not (" * 30 + " and ".join(["bytes < 3"] * 800) + ")" * 30, "cannot compare"),
    "a megabyte of digits": ("9" * (1 << 20), "larger than 64 KiB"),
    "a megabyte of letters": ("x" * (1 << 20), "larger than 64 KiB"),
    "a megabyte of parentheses": ("(" * (1 << 20), "larger than 64 KiB"),
    "a megabyte of lines": ("\n" * (1 << 20), "larger than 64 KiB"),
    "a megabyte of rules": ("sync if bytes < 3B\n" * (1 << 16), "larger than 64 KiB"),
    "a megabyte of emoji": ("\U0001f680" * (1 << 18), "larger than 64 KiB"),
}


def calls_of(work: Callable[[], object]) -> int:
    """How many functions, Python's own included, `work` calls."""
    calls = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(before)
    return calls


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_policy_is_refused_with_little_work(name: str) -> None:
    """A policy made to hurt is refused with a message that names the limit, after a bounded number of calls."""
    grammar()
    text, message = HOSTILE[name]
    caught: list[PolicyError] = []

    def parse() -> None:
        with pytest.raises(PolicyError) as error:
            Policy.parse(text)
        caught.append(error.value)

    calls = calls_of(parse)
    assert calls < MAX_CALLS
    assert message in str(caught[0])
    assert len(str(caught[0])) < 100_000


@pytest.mark.parametrize(
    "text",
    [
        "sync if " + "(" * 64 + "true" + ")" * 64,
        chain(" + ", 900),
        "sync if " + " or ".join(["bytes < 5B"] * 900),
        "sync if 1B < " + "-(" * 32 + "bytes" + ")" * 32,
        "sync if " + "bytes < 1B or (tokens < 1tok and (" * 32 + "true" + "))" * 32,
        "async if bytes < 3B\n" * 255,
        "# " + "x" * ((64 << 10) - 2),
    ],
)
def test_policy_at_a_limit_is_accepted(text: str) -> None:
    """What is exactly at a limit is a policy."""
    assert Policy.parse(text).rules


def test_deepest_wrong_nesting_is_reported() -> None:
    """The deepest nesting of operators that makes no sense is findings, whatever is on the stack already."""
    text = "sync if " + "true or 1 < 2 + 3 * (" * 63 + "true" + ")" * 63

    def deeper(frames: int) -> None:
        if frames:
            deeper(frames - 1)
        else:
            with pytest.raises(PolicyError, match="condition"):
                Policy.parse(text)

    deeper(150)


@settings(max_examples=300)
@given(st.binary(max_size=300))
def test_random_bytes_never_crash(data: bytes) -> None:
    """Any bytes are a policy or a `PolicyError`."""
    try:
        source = decode(data, "random.kvpol")
    except PolicyError:
        return
    refusal(source.text)


@settings(max_examples=200)
@given(st.text(alphabet=st.characters(exclude_categories=()), max_size=200))
def test_random_text_never_crashes(text: str) -> None:
    """Any text, lone surrogates and NULs included, is a policy or a `PolicyError`."""
    refusal(text)


WORDS = [
    *KEYWORDS, *"()+-*/<>:=,@#", "<=", ">=", "==", "!=", "@a", "budget", "bytes", "load_time", "x", "y", "min", "known",
    "0", "3B", "64MiB", "5tok", "1.5", "2ms", "50%", '"n"', "\n", *(f"7{u}" for u in UNITS),
]  # fmt: skip


@settings(max_examples=400)
@given(st.lists(st.sampled_from(WORDS), max_size=40))
def test_random_words_never_crash(words: list[str]) -> None:
    """Any sequence of the language's words is a policy or findings with places inside the text."""
    text = " ".join(words)
    error = refusal(text)
    if error is not None:
        assert error.findings
        assert all(0 <= f.span.start < f.span.end <= len(text) for f in error.findings)


def refusal(text: str) -> PolicyError | None:
    """Why `text` is no policy, or None when it is one. Any other error fails the test."""
    try:
        Policy.parse(text)
    except PolicyError as error:
        return error
    return None


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\xff\xfesync", "not UTF-8 text (byte 0xff at offset 0)"),
        (b"sync\0", "a NUL byte at offset 4"),
        (bytes(range(256)) * 4, "not UTF-8"),
        (b"\x7fELF\x02\x01\x01\0", "a NUL byte"),
    ],
)
def test_what_is_no_text_is_refused(tmp_path: Path, data: bytes, message: str) -> None:
    """A file that is not UTF-8 text is refused with the offending byte."""
    path = tmp_path / "policy.kvpol"
    path.write_bytes(data)
    with pytest.raises(PolicyError) as caught:
        Policy.load(path)
    assert message in str(caught.value)


def test_byte_order_mark_is_dropped(tmp_path: Path) -> None:
    """A leading byte order mark is no part of the policy."""
    path = tmp_path / "policy.kvpol"
    path.write_bytes(b"\xef\xbb\xbfsync")
    assert Policy.load(path).text == "sync"
    assert Policy.parse("\ufeffsync").hash == Policy.load(path).hash


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("extra", range(20))
def test_file_over_the_limit_is_never_cut_short(tmp_path: Path, mark: bytes, extra: int) -> None:
    """A file that is a little too large is refused, wherever its characters end; it is not read in part."""
    path = tmp_path / "policy.kvpol"
    path.write_bytes(mark + b"#" + b"x" * ((64 << 10) - 1) + b"x" * extra + "\N{GRINNING FACE}".encode() * 8)
    with pytest.raises(PolicyError, match="larger than 64 KiB"):
        Policy.load(path)
