"""`read_trace`: what a trace is, what is refused, and with which words."""

from __future__ import annotations

import io
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kvmove.errors import Refused, TraceError
from kvmove.replay import trace
from kvmove.replay.trace import Request, read_requests, read_trace

SHARED = Path(__file__).resolve().parents[3] / "shared" / "traces"
GOOD: dict[str, Any] = {"timestamp": 7, "input_length": 1025, "output_length": 3, "hash_ids": [4, 9, 2]}


def line(**changes: Any) -> bytes:
    return json.dumps(GOOD | changes).encode() + b"\n"


def write(folder: Path, data: bytes) -> Path:
    path = folder / "t.jsonl"
    path.write_bytes(data)
    return path


def test_requests_come_in_order_with_their_fields(tmp_path: Path) -> None:
    """Each line is one request, named by its position; extra fields and empty lines count for nothing."""
    path = write(tmp_path, b"\xef\xbb\xbf" + line(extra={"a": 1, "A": [1]}) + b"\n \t\r\n" + line(timestamp=7).strip())
    assert list(read_trace(path)) == [
        Request("r0", 7, 1025, 3, (4, 9, 2)),
        Request("r1", 7, 1025, 3, (4, 9, 2)),
    ]
    assert list(read_trace(str(path), limit=1)) == [Request("r0", 7, 1025, 3, (4, 9, 2))]


def test_the_last_block_may_be_partial(tmp_path: Path) -> None:
    """A prompt has one id for each started block, whatever a block's size is."""
    for tokens in (1025, 1300, 1536):
        assert next(read_trace(write(tmp_path, line(input_length=tokens)))).input_tokens == tokens
    for tokens in (33, 48):
        assert next(read_trace(write(tmp_path, line(input_length=tokens)), block_tokens=16)).input_tokens == tokens


def test_what_follows_the_limit_is_not_read(tmp_path: Path) -> None:
    """With a limit, a mistake further on does not matter; without, the requests before it still come."""
    path = write(tmp_path, line() + b"nonsense\n")
    assert len(list(read_trace(path, limit=1))) == 1
    requests = read_trace(path)
    assert next(requests).request == "r0"
    with pytest.raises(TraceError) as caught:
        next(requests)
    assert caught.value.line == 2


MALFORMED: list[tuple[bytes, str]] = [
    (b"not json", "this is not JSON: expecting value (column 1), in `not json`"),
    (line()[:-3], "this is not JSON: "),
    (line().strip() + line(), "this is not JSON: extra data"),
    (b"[1, 2]", "a request is a JSON object with `timestamp`, `input_length`, `output_length`, `hash_ids`, not a list"),
    (b"17", "not `17`"),
    (b'"\\ud800"', 'not `"\\ud800"`'),
    (b"null", "not `null`"),
    (b"{}", "`timestamp`, `input_length`, `output_length`, `hash_ids` missing: a request has"),
    (b'{"timestamp": 1, "input_length": 1, "hash_ids": [1]}', "`output_length` missing: a request has"),
    (line(timestamp=1.5), "`timestamp` is a whole number of milliseconds between 0 and 9007199254740991, not `1.5`"),
    (line(timestamp=-1), "`timestamp` is a whole number of milliseconds between 0 and 9007199254740991, not `-1`"),
    (line(timestamp=1 << 53), "not `9007199254740992`"),
    (line(timestamp="7"), 'not `"7"`'),
    (line(timestamp=None), "not `null`"),
    (line(timestamp=float("nan")), "`NaN` is not a JSON number"),
    (line(timestamp=float("-inf")), "`-Infinity` is not a JSON number"),
    (line().replace(b"7", b"1e999"), "not `Infinity`"),
    (line().replace(b"7", b"1" * 5_000), "this has a number with more digits than can be read"),
    (line().replace(b"7", b"7e0"), "not `7.0`"),
    (line(input_length=0, hash_ids=[]), "`input_length` is a whole number of tokens between 1 and 16777216, not `0`"),
    (line(input_length=True, hash_ids=[1]), "`input_length` is a whole number of tokens between 1 and 16777216, not `"),
    (line(input_length=(1 << 24) + 1), "not `16777217`"),
    (line(output_length=-3), "`output_length` is a whole number of tokens between 0 and 16777216, not `-3`"),
    (line(output_length=[3]), "not a list"),
    (line(output_length={}), "not an object"),
    (line(hash_ids=None), "`hash_ids` is a list of whole numbers, not `null`"),
    (line(hash_ids="489"), '`hash_ids` is a list of whole numbers, not `"489"`'),
    (line(hash_ids=[4, True, 2]), "`hash_ids` holds whole numbers between 0 and 18446744073709551615, not `true`"),
    (line(hash_ids=[4, -9, 2]), "not `-9`"),
    (line(hash_ids=[4, 1 << 64, 2]), "not `18446744073709551616`"),
    (line(hash_ids=[4, [9], 2]), "not a list"),
    (line(hash_ids=[4, 9.0, 2]), "not `9.0`"),
    (line(hash_ids=[4, 9]), "`hash_ids` has 2 ids where `input_length` 1025 needs 3: one for each block of 512 tokens"),
    (line(hash_ids=[4, 9, 2, 8]), "`hash_ids` has 4 ids where `input_length` 1025 needs 3"),
    (line(hash_ids=[]), "`hash_ids` has 0 ids where `input_length` 1025 needs 3"),
    (line(hash_ids=[4, 9, 4]), "`hash_ids` has 4 twice, and a block cannot be its own prefix"),
    (line(timestamp=6), "`timestamp` 6 is before 7, that of the request above: a trace is in the order of time"),
    (line().replace(b"{", b'{"timestamp": 7, ', 1), "`timestamp` is given 2 times, and once is expected"),
    (line(extra="é").replace(b"\\u00e9", b"\xe9"), "byte 0xe9 is not UTF-8 text (byte "),
    (line().decode().encode("utf-16"), "byte 0xff is not UTF-8 text (byte 1 of the line)"),
    (b"[" * 200_000, "this is nested too deeply to be a request"),
    (b"\x00" * 10, "this is not JSON: expecting value (column 1), in `\\x00"),
    (b"\x1b[2J", "this is not JSON: expecting value (column 1), in `\\x1b[2J`"),
]  # fmt: skip


@pytest.mark.parametrize(("data", "reason"), MALFORMED, ids=[f"{i}" for i in range(len(MALFORMED))])
def test_malformed_lines_are_named(tmp_path: Path, data: bytes, reason: str) -> None:
    """A line that is no request is refused with its number, what is wrong with it and what is expected."""
    path = write(tmp_path, line() + b"\n" + data)
    with pytest.raises(TraceError) as caught:
        list(read_trace(path))
    error = caught.value
    assert (error.path, error.line) == (str(path), 3)
    assert reason in error.reason
    assert str(error) == f"{path}, line 3: {error.reason}"
    assert error.reason.isprintable()
    assert len(error.reason) < 300


def test_too_long_a_line_is_refused_and_not_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line of exactly the limit is read; one byte more is refused."""
    monkeypatch.setattr(trace, "MAX_LINE_BYTES", 300)
    exact = line().strip().ljust(299) + b"\n"
    path = write(tmp_path, exact + exact.replace(b"\n", b" \n"))
    requests = read_trace(path)
    assert next(requests).request == "r0"
    with pytest.raises(TraceError, match="line 2: this line has more than 300 bytes, the most that is read"):
        next(requests)


@pytest.mark.parametrize("data", [b"", b"\n\n  \n", b"\xef\xbb\xbf"])
def test_a_trace_without_requests_is_refused(tmp_path: Path, data: bytes) -> None:
    """Replaying nothing would report success, so an empty trace is a mistake."""
    with pytest.raises(TraceError, match="the trace is empty: it needs at least one request"):
        list(read_trace(write(tmp_path, data)))


def test_what_cannot_be_opened_is_an_os_error(tmp_path: Path) -> None:
    """A missing file and a folder are the operating system's to explain."""
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(OSError, match="directory"):
            next(read_trace(path))


def test_arguments_out_of_range_are_refused_at_once() -> None:
    """The call itself refuses them, before anything is read."""
    with pytest.raises(Refused, match="block_tokens lies between 1 and 16777216, not 0"):
        read_trace("none", block_tokens=0)
    with pytest.raises(Refused, match="limit is at least 1 request, not 0"):
        read_trace("none", limit=0)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
ALMOST = st.builds(
    lambda changes: json.dumps(GOOD | changes).encode(),
    st.dictionaries(st.sampled_from(sorted(GOOD)), JSON | st.lists(st.integers(0, 5), max_size=4), max_size=2),
)


@given(st.lists(st.binary(max_size=40) | ALMOST | JSON.map(lambda v: json.dumps(v).encode()), max_size=4))
@example([b'{"timestamp":0,"input_length":1,"output_length":0,"hash_ids":[{}]}'])
@example([b'{"timestamp":0,"input_length":1,"output_length":0,"hash_ids":[NaN]}'])
def test_no_bytes_raise_anything_else(lines: list[bytes]) -> None:
    """Whatever a file holds, reading it gives well-formed requests and then ends or raises `TraceError`."""
    data, last = b"\n".join(lines), 0
    with suppress(TraceError):
        for i, r in enumerate(read_requests(io.BytesIO(data), "t")):
            assert r.request == f"r{i}"
            assert last <= r.timestamp_ms
            assert len(set(r.hash_ids)) == len(r.hash_ids) == -(-r.input_tokens // 512)
            last = r.timestamp_ms


@pytest.mark.parametrize(("name", "count"), [("conversation_trace", 12_031), ("synthetic_trace", 3_993)])
def test_nothing_real_is_refused(name: str, count: int) -> None:
    """The public traces are read to their end."""
    path = SHARED / f"{name}.jsonl"
    if not path.exists():
        pytest.skip(f"needs {name}.jsonl in ../shared/traces")
    assert sum(1 for _ in read_trace(path)) == count
