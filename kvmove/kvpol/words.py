"""What each word and sign of the language is, in one line: for hover texts, highlighters and the reference.

The words themselves are the grammar's, the checker's and the unit table's; the tests keep this in step with them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Role(Enum):
    """What a word of the language does in a policy."""

    STATEMENT = "starts a statement"
    DECISION = "is a decision"
    CLAUSE = "continues a statement"
    CONNECTIVE = "joins conditions"
    CONSTANT = "is a constant"


@dataclass(frozen=True, slots=True)
class Word:
    """A word of the language: its role, how it is written in context, and what it means."""

    role: Role
    form: str
    doc: str


@dataclass(frozen=True, slots=True)
class Function:
    """A function: how it is called, and what it gives."""

    form: str
    doc: str


WORDS: dict[str, Word] = {
    "policy": Word(Role.STATEMENT, 'policy "NAME"', "the name of the policy in logs; optional, first and once"),
    "param": Word(Role.STATEMENT, "param NAME: TYPE = CONSTANT", "a constant that operators can override"),
    "let": Word(Role.STATEMENT, "let NAME = EXPRESSION", "a name for an expression, below which it can be read"),
    "assert": Word(Role.STATEMENT, "assert CLAIM", "what has to hold of every decision; it never changes one"),
    "sync": Word(Role.DECISION, "sync if CONDITION", "load the hit inside this step: the batch waits for the copy"),
    "async": Word(Role.DECISION, "async if CONDITION", "load the hit in the background: its request waits"),
    "recompute": Word(Role.DECISION, "recompute if CONDITION", "ignore the hit and compute its tokens"),
    "defer": Word(Role.DECISION, "defer if CONDITION", "ask again in the next step"),
    "if": Word(Role.CLAUSE, "sync if CONDITION", "the rule decides when its condition holds; without one, always"),
    "at": Word(Role.CLAUSE, "sync at most LIMIT", "with `most`: load only the leading whole blocks that fit"),
    "most": Word(Role.CLAUSE, "sync at most LIMIT", "the limit of the load, in bytes or tokens"),
    "implies": Word(Role.CLAUSE, "assert CLAIM implies CLAIM", "the second claim has to hold wherever the first does"),
    "or": Word(Role.CONNECTIVE, "a or b", "at least one of the conditions holds"),
    "and": Word(Role.CONNECTIVE, "a and b", "every one of the conditions holds"),
    "not": Word(Role.CONNECTIVE, "not a", "each comparison of `a` turned into its opposite"),
    "true": Word(Role.CONSTANT, "true", "holds always"),
    "false": Word(Role.CONSTANT, "false", "holds never"),
}

FUNCTION_WORDS: dict[str, Function] = {
    "min": Function("min(a, b, ...)", "the smallest; one unit for all"),
    "max": Function("max(a, b, ...)", "the largest; one unit for all"),
    "abs": Function("abs(a)", "the amount without its sign"),
    "clamp": Function("clamp(a, low, high)", "`min(max(a, low), high)`"),
    "known": Function("known(a)", "whether every estimate that `a` reads is known"),
}

TYPE_WORDS: dict[str, str] = {
    "bytes": "an amount of bytes, such as `64MiB`",
    "tokens": "an amount of tokens, such as `4096tok`",
    "time": "a time, such as `1.5ms`",
    "number": "a count or a ratio, such as `8`, `1.5` or `125%`",
    "bool": "`true` or `false`",
}

UNIT_WORDS: dict[str, str] = {
    "B": "one byte",
    "KB": "10^3 bytes",
    "MB": "10^6 bytes",
    "GB": "10^9 bytes",
    "KiB": "2^10 bytes",
    "MiB": "2^20 bytes",
    "GiB": "2^30 bytes",
    "tok": "one token",
    "ns": "one nanosecond",
    "us": "10^3 nanoseconds",
    "ms": "10^6 nanoseconds",
    "s": "10^9 nanoseconds",
    "%": "one hundredth, a number",
}

# Operators by how tightly they bind, loosest first, each level with how it groups.
PRECEDENCE: tuple[tuple[tuple[str, ...], str], ...] = (
    (("or",), "any number of conditions"),
    (("and",), "any number of conditions"),
    (("not",), "one condition"),
    (("<", "<=", ">", ">=", "==", "!="), "two amounts, or three with `<` and `<=`, or with `>` and `>=`"),
    (("+", "-"), "amounts of one unit, from the left"),
    (("*", "/"), "amounts, from the left"),
    (("- (before one)",), "one amount"),
)
