"""`kvmove check --format`: what programs read says the same as what people read, at the same places.

The SARIF that is made was compared with the schema of OASIS; here is what a reader of it relies on.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import pytest
from typer.testing import CliRunner, Result

from kvmove import __version__
from kvmove.cli import app
from kvmove.kvpol.analyse import analyse
from kvmove.kvpol.codes import CODES
from kvmove.kvpol.findings import Finding
from kvmove.kvpol.pages import page
from kvmove.kvpol.source import Source

GOLDEN = Path(__file__).parent / "golden"
NAMES = sorted(p.stem for p in GOLDEN.glob("*.kvpol"))
ASTRAL = 'policy "\U0001f680 up" sync if byts > 3B and tokens > 64 tok\r\nlet a = bytes let a = 3B\r\n'


def check(*arguments: object, stdin: str | None = None) -> Result:
    return CliRunner().invoke(app, ["check", *map(str, arguments)], input=stdin)


def printed(format: str, *arguments: object) -> Any:
    return json.loads(check("--format", format, *arguments).stdout)


def findings(path: Path) -> tuple[Finding, ...]:
    return analyse(Source(path.name, path.read_text(encoding="utf-8"))).findings


def covered(text: str, start: tuple[int, int], end: tuple[int, int]) -> str:
    """What lies between two places, counted as SARIF does: lines end at a line feed, columns are UTF-16 code units."""
    lines = text.split("\n")

    def offset(line: int, column: int) -> int:
        before = lines[line - 1].encode("utf-16-le")[: 2 * (column - 1)].decode("utf-16-le")
        return sum(len(each) + 1 for each in lines[: line - 1]) + len(before)

    return text[offset(*start) : offset(*end)]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a policy `a.kvpol` in which an emoji stands before the mistakes."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.kvpol").write_bytes(ASTRAL.encode())
    return tmp_path


@pytest.mark.parametrize("name", NAMES)
def test_json_has_every_finding(name: str) -> None:
    """Each finding is there with its code, severity, message and help, in the order of the text."""
    path = GOLDEN / f"{name}.kvpol"
    found = printed("json", path)
    assert found["version"] == 1
    assert found["problems"] == []
    assert [(f["file"], f["code"], f["severity"], f["message"], f["help"]) for f in found["findings"]] == [
        (str(path), f.code, f.severity, f.message, f.help) for f in findings(path)
    ]


def test_json_places_are_in_utf_16(folder: Path) -> None:
    """Behind an emoji, lines and columns still cover the mistake, its fix and the place of its note."""
    unknown, spaced, twice = printed("json", "a.kvpol")["findings"]

    def text(place: dict[str, Any]) -> str:
        return covered(ASTRAL, (place["line"], place["column"]), (place["end_line"], place["end_column"]))

    assert text(unknown) == "byts"
    assert text(spaced) == "64 tok"
    assert (text(spaced["fix"]), spaced["fix"]["text"]) == ("64 tok", "64tok")
    assert text(twice) == "a"
    (note,) = twice["notes"]
    assert text(note) == "a"
    assert (note["line"], note["column"], note["message"]) == (2, 5, "it is defined here first")


def sarif_run(*arguments: object) -> dict[str, Any]:
    """The one run of a SARIF log, after a look at what every log has to have."""
    log = printed("sarif", *arguments)
    assert log.keys() == {"$schema", "version", "runs"}
    assert log["version"] == "2.1.0"
    assert log["$schema"].endswith("/sarif-schema-2.1.0.json")
    (run,) = log["runs"]
    driver = run["tool"]["driver"]
    assert (driver["name"], driver["semanticVersion"]) == ("kvmove", __version__)
    assert run["columnKind"] == "utf16CodeUnits"
    ids = [rule["id"] for rule in driver["rules"]]
    assert ids == sorted(set(ids))
    for result in run["results"]:
        assert {"ruleId", "ruleIndex", "level", "message", "locations"} <= result.keys()
        assert ids[result["ruleIndex"]] == result["ruleId"]
        assert result["level"] in ("error", "warning")
        assert result["message"]["text"]
        assert len(result["locations"]) == 1
        for location in (*result["locations"], *result.get("relatedLocations", ())):
            assert_place(location["physicalLocation"], run)
        for fix in result.get("fixes", ()):
            for change in fix["artifactChanges"]:
                assert change["artifactLocation"] == result["locations"][0]["physicalLocation"]["artifactLocation"]
                assert all(r["deletedRegion"]["startLine"] >= 1 for r in change["replacements"])
    result_ids = {result["ruleId"] for result in run["results"]}
    assert result_ids == set(ids), "a rule without a result, or a result without a rule"
    return dict(run)


def assert_place(place: dict[str, Any], run: dict[str, Any]) -> None:
    region, address = place["region"], place["artifactLocation"]
    start, end = (region["startLine"], region["startColumn"]), (region["endLine"], region["endColumn"])
    assert (1, 1) <= start <= end
    assert address in [artifact["location"] for artifact in run["artifacts"]]
    if "uriBaseId" in address:
        assert address["uriBaseId"] in run["originalUriBaseIds"]
        path = Path(unquote(address["uri"]))
        assert not path.is_absolute()
    else:
        assert urlparse(address["uri"]).scheme == "file"
        path = Path(unquote(urlparse(address["uri"]).path))
    assert covered(path.read_bytes().decode(), start, end) == region["snippet"]["text"]


@pytest.mark.parametrize("name", NAMES)
def test_sarif_has_every_finding(name: str) -> None:
    """Each finding is a result of its rule, at its place, with its severity."""
    path = GOLDEN / f"{name}.kvpol"
    found = [(r["ruleId"], r["level"], r["message"]["text"].split("\n")[0]) for r in sarif_run(path)["results"]]
    assert found == [(f.code, f.severity, f.message) for f in findings(path)]


def test_sarif_rules_explain_themselves(folder: Path) -> None:
    """A rule has its title, its page, and the address of that page."""
    rules = {rule["id"]: rule for rule in sarif_run("a.kvpol", *GOLDEN.glob("*.kvpol"))["tool"]["driver"]["rules"]}
    assert len(rules) > 30
    for name, rule in rules.items():
        assert rule["shortDescription"]["text"] == CODES[name].title
        assert rule["help"]["markdown"] == page(CODES[name])
        assert rule["defaultConfiguration"]["level"] == CODES[name].severity
        address = urlparse(rule["helpUri"])
        assert address.scheme in ("file", "https")
        assert address.path.endswith(f"/errors/{name}.md")
        if address.scheme == "file":
            assert Path(unquote(address.path)).read_text(encoding="utf-8") == page(CODES[name])


def test_sarif_paths_do_not_depend_on_the_checkout(folder: Path) -> None:
    """A file below the current folder is relative to it and quoted as an address; one elsewhere is absolute."""
    below = folder / "poli cies" / "ü%.kvpol"
    below.parent.mkdir()
    below.write_text("sync if byts > 3B\n", encoding="utf-8")
    uris = [a["location"] for a in sarif_run(below, "a.kvpol", GOLDEN / "names.kvpol")["artifacts"]]
    assert uris == [
        {"uri": "poli%20cies/%C3%BC%25.kvpol", "uriBaseId": "%SRCROOT%"},
        {"uri": "a.kvpol", "uriBaseId": "%SRCROOT%"},
        {"uri": (GOLDEN / "names.kvpol").as_uri()},
    ]


def test_sarif_fixes_and_related_places(folder: Path) -> None:
    """A fix is a replacement of what it repairs, and a note with a place is a related location."""
    _, spaced, twice = sarif_run("a.kvpol")["results"]
    ((replacement,),) = [change["replacements"] for change in spaced["fixes"][0]["artifactChanges"]]
    assert replacement["insertedContent"] == {"text": "64tok"}
    region = replacement["deletedRegion"]
    start, end = (region["startLine"], region["startColumn"]), (region["endLine"], region["endColumn"])
    assert covered(ASTRAL, start, end) == "64 tok"
    (related,) = twice["relatedLocations"]
    assert related["message"] == {"text": "it is defined here first"}


def test_a_clean_file_is_a_log_without_results(folder: Path) -> None:
    """Nothing found is still a log, which tells a service that earlier findings are gone."""
    (folder / "good.kvpol").write_text("async\n", encoding="utf-8")
    result = check("--format", "sarif", "good.kvpol")
    assert result.exit_code == 0
    run = sarif_run("good.kvpol")
    assert run["results"] == run["tool"]["driver"]["rules"] == []
    assert run["invocations"] == [{"executionSuccessful": True}]


@pytest.mark.parametrize("format", ["json", "sarif", "github"])
def test_a_file_that_cannot_be_read_is_in_the_report(folder: Path, format: str) -> None:
    """A missing file is status 2 and named in the output; the others are reported as ever."""
    result = check("--format", format, "missing.kvpol", "a.kvpol")
    assert result.exit_code == 2
    assert "missing.kvpol: cannot be read" in result.stderr
    if format == "github":
        assert result.stdout.startswith("::error file=missing.kvpol,title=kvmove::missing.kvpol: cannot be read")
        assert result.stdout.count("\n") == 4
    elif format == "json":
        found = json.loads(result.stdout)
        assert [p["file"] for p in found["problems"]] == ["missing.kvpol"]
        assert len(found["findings"]) == 3
    else:
        run = sarif_run("missing.kvpol", "a.kvpol")
        assert run["invocations"][0]["executionSuccessful"] is False
        (notification,) = run["invocations"][0]["toolExecutionNotifications"]
        assert "cannot be read" in notification["message"]["text"]
        assert len(run["results"]) == 3


def test_github_annotations_are_escaped(folder: Path) -> None:
    """A line break, a per cent sign, and in a property a comma or a colon, cannot end what they are part of."""
    odd = folder / "a,b:c%d.kvpol"
    odd.write_text("sync if running > 50 %\nasync if bytes <\n\n3\n", encoding="utf-8")
    lines = check("--format", "github", odd.name).stdout.splitlines()
    assert len(lines) == len(findings(odd))
    for line, finding in zip(lines, findings(odd), strict=True):
        level, properties, message = re.fullmatch(r"::(\w+) ([^:]*)::(.*)", line).groups()  # type: ignore[union-attr]
        values = dict(p.split("=", 1) for p in properties.split(","))
        assert level == finding.severity
        assert values["file"] == "a%2Cb%3Ac%25d.kvpol"
        assert values["title"] == f"kvmove {finding.code}"
        unescaped = message.replace("%0A", "\n").replace("%25", "%")
        assert unescaped == finding.message + (f"\nhelp: {finding.help}" if finding.help else "")


def test_github_columns_are_given_within_one_line_only(folder: Path) -> None:
    """GitHub refuses columns of a region of several lines."""
    (folder / "long.kvpol").write_text("sync if true or\n  bytes > 3B\nasync if bytes > 2B\n", encoding="utf-8")
    shown = check("--format", "github", "long.kvpol", "a.kvpol", "--strict").stdout
    for line in shown.splitlines():
        values = dict(p.split("=", 1) for p in line.split("::")[1].partition(" ")[2].split(","))
        assert ("col" in values) == (values["line"] == values["endLine"])
    assert "col=" in shown


def test_standard_input_is_checked() -> None:
    """`-` reads the policy from standard input, in every format."""
    result = check("-", stdin="sync if byts > 3B\n")
    assert result.exit_code == 1
    assert "--> <stdin>:1:9" in result.stdout
    (finding,) = json.loads(check("--format", "json", "-", stdin="sync if byts > 3B\n").stdout)["findings"]
    assert (finding["file"], finding["code"], finding["column"]) == ("-", "KV101", 9)
    log = json.loads(check("--format", "sarif", "-", stdin="sync if byts > 3B\n").stdout)
    assert log["runs"][0]["artifacts"][0]["location"]["uri"] == "stdin.kvpol"


def test_a_folder_stands_for_its_policies(folder: Path) -> None:
    """A folder is searched for policy files, as `kvmove fmt` does."""
    deep = folder / "b" / "c"
    deep.mkdir(parents=True)
    (deep / "d.kvpol").write_text("async\n", encoding="utf-8")
    result = check(folder / "b")
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [f"{deep / 'd.kvpol'}: ok, 1 rule"]
    (folder / "empty").mkdir()
    assert check(folder / "empty").exit_code == 2


def test_a_file_name_that_is_no_utf_8_is_reported(folder: Path) -> None:
    """Whatever bytes name a file, each format is printed, and its output is text."""
    name = os.fsdecode(b"\xff.kvpol")
    try:
        (folder / name).write_text("sync if byts > 3B\n", encoding="utf-8")
    except OSError:
        pytest.skip("this file system takes UTF-8 names only")
    for format in ("json", "sarif", "github"):
        result = check("--format", format, name)
        assert result.exit_code == 1, result.output
        assert "KV101" in result.stdout.encode().decode()
