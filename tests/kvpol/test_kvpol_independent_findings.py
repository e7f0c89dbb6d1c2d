"""Mistakes do not hide each other and cause no others: n independent ones in a file are n findings.

Each statement below has one mistake. Files put some of them together, in any order and with good statements between
them, and every finding has to be that of its statement alone, at its place.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvmove.kvpol.analyse import analyse
from kvmove.kvpol.codes import CODES
from kvmove.kvpol.findings import Finding
from kvmove.kvpol.source import Source

# One mistake each. `{i}` is a number of the statement's own.
BROKEN = [
    ("KV001", "param p{i} bytes = 3B"),
    ("KV001", "param p{i}: bytes = bytes"),
    ("KV001", 'defer if bytes < "3"'),
    ("KV001", "let = 3B"),
    ("KV001", "defer at least 3B"),
    ("KV002", "let a{i} = load_time +"),
    ("KV002", "assert sync implies"),
    ("KV002", "defer if not"),
    ("KV002", "let a{i} ="),
    ("KV002", "param p{i}:"),
    ("KV002", "sync at most"),
    ("KV003", "defer if bytes < 3B;"),
    ("KV003", "defer if bytes < .5MiB"),
    ("KV004", "defer if bytes < 3B && tokens > 4tok"),
    ("KV004", "defer if bytes \u2264 3B"),
    ("KV005", 'defer if bytes < "3B'),
    ("KV006", "defer if bytes = 3B"),
    ("KV007", "defer if (bytes < 3B"),
    ("KV007", "let a{i} = min(bytes, 3B"),
    ("KV008", "let a{i} = 3B)"),
    ("KV009", "defer if bytes < 64 MiB"),
    ("KV010", "let sync = 3"),
    ("KV010", "param if: bytes = 3B"),
    ("KV011", "defer bytes <= 3B"),
    ("KV012", "if bytes < 3B"),
    ("KV013", "snyc if bytes <= 3B"),
    ("KV014", "defer if tokens < 3tok if bytes < 3B"),
    ("KV015", "defer if 1B < bytes > 3B"),
    ("KV016", "defer if bytes < 3B AND tokens < 5tok"),
    ("KV017", 'policy "again"'),
    ("KV019", "defer if running < 1e3"),
    ("KV101", "defer if byts{i} < 3B"),
    ("KV102", "defer if bytes < 64mb"),
    ("KV102", "defer if bytes < 64 mb"),
    ("KV103", "defer if mn{i}(bytes, 3B) < 2B"),
    ("KV104", "param p{i}: byte = 3B"),
    ("KV105", "let a{i} = late{i} let late{i} = bytes"),
    ("KV106", "let a{i} = bytes let a{i} = bytes"),
    ("KV107", "let bytes = 3B"),
    ("KV107", "param min: bytes = 3B"),
    ("KV108", "@l{i} defer if bytes < 3B @l{i} defer if bytes < 4B"),
    ("KV110", "defer if load_bytes < 3B"),
    ("KV201", "defer if bytes <= load_time"),
    ("KV201", "let a{i} = bytes + tokens"),
    ("KV202", "defer if bytes < 3"),
    ("KV202", "param p{i}: tokens = 4096"),
    ("KV203", "defer if bytes"),
    ("KV203", "assert load_bytes"),
    ("KV204", "defer if (bytes < 3B) + 1B > 2B"),
    ("KV205", "defer if bytes < 1.5B"),
    ("KV206", "defer if bytes / load_time < 3B / 1ns"),
    ("KV207", "defer if bytes * bytes * bytes > 1B * 1B * 1B"),
    ("KV208", "param budget: bytes = 1000000GiB"),
    ("KV210", "param p{i}: bool = 3B"),
    ("KV211", "defer if clamp(bytes, 1B) < 3B"),
    ("KV212", "defer if clamp(bytes, 3B, 1B) < 3B"),
    ("KV213", "sync at most load_time"),
    ("KV312", "defer if " + "(" * 70 + "bytes < 3B" + ")" * 70),
    ("KV313", "defer if bytes < " + "+".join(["1B"] * 950)),
    ("KV314", "defer if running < " + "1" * 31),
]
WARNED = [
    ("KV209", "defer if tokens > 99_999_999tok"),
    ("KV215", "defer if known(bytes) and tokens < 3tok"),
    ("KV304", "defer if 1B > 2B"),
]
GOOD = [
    "param g{i}: bytes = 3B  # not a mistake",
    "let h{i} = load_time + 3ms",
    "@m{i} sync if bytes <= budget_remaining and not (tokens > 3tok or waiting > 8)",
    "sync at most budget_remaining if recompute_time < async_delay",
    "async\n  if bytes < 9B\n  and tokens > 2tok",
    "assert sync or async implies load_bytes <= budget",
    "assert not defer implies bytes > 3B or tokens > 3tok",
    "# sync if ( nothing",
]
# Only one of a kind in a file: the second would be a mistake of another kind, or the limit on tokens is near.
ONCE = {"param budget: bytes = 1000000GiB", *(text for code, text in BROKEN if code in ("KV312", "KV313"))}


def check(statements: list[str]) -> tuple[tuple[Finding, ...], list[int], Source]:
    """The findings of a file, and the statement to which each belongs by its place."""
    texts = ['policy "many mistakes"', *(text.replace("{i}", str(i)) for i, text in enumerate(statements))]
    source = Source("many.kvpol", "\n".join(texts) + "\n")
    starts, offset = [], 0
    for text in texts:
        starts.append(offset)
        offset += len(text) + 1
    findings = analyse(source).findings
    owners = [max(i for i, start in enumerate(starts) if start <= f.span.start) - 1 for f in findings]
    return findings, owners, source


def is_open_to_an_if(statement: str) -> bool:
    """Whether an `if` on the next line belongs to this rule, which has none."""
    return statement.startswith(("sync", "async", "defer")) and " if " not in statement


@pytest.mark.parametrize(("code", "text"), [*BROKEN, *WARNED])
@pytest.mark.parametrize(
    "after", ["", "async if bytes > 2B", "let n = bytes", "param q: bytes = 3B", "@x defer if bytes > 3B"]
)
def test_a_mistake_alone_is_one_finding(code: str, text: str, after: str) -> None:
    """Each broken statement gives its code, once, whatever comes next."""
    after += " defer if n < 3B" if after.startswith("let") else " defer if q < 3B" if after.startswith("param") else ""
    findings, owners, source = check([text, *([after] if after else [])])
    assert [f.code for f in findings] == [code], analyse(source).report()
    assert owners == [0]


def test_most_codes_of_the_checker_are_here() -> None:
    """The statements have a mistake of every kind that concerns one statement."""
    whole_file = {"KV018", "KV109", "KV301", "KV303", "KV310", "KV311", "KV315", "KV316"}
    checked = {name for name, code in CODES.items() if name < "KV400" and not code.strict}
    assert {code for code, _ in [*BROKEN, *WARNED]} == checked - whole_file


@settings(max_examples=150)
@given(st.data())
def test_independent_mistakes_are_found_each_and_nothing_else(data: st.DataObject) -> None:
    """Every mistake of a file is found where it is, in order, and no good statement is blamed."""
    size = data.draw(st.integers(2, 14), "statements")
    picked: list[tuple[str | None, str]] = []
    for _ in range(size):
        kind = data.draw(st.sampled_from(["broken", "broken", "warned", "good"]))
        choices = {"broken": BROKEN, "warned": WARNED, "good": [(None, text) for text in GOOD]}[kind]
        code, text = data.draw(st.sampled_from(choices))  # type: ignore[type-var]
        if code == "KV012" and picked and is_open_to_an_if(picked[-1][1]):
            picked.append((None, "assert sync or async implies load_bytes <= budget"))
        if text not in ONCE or text not in [t for _, t in picked]:
            picked.append((code, text))
    findings, owners, source = check([text for _, text in picked])
    expected = [(i, code) for i, (code, _) in enumerate(picked) if code is not None]
    if not any(code and CODES[code].severity == "error" for code, _ in picked):
        # Only a policy without errors is asked whether it uses all its names.
        kept = [(o, f.code) for o, f in zip(owners, findings, strict=True) if f.code not in ("KV109", "KV303")]
        assert kept == expected
        return
    assert [(o, f.code) for o, f in zip(owners, findings, strict=True)] == expected, analyse(source).report()


def test_as_many_as_are_kept_are_reported() -> None:
    """A hundred mistakes of all kinds are a hundred findings; what is beyond is left for the next check."""
    kinds = [(code, text) for code, text in BROKEN if text not in ONCE and code != "KV012"]
    for count in (60, 100, 130):
        picked = [kinds[i % len(kinds)] for i in range(count)]
        findings, _, source = check([text for _, text in picked])
        assert len(findings) == min(count, 100), analyse(source).report()


def test_limits_are_of_one_statement() -> None:
    """Two statements that are each within a limit are accepted, also where nothing but a decision parts them."""
    sum_of_500 = "+".join(["1B"] * 500)
    assert analyse(Source("long.kvpol", f"sync at most {sum_of_500} async at most {sum_of_500}")).findings == ()
