"""Did you mean: the known word closest to an unknown one."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def closest(word: str, known: Iterable[str]) -> str | None:
    """The known word that `word` was probably meant to be, or None. Case and underscores count little."""
    by_plain: dict[str, str] = {}
    for name in known:
        by_plain.setdefault(_plain(name), name)
    found = get_close_matches(_plain(word[:64]), list(by_plain), n=1, cutoff=0.7)
    return by_plain[found[0]] if found else None


def did_you_mean(word: str, known: Iterable[str]) -> str | None:
    """A help line for an unknown word, or None when nothing known is close."""
    found = closest(word, known)
    return None if found is None else f"did you mean `{found}`?"


def listed(words: Iterable[str]) -> str:
    """`a`, `b` and `c`."""
    items = [f"`{w}`" for w in words]
    if len(items) < 2:
        return "".join(items)
    return ", ".join(items[:-1]) + " and " + items[-1]


def _plain(word: str) -> str:
    return word.lower().replace("_", "")
