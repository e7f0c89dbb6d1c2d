"""What stands between the tokens of a policy: comments and empty lines, which the grammar skips."""

from __future__ import annotations

import re
from dataclasses import dataclass

_PIECE = re.compile(r"[ \t\n]+|#[^\n]*")


@dataclass(frozen=True, slots=True)
class Comment:
    """One comment, from its `#` to the end of its line.

    `trails`: it stands on the line of the token before it. `hangs`: it goes on with the comment that trails,
    right below it and in the same column. `blank_before`: an empty line stands before it.
    """

    text: str
    trails: bool
    hangs: bool
    blank_before: bool


@dataclass(frozen=True, slots=True)
class Gap:
    """The comments between two tokens, and whether an empty line stands before the second of them."""

    comments: tuple[Comment, ...]
    blank_after: bool


def gap_between(text: str, start: int, end: int) -> Gap:
    """What `text[start:end]` holds, which has no token and ends its lines in line feeds.

    A comment at the start of the text trails nothing.
    """
    comments: list[Comment] = []
    newlines = 0
    hanging_column = -1
    for piece in _PIECE.finditer(text, start, end):
        found = piece[0]
        if not found.startswith("#"):
            newlines += found.count("\n")
            continue
        column = piece.start() - (text.rfind("\n", 0, piece.start()) + 1)
        trails = newlines == 0 and start > 0
        hangs = newlines == 1 and column == hanging_column
        comments.append(Comment(found.rstrip(" \t"), trails, hangs, newlines > 1))
        hanging_column = column if trails or hangs else -1
        newlines = 0
    return Gap(tuple(comments), newlines > 1)
