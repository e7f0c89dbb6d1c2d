"""On which line each key of a TOML text stands: `tomllib` gives values, and no places.

The text has been read by `tomllib`, so that it is well formed here, and only what separates keys and values has to
be told apart.
"""

from __future__ import annotations

import re

Path = tuple[str | int, ...]

_BLANK = re.compile(r"(?:[ \t\r\n]+|#[^\n]*)*")
_SPACE = re.compile(r"[ \t]*")
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_STRING = re.compile(
    r'"""(?:\\.|(?!""").)*"{3,5}' r"|'''(?:(?!''').)*'{3,5}" r'|"(?:\\.|[^"\\\n])*"' r"|'[^'\n]*'", re.DOTALL
)
_PLAIN = re.compile(r"[^,\]}#\n]+")  # a number, a date, `true`


def places(text: str) -> dict[Path, int]:
    """The line, counted from 1, of each key and array item of `text`, by the way to it in what `tomllib` returns.

    A table has the line of its header, or else of the first key that leads into it.
    """
    reader = _Reader(text)
    reader.read_document()
    return reader.lines


class _Reader:
    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0
        self.lines: dict[Path, int] = {}
        self.lengths: dict[Path, int] = {}  # of arrays of tables so far
        self.line, self.counted = 1, 0  # the line of the character at `counted`

    def read_document(self) -> None:
        table: Path = ()
        while True:
            self.skip(_BLANK)
            if self.at >= len(self.text):
                return
            if self.text[self.at] != "[":
                self.read_pair(table)
                continue
            start, is_array = self.at, self.text.startswith("[[", self.at)
            self.at += 2 if is_array else 1
            names = self.read_key()
            self.at += 2 if is_array else 1
            table = ()
            for i, name in enumerate(names):
                table = (*table, name)
                is_last = i == len(names) - 1
                self.note(table, start)
                if is_last and is_array:
                    self.lengths[table] = self.lengths.get(table, 0) + 1
                if table in self.lengths:  # a header speaks of the latest item
                    table = (*table, self.lengths[table] - 1)
                    self.note(table, start)

    def read_pair(self, table: Path) -> None:
        start = self.at
        path = table
        for name in self.read_key():
            path = (*path, name)
            self.note(path, start)
        self.at += 1  # the equals sign
        self.skip(_SPACE)
        self.read_value(path)

    def read_key(self) -> list[str]:
        """The names of a dotted key, up to what follows it."""
        names = []
        while True:
            self.skip(_SPACE)
            found = _BARE.match(self.text, self.at) or _STRING.match(self.text, self.at)
            assert found is not None, "tomllib has read this text"
            self.at = found.end()
            names.append(_name(found[0]))
            self.skip(_SPACE)
            if self.text[self.at : self.at + 1] != ".":
                return names
            self.at += 1

    def read_value(self, path: Path) -> None:
        opening = self.text[self.at]
        if opening == "[":
            self.read_items(path, "]")
        elif opening == "{":
            self.read_items(path, "}")
        else:
            self.skip(_STRING if opening in "\"'" else _PLAIN)

    def read_items(self, path: Path, closing: str) -> None:
        self.at += 1
        item = 0
        while True:
            self.skip(_BLANK)
            if self.text[self.at] == closing:
                self.at += 1
                return
            if closing == "}":
                self.read_pair(path)
            else:
                self.note((*path, item), self.at)
                self.read_value((*path, item))
                item += 1
            self.skip(_BLANK)
            if self.text[self.at] == ",":
                self.at += 1

    def note(self, path: Path, at: int) -> None:
        self.line += self.text.count("\n", self.counted, at)
        self.counted = at
        self.lines.setdefault(path, self.line)

    def skip(self, pattern: re.Pattern[str]) -> None:
        found = pattern.match(self.text, self.at)
        self.at = self.at if found is None else found.end()


def _name(written: str) -> str:
    if written[0] not in "\"'":
        return written
    import tomllib

    return str(tomllib.loads(f"x = {written}")["x"])
