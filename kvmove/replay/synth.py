"""Make a trace up: conversations that share prefixes as served ones do, the same for the same seed.

Sessions begin as a Poisson process. Each takes one of a few system prompts, the popular ones far more often, and has
a geometric number of turns; a turn's prompt is the last prompt, the answer to it and a new question, and comes after
the answer was written and a time to think. Lengths and think times are lognormal: mostly short, sometimes long.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import accumulate, count
from random import Random
from typing import TextIO

from kvmove import schema
from kvmove.errors import RecordError, Refused
from kvmove.replay.trace import BLOCK_TOKENS, Request

DECODE_MS_PER_TOKEN = 25  # how fast an answer is written before its reader can think about it
# How far lengths spread: the standard deviation of their logarithm. At 1, one in six is 2.7 times the median.
_SPREAD = {"system": 0.5, "question": 1.1, "answer": 0.8, "think": 1.0}


@dataclass(frozen=True, slots=True)
class Workload:
    """What a made-up trace is like. Lengths and think times are medians; `RecordError` refuses what makes no sense."""

    requests_per_s: float = 2.0  # in the long run; a trace begins with first turns only, so a little below at first
    system_prompts: int = 8
    popularity_skew: float = 1.2  # the n-th system prompt is taken in proportion to n ** -skew
    turns: float = 4.0  # of a session, on average
    system_tokens: int = 2_000
    question_tokens: int = 800
    answer_tokens: int = 300
    think_s: float = 30.0
    max_prompt_tokens: int = 131_072  # a session ends when its next prompt would be longer
    block_tokens: int = BLOCK_TOKENS

    def __post_init__(self) -> None:
        for name, low, high in (
            ("requests_per_s", 1e-3, 1e6),
            ("system_prompts", 1, 1 << 16),
            ("popularity_skew", 0, 10),
            ("turns", 1, 1e4),
            ("system_tokens", 1, schema.MAX_COUNT),
            ("question_tokens", 1, schema.MAX_COUNT),
            ("answer_tokens", 1, schema.MAX_COUNT),
            ("think_s", 0, 1e5),
            ("max_prompt_tokens", 1, schema.MAX_COUNT),
            ("block_tokens", 1, schema.MAX_COUNT),
        ):
            value = getattr(self, name)
            if not low <= value <= high:  # NaN is in no range
                raise RecordError(f"{name} lies between {low:g} and {high:g}, not {value}")


def synthesize(num_requests: int, *, seed: int, workload: Workload | None = None) -> Iterator[Request]:
    """`num_requests` requests in the order of time, the first at 0 ms. A longer trace of a seed begins like a shorter.

    Raises:
        Refused: `num_requests` is less than 1 or `seed` is negative.
    """
    if num_requests < 1:
        raise Refused(f"a trace has at least 1 request, not {num_requests}")
    if seed < 0:  # Random would take it for its absolute value
        raise Refused(f"a seed is 0 or more, not {seed}")
    return _generate(num_requests, seed, workload or Workload())


def write_trace(requests: Iterable[Request], file: TextIO) -> int:
    """Write `requests` to `file` as `read_trace` reads them; returns how many they were."""
    written = 0
    for r in requests:
        fields = {
            "timestamp": r.timestamp_ms,
            "input_length": r.input_tokens,
            "output_length": r.output_tokens,
            "hash_ids": r.hash_ids,
        }
        file.write(json.dumps(fields) + "\n")
        written += 1
    return written


def _generate(num_requests: int, seed: int, workload: Workload) -> Iterator[Request]:
    users = _Users(Random(seed), workload)
    # (when, tie-breaker, session whose next turn comes then); None stands for a session that begins.
    coming: list[tuple[float, int, _Session | None]] = [(0.0, 0, None)]
    ties = count(1)
    for i in range(num_requests):
        now_ms, _, session = heappop(coming)
        if session is None:
            session = users.begin_session()
            heappush(coming, (now_ms + users.ms_to_next_session(), next(ties), None))
        answer_tokens = users.answer_tokens()
        yield Request(f"r{i}", int(now_ms), session.prompt_tokens, answer_tokens, session.hash_ids())
        if users.goes_on(session, answer_tokens):
            next_ms = now_ms + answer_tokens * DECODE_MS_PER_TOKEN + users.think_ms()
            heappush(coming, (next_ms, next(ties), session))


@dataclass(slots=True)
class _Session:
    """A conversation: the prompt of its present turn, and the ids of the blocks that this prompt takes over."""

    prompt_tokens: int
    block_tokens: int
    new_ids: count[int]
    full_blocks: list[int] = field(default_factory=list)

    def hash_ids(self) -> tuple[int, ...]:
        """The ids of the prompt's blocks; call it once a turn, because its new blocks get new ids."""
        num_full, rest = divmod(self.prompt_tokens, self.block_tokens)
        self.full_blocks += [next(self.new_ids) for _ in range(num_full - len(self.full_blocks))]
        # A partial block is another block once the conversation has filled it, so its id is not kept.
        return tuple(self.full_blocks) if not rest else (*self.full_blocks, next(self.new_ids))


class _Users:
    """Who asks: every random choice is made here, in one order, from one generator."""

    def __init__(self, random: Random, workload: Workload) -> None:
        self._random, self._workload = random, workload
        self._new_ids = count()
        prompts = range(1, workload.system_prompts + 1)
        self._popularity = list(accumulate(n**-workload.popularity_skew for n in prompts))
        longest = workload.max_prompt_tokens - 1  # leaves a token to ask with
        self._systems = [min(self._tokens(workload.system_tokens, "system"), longest) for _ in prompts]
        self._system_blocks: dict[int, list[int]] = {}

    def begin_session(self) -> _Session:
        w = self._workload
        (n,) = self._random.choices(range(w.system_prompts), cum_weights=self._popularity)
        system_tokens = self._systems[n]
        prompt_tokens = min(system_tokens + self._question_tokens(), w.max_prompt_tokens)
        if n not in self._system_blocks:  # ids are given in the order in which blocks are first seen
            self._system_blocks[n] = [next(self._new_ids) for _ in range(system_tokens // w.block_tokens)]
        return _Session(prompt_tokens, w.block_tokens, self._new_ids, list(self._system_blocks[n]))

    def goes_on(self, session: _Session, answer_tokens: int) -> bool:
        """Whether the session has another turn; if so, its prompt is that turn's from now on."""
        if self._random.random() < 1 / self._workload.turns:
            return False
        session.prompt_tokens += answer_tokens + self._question_tokens()
        return session.prompt_tokens <= self._workload.max_prompt_tokens

    def ms_to_next_session(self) -> float:
        w = self._workload
        return self._random.expovariate(w.requests_per_s / w.turns) * 1e3

    def answer_tokens(self) -> int:
        return self._tokens(self._workload.answer_tokens, "answer")

    def think_ms(self) -> float:
        return self._workload.think_s * 1e3 * self._random.lognormvariate(0, _SPREAD["think"])

    def _question_tokens(self) -> int:
        return self._tokens(self._workload.question_tokens, "question")

    def _tokens(self, median: int, kind: str) -> int:
        drawn = self._random.lognormvariate(math.log(median), _SPREAD[kind])
        return min(max(round(drawn), 1), schema.MAX_COUNT)
