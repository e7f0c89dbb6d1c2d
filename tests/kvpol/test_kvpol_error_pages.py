"""Every code has a page, its wrong example gives that code and no other, its right one gives nothing.

After a change of the codes, write the index and the table of `docs/language.md` with

    KVMOVE_WRITE_GOLDEN=1 pytest tests/kvpol/test_kvpol_error_pages.py
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from kvmove import Policy, PolicyError
from kvmove.cli import app
from kvmove.kvpol.analyse import analyse
from kvmove.kvpol.codes import CODES, Code
from kvmove.kvpol.findings import Finding
from kvmove.kvpol.pages import index, page
from kvmove.kvpol.source import Source

ERRORS = Path(__file__).parents[2] / "docs" / "errors"
LANGUAGE = ERRORS.parent / "language.md"
PROVEN = {name for name in CODES if name >= "KV400"}  # what `kvmove prove` says, not the checker
README_HEAD = """# The codes of findings

Each finding of `kvmove check` and `kvmove prove` has a code. `kvmove explain KV201` prints its page.

"""


def examples(code: Code) -> tuple[str, str]:
    """The wrong and the right example of a page, with its last line as often as the page says."""
    found = re.findall(r"^```kvpol( wrong)?(?: last-line=(\d+))?\n(.*?)^```$", page(code), re.MULTILINE | re.DOTALL)
    (wrong_mark, times, wrong), (right_mark, _, right) = found
    assert (wrong_mark, right_mark) == (" wrong", "")
    lines = wrong.splitlines()
    return "\n".join([*lines[:-1], *[lines[-1]] * int(times or 1)]) + "\n", right


def findings(text: str, *, strict: bool) -> tuple[Finding, ...]:
    try:
        return analyse(Source("example.kvpol", text), strict=strict).findings
    except PolicyError as e:
        return e.findings  # type: ignore[return-value]


@pytest.mark.parametrize("name", sorted(CODES.keys() - PROVEN))
def test_the_wrong_example_gives_exactly_its_code(name: str) -> None:
    """A page's wrong example has the findings that the page is about, and no others."""
    code = CODES[name]
    found = findings(examples(code)[0], strict=code.strict)
    assert {f.code for f in found} == {name}, [f.message for f in found]
    assert {f.severity for f in found} == {code.severity}


@pytest.mark.parametrize("name", CODES)
def test_the_right_example_is_clean(name: str) -> None:
    """A page's right example has no finding."""
    code = CODES[name]
    assert findings(examples(code)[1], strict=code.strict) == ()


@pytest.mark.parametrize("name", sorted(PROVEN))
def test_the_checker_accepts_what_only_a_proof_finds_wrong(name: str) -> None:
    """The wrong example of a proof's code is a policy that the checker is content with."""
    assert findings(examples(CODES[name])[0], strict=True) == ()


def proved(text: str, *, monotone: bool) -> list[str | None]:
    """The codes of what a proof finds. A short time is enough for all that can be answered here."""
    from kvmove.kvpol.proof import prove

    return [f.code for f in prove(Policy.parse(text), monotone=monotone, timeout_s=0.5).findings]


@pytest.mark.parametrize("name", sorted(PROVEN))
def test_a_proof_finds_what_the_wrong_example_shows(name: str) -> None:
    """The wrong example of a proof's code gives that code and no other, the right one none."""
    pytest.importorskip("z3", reason="needs the extra prove")
    wrong, right = examples(CODES[name])
    assert set(proved(wrong, monotone=name == "KV403")) == {name}
    assert proved(right, monotone=name == "KV403") == []


@pytest.mark.parametrize("name", CODES)
def test_a_page_is_headed_by_its_code_and_title(name: str) -> None:
    """The first line of a page is the code with its title."""
    assert page(CODES[name]).splitlines()[0] == f"# {name}: {CODES[name].title}"


def test_there_are_pages_for_all_codes_and_no_others() -> None:
    """Each code has a page, and each page a code."""
    assert {p.stem for p in ERRORS.glob("KV*.md")} == CODES.keys()


def test_the_index_is_in_step() -> None:
    """`docs/errors/README.md` lists every code as the registry has it."""
    readme, expected = ERRORS / "README.md", README_HEAD + index() + "\n"
    if os.environ.get("KVMOVE_WRITE_GOLDEN"):
        readme.write_text(expected, encoding="utf-8")
    assert readme.read_text(encoding="utf-8") == expected


def test_the_language_reference_lists_the_codes() -> None:
    """The table of codes in `docs/language.md` is the registry's."""
    text, table = LANGUAGE.read_text(encoding="utf-8"), index().replace("](KV", "](errors/KV")
    found = re.search(r"^\| code \| means \| severity \|\n(?:\|.*\n)+", text, re.MULTILINE)
    assert found is not None
    if os.environ.get("KVMOVE_WRITE_GOLDEN"):
        LANGUAGE.write_text(text.replace(found[0], table + "\n"), encoding="utf-8")
    else:
        assert found[0] == table + "\n"


def explain(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["explain", *arguments])


@pytest.mark.parametrize("name", CODES)
def test_every_code_is_explained(name: str) -> None:
    """`kvmove explain CODE` prints the page of every code that there is."""
    result = explain(name)
    assert result.exit_code == 0
    assert result.stdout.strip() == page(CODES[name]).strip()


@pytest.mark.parametrize("asked", ["kv201", "201", "KV201", "error[KV201]"])
def test_a_code_is_found_however_it_is_written(asked: str) -> None:
    """A code may be pasted as a finding shows it, or typed in a hurry."""
    assert explain(asked).stdout.startswith("# KV201: ")


@pytest.mark.parametrize(("asked", "help"), [("KVV201", "did you mean `KV201`?"), ("nothing", "lists them all")])
def test_an_unknown_code_is_status_2_with_help(asked: str, help: str) -> None:
    """A code that there is none of is refused, with the nearest one where there is one near."""
    result = explain(asked)
    assert result.exit_code == 2
    assert f"there is no code `{asked}`" in result.stderr
    assert help in result.stderr


def test_without_a_code_all_are_listed() -> None:
    """`kvmove explain` lists every code with its title."""
    assert explain().stdout.splitlines() == [f"{c.name}  {c.title}" for c in CODES.values()]
