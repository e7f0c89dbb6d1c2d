"""Requests of a trace as the simulated engine takes them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from pathlib import Path

from kvmove.errors import TraceError
from kvmove.replay.trace import Request, read_trace
from kvmove.testing.protocol_requests import SimRequest

OUTPUT_TOKENS = 2  # of every request: what a replay is about is prompts, and a step for each token would take hours
_MASK = (1 << 62) - 1


def from_trace(requests: Iterable[Request], block_tokens: int) -> Iterator[SimRequest]:
    """One simulated request for each of a trace, with the same blocks."""
    for request in requests:
        yield sim_request(request.request, request.hash_ids, request.input_tokens, block_tokens)


def sim_request(name: str, hash_ids: Sequence[int], input_tokens: int, block_tokens: int) -> SimRequest:
    """A request whose whole blocks are those of the ids; a partial one, and what is written in it, is its own."""
    whole = min(len(hash_ids), input_tokens // block_tokens)
    total_tokens = input_tokens + OUTPUT_TOKENS
    own = [f"{name} {n}" for n in range(whole, -(-total_tokens // block_tokens))]
    hashes = []
    digest = b""
    for text in (*hash_ids[:whole], *own):
        digest = blake2b(digest + str(text).encode(), digest_size=8).digest()
        hashes.append(int.from_bytes(digest, "little") & _MASK)
    return SimRequest(name, tuple(hashes), num_tokens=input_tokens, total_tokens=total_tokens)


def read_session(path: Path) -> tuple[int, list[SimRequest]]:
    """The tokens of a block, and the requests of one recorded agent session, whose ids mean nothing outside of it.

    The file is a JSON object with `block_size`, and `requests` with `in` (tokens) and `hash_ids`.

    Raises:
        TraceError: it is something else.
        OSError: it cannot be read.
    """
    try:
        session = json.loads(path.read_bytes())
        block_tokens = int(session["block_size"])
        requests = [
            sim_request(f"{path.stem}.{n}", [f"{path.stem}:{i}" for i in r["hash_ids"]], int(r["in"]), block_tokens)  # type: ignore[misc]
            for n, r in enumerate(session["requests"])
            if r.get("hash_ids")
        ]
    except (ValueError, KeyError, TypeError) as e:
        raise TraceError(str(path), 1, f"this is no agent session: {e!r}") from None
    return block_tokens, requests


def read_conversations(path: Path, block_tokens: int, limit: int | None = None) -> Iterator[SimRequest]:
    """The requests of a trace in the format that `kvmove.replay` reads."""
    return from_trace(read_trace(path, block_tokens=block_tokens, limit=limit), block_tokens)
