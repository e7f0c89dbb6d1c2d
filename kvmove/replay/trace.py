"""Read a trace of requests: JSON lines in the format of the Mooncake traces.

A line is an object with `timestamp` (ms since the trace began), `input_length` and `output_length` (tokens), and
`hash_ids`: one id for each block of the prompt, of which the last may be partial. Equal ids are equal blocks behind
equal prefixes, so a leading run of ids that an earlier request had too is a prefix that could be reused. Other
fields are ignored, and so are empty lines.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

from kvmove import schema
from kvmove.errors import Refused, TraceError
from kvmove.kvpol.source import quoted

BLOCK_TOKENS = 512  # what one id stands for in the public Mooncake traces
MAX_LINE_BYTES = 16 << 20
MAX_TIMESTAMP_MS = (1 << 53) - 1  # beyond it, programs that read JSON numbers as doubles would not agree
MAX_HASH_ID = (1 << 64) - 1
_FIELDS = ("timestamp", "input_length", "output_length", "hash_ids")


@dataclass(frozen=True, slots=True)
class Request:
    """One request of a trace.

    `hash_ids` has one id for each block of the prompt, the last of which may be partial; no id comes twice.
    """

    request: str  # `r17` is the 18th request of its trace
    timestamp_ms: int  # since the trace began
    input_tokens: int  # at least 1
    output_tokens: int
    hash_ids: tuple[int, ...]


def read_trace(
    path: str | os.PathLike[str], *, block_tokens: int = BLOCK_TOKENS, limit: int | None = None
) -> Iterator[Request]:
    """The requests of the trace at `path`, one at a time, in order; of a long trace the first `limit`.

    The file is opened when the first request is asked for, and closed after the last.

    Raises:
        TraceError: a line is not a request with one id for each `block_tokens` tokens of its prompt, or comes
            before its predecessor in time; or the trace is empty.
        OSError: the file cannot be read.
        Refused: `block_tokens` or `limit` is less than 1.
    """
    _check_arguments(block_tokens, limit)
    return _read_path(os.fspath(path), block_tokens, limit)


def read_requests(
    file: BinaryIO, name: str, *, block_tokens: int = BLOCK_TOKENS, limit: int | None = None
) -> Iterator[Request]:
    """The requests that the open binary `file` holds; `name` stands for it in messages. Otherwise as `read_trace`."""
    _check_arguments(block_tokens, limit)
    return _read(file, name, block_tokens, limit)


def _check_arguments(block_tokens: int, limit: int | None) -> None:
    if not 1 <= block_tokens <= schema.MAX_COUNT:
        raise Refused(f"block_tokens lies between 1 and {schema.MAX_COUNT}, not {block_tokens}")
    if limit is not None and limit < 1:
        raise Refused(f"limit is at least 1 request, not {limit}")


def _read_path(path: str, block_tokens: int, limit: int | None) -> Iterator[Request]:
    with open(path, "rb") as file:
        yield from _read(file, path, block_tokens, limit)


def _read(file: BinaryIO, name: str, block_tokens: int, limit: int | None) -> Iterator[Request]:
    count = line = last_ms = 0
    # Not `for data in file`: one endless line would be read into memory as a whole.
    while data := file.readline(MAX_LINE_BYTES + 1):
        line += 1
        try:
            if len(data) > MAX_LINE_BYTES:
                raise _Malformed(f"this line has more than {MAX_LINE_BYTES} bytes, the most that is read")
            data = data.removeprefix(b"\xef\xbb\xbf").strip() if line == 1 else data.strip()
            if not data:
                continue
            request = _request(_fields(data), f"r{count}", block_tokens)
            if request.timestamp_ms < last_ms:
                raise _Malformed(
                    f"`timestamp` {request.timestamp_ms} is before {last_ms}, that of the request above: "
                    "a trace is in the order of time"
                )
        except _Malformed as e:
            raise TraceError(name, line, str(e)) from None
        yield request
        count, last_ms = count + 1, request.timestamp_ms
        if count == limit:
            return
    if not count:
        raise TraceError(name, max(line, 1), "the trace is empty: it needs at least one request")


class _Malformed(Exception):
    """Why a line is not a request."""


def _fields(data: bytes) -> dict[str, Any]:
    try:
        text = data.decode()
    except UnicodeDecodeError as e:
        raise _Malformed(f"byte 0x{data[e.start]:02x} is not UTF-8 text (byte {e.start + 1} of the line)") from None
    try:
        value = json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_unambiguous)
    except json.JSONDecodeError as e:
        raise _Malformed(f"this is not JSON: {_lower(e.msg)} (column {e.colno}), in {quoted(text)}") from None
    except ValueError:  # Python refuses to read integers of thousands of digits
        raise _Malformed("this has a number with more digits than can be read") from None
    except RecursionError:
        raise _Malformed("this is nested too deeply to be a request") from None
    if not isinstance(value, dict):
        raise _Malformed(f"a request is a JSON object with {_named(_FIELDS)}, not {_shown(value)}")
    missing = [name for name in _FIELDS if name not in value]
    if missing:
        raise _Malformed(f"{_named(missing)} missing: a request has {_named(_FIELDS)}")
    return value


def _refuse_constant(name: str) -> None:
    raise _Malformed(f"`{name}` is not a JSON number")


def _unambiguous(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        names = [name for name, _ in pairs]
        for name in _FIELDS:
            if names.count(name) > 1:
                raise _Malformed(f"`{name}` is given {names.count(name)} times, and once is expected")
    return value


def _request(fields: dict[str, Any], name: str, block_tokens: int) -> Request:
    timestamp_ms = _whole(fields, "timestamp", "milliseconds", 0, MAX_TIMESTAMP_MS)
    input_tokens = _whole(fields, "input_length", "tokens", 1, schema.MAX_COUNT)
    output_tokens = _whole(fields, "output_length", "tokens", 0, schema.MAX_COUNT)
    hash_ids = _hash_ids(fields["hash_ids"])
    num_blocks = -(-input_tokens // block_tokens)
    if len(hash_ids) != num_blocks:
        raise _Malformed(
            f"`hash_ids` has {len(hash_ids)} ids where `input_length` {input_tokens} needs {num_blocks}: "
            f"one for each block of {block_tokens} tokens, of which the last may be partial"
        )
    return Request(name, timestamp_ms, input_tokens, output_tokens, hash_ids)


def _whole(fields: dict[str, Any], name: str, unit: str, low: int, high: int) -> int:
    value = fields[name]
    # `isinstance` would let `true` pass as 1.
    if type(value) is int and low <= value <= high:
        return value
    raise _Malformed(f"`{name}` is a whole number of {unit} between {low} and {high}, not {_shown(value)}")


def _hash_ids(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise _Malformed(f"`hash_ids` is a list of whole numbers, not {_shown(value)}")
    if not value:
        return ()
    # Three passes at the speed of C; the loops below only find what to name.
    if set(map(type, value)) != {int} or min(value) < 0 or max(value) > MAX_HASH_ID:
        bad = next(i for i in value if type(i) is not int or not 0 <= i <= MAX_HASH_ID)
        raise _Malformed(f"`hash_ids` holds whole numbers between 0 and {MAX_HASH_ID}, not {_shown(bad)}")
    if len(set(value)) != len(value):
        seen: set[int] = set()
        twice = next(i for i in value if i in seen or seen.add(i))  # type: ignore[func-returns-value]
        raise _Malformed(
            f"`hash_ids` has {twice} twice, and a block cannot be its own prefix: equal ids have equal prefixes"
        )
    return tuple(value)


def _shown(value: Any) -> str:
    # Enough to recognise the value by; `json.dumps` of a whole line could be 16 MiB.
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    return quoted(json.dumps(value, ensure_ascii=False)[:200])


def _named(names: tuple[str, ...] | list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _lower(message: str) -> str:
    return message[:1].lower() + message[1:]
