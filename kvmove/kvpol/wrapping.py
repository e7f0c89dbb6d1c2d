"""Where the lines of one formatted statement break, and how it is written down."""

from __future__ import annotations

from collections.abc import Sequence

from kvmove.kvpol.comments import Gap
from kvmove.kvpol.lexer import Token

WIDTH = 100  # columns; a longer line breaks before its `and` and `or`
STEP = 4  # columns that a continued line stands further in than what it continues

_ENDS_OPERAND = frozenset({"QUANTITY", "NAME", "TRUE", "FALSE", "RPAR"})


class Lines:
    """One statement on its way to lines: its tokens, and for each where it goes.

    `indents[i]` is the column of token `i` if a line starts with it, which a comment before it can always bring
    about; `breaks[i]` says that one does; `columns[i]` is a column that token `i` is pushed to within a line.
    """

    def __init__(self, tokens: Sequence[Token], gaps: Sequence[Gap]) -> None:
        self.tokens, self.gaps = tokens, gaps
        self.indents = [STEP] * len(tokens)
        self.breaks = [False] * len(tokens)
        self.columns = [0] * len(tokens)
        # Columns [ends[i] - len(text), ends[i]) are token i's if the statement is one line without alignment.
        self._ends: list[int] = []
        end = 0
        for i, token in enumerate(tokens):
            end += len(self._separator(i)) + len(token.text)
            self._ends.append(end)

    def width(self, start: int, end: int) -> int:
        """Columns of tokens [start, end) on one line."""
        if start >= end:
            return 0
        return self._ends[end - 1] - self._ends[start] + len(self.tokens[start].text)

    def has_comment(self, start: int, end: int) -> bool:
        """Whether a comment stands between two of the tokens [start, end)."""
        return any(self.gaps[i].comments for i in range(start + 1, end))

    def fits(self, start: int, end: int, column: int, tail: int = 0) -> bool:
        """Whether tokens [start, end), and `tail` more columns, can be one line from `column` on."""
        return column + self.width(start, end) + tail <= WIDTH and not self.has_comment(start, end)

    def wrap(self, start: int, end: int, column: int, *, tail: int = 0, nested: bool = False) -> int:
        """Place the expression of tokens [start, end) from `column` on; returns the column after it.

        It stays one line if it fits. Else it breaks before each of its `or`s, without any before its `and`s, and
        then so do its operands and what it has in parentheses. `nested` says that it continues something of its
        own in `column`, so that its continued lines stand further in.
        """
        self.indents[start:end] = [column, *[column + STEP] * (end - start - 1)]
        if self.fits(start, end, column, tail):
            return column + self.width(start, end)
        operators = self._loosest(start, end)
        if not operators:
            return self._wrap_parentheses(start, end, column, tail)
        chain = column + STEP * nested
        bounds = [*operators, end]
        column = self.wrap(start, bounds[0], column, nested=True)
        for at, after in zip(operators, bounds[1:], strict=True):
            self.breaks[at] = True
            self.indents[at] = chain
            operand = chain + len(self.tokens[at].text) + 1
            column = self.wrap(at + 1, after, operand, tail=tail if after == end else 0, nested=True)
        return column

    def _wrap_parentheses(self, start: int, end: int, column: int, tail: int) -> int:
        i = start
        while i < end:
            if i > start:
                column = self.indents[i] if self.gaps[i].comments else column + len(self._separator(i))
            column += len(self.tokens[i].text)
            if self.tokens[i].kind != "LPAR":
                i += 1
                continue
            close = self._closing(i)
            if close > i + 1:
                column = self.wrap(i + 1, close, column, tail=1 + tail if close == end - 1 else 1)
            i = close
        return column

    def _loosest(self, start: int, end: int) -> list[int]:
        """The `or`s of tokens [start, end) outside parentheses; the `and`s if there are none."""
        found: dict[str, list[int]] = {"OR": [], "AND": []}
        depth = 0
        for i in range(start, end):
            kind = self.tokens[i].kind
            depth += (kind == "LPAR") - (kind == "RPAR")
            if depth == 0 and kind in found:
                found[kind].append(i)
        return found["OR"] or found["AND"]

    def _closing(self, opening: int) -> int:
        depth = 0
        for i in range(opening, len(self.tokens)):
            depth += (self.tokens[i].kind == "LPAR") - (self.tokens[i].kind == "RPAR")
            if depth == 0:
                return i
        return len(self.tokens)

    def _separator(self, i: int) -> str:
        """What stands before token `i` within a line."""
        if i == 0:
            return ""
        before, kind = self.tokens[i - 1].kind, self.tokens[i].kind
        if kind in ("RPAR", "COMMA", "COLON") or before == "LPAR" or (kind == "LPAR" and before == "NAME"):
            return ""
        is_sign = before == "MINUS" and (i == 1 or self.tokens[i - 2].kind not in _ENDS_OPERAND)
        return "" if is_sign else " "

    def written(self) -> list[str]:
        """The lines, with the comments that stand between the tokens."""
        lines: list[str] = []
        line = " " * self.columns[0]
        for i, token in enumerate(self.tokens):
            comments = self.gaps[i].comments if i else ()
            for comment in comments:
                if comment.trails:
                    line += f"  {comment.text}"
                else:
                    lines.append(line)
                    line = " " * self.indents[i] + comment.text
            if comments or self.breaks[i]:
                lines.append(line)
                line = " " * self.indents[i]
            elif i:
                line = (line + self._separator(i)).ljust(self.columns[i])
            line += token.text
        return [*lines, line]
