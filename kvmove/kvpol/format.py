"""A policy's text in its one layout: what `kvmove fmt`, the language server and the pytest plugin share.

The tokens stay what they are, in their order: parentheses, numbers and comments are kept as written, and only
white space changes. The layout depends on nothing but the tokens, the comments with the token each follows, and
empty lines between statements, all of which the layout itself keeps; so formatting twice is formatting once.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from kvmove.errors import InternalError, PolicyError
from kvmove.kvpol.comments import Gap, gap_between
from kvmove.kvpol.findings import Findings
from kvmove.kvpol.lexer import Token, tokenize
from kvmove.kvpol.limits import MAX_BYTES, check_text
from kvmove.kvpol.parser import parse
from kvmove.kvpol.render import render_all
from kvmove.kvpol.source import Source
from kvmove.kvpol.wrapping import STEP, Lines
from kvmove.records import Action

COMMENT_SPACE = 2  # columns between code and a comment that trails it
LABEL_SPACE = 2  # columns between the longest label and the decisions

_NOTHING, _BLANK = Gap((), False), Gap((), True)
_RULE_STARTS = frozenset({"LABEL", *(action.name for action in Action)})


def format_text(source: str, *, name: str = "<policy>") -> str:
    """The policy `source`, laid out. `name` stands in messages.

    Lines end in a line feed, also the last; a byte order mark is dropped; a text without tokens or comments is empty.

    Raises:
        PolicyError: the text has a syntax error (`findings` has every one of them), or passes a limit of the
            language, as it is or laid out.
    """
    text = source.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    tokens, starts = _statements_of(Source(name, text))
    blocks = _blocks(text, tokens, starts)
    formatted = "".join(f"{line}\n" for line in _lines(blocks, _gap_at(text, tokens, len(tokens))))
    if len(formatted.encode()) > MAX_BYTES:
        raise PolicyError(f"{name}: formatted, this policy would be larger than {MAX_BYTES >> 10} KiB; split it")
    if [(t.kind, t.text) for t in tokenize(Source(name, formatted), Findings())] != [(t.kind, t.text) for t in tokens]:
        raise InternalError(f"{name}: formatting would change what this policy says; it is left as it is")
    return formatted


def lay_out(statements: Iterable[Sequence[Token]]) -> str:
    """The text of statements without comments, in the same layout, with an empty line between those of two kinds.

    Nothing is read but kinds and texts of the tokens. That they are statements is up to the caller.
    """
    blocks: list[list[_Statement]] = []
    for tokens in statements:
        kind = "RULE" if tokens[0].kind in _RULE_STARTS else tokens[0].kind
        is_next = bool(blocks) and blocks[-1][0].kind == kind
        statement = _Statement(kind, Lines(tokens, [_NOTHING] * len(tokens)), _NOTHING if is_next else _BLANK)
        if is_next:
            blocks[-1].append(statement)
        else:
            blocks.append([statement])
    return "".join(f"{line}\n" for line in _lines(blocks, _NOTHING)) if blocks else ""


def _statements_of(source: Source) -> tuple[list[Token], list[int]]:
    """The tokens, and for each statement the index of its first."""
    check_text(source)
    findings = Findings()
    file = parse(source, findings)
    if findings.has_errors:
        errors = [f for f in findings.sorted() if f.is_error]
        raise PolicyError(render_all(errors, source), errors)
    tokens = tokenize(source, Findings())
    offsets = [t.span.start for t in tokens]
    nodes = [*([file.header] if file.header else []), *file.statements]
    return tokens, [bisect_right(offsets, node.span.start) - 1 for node in nodes]


@dataclass(slots=True)
class _Statement:
    """One statement: its lines in the making, and what stands between it and the one before it."""

    kind: str  # the terminal of its first word; RULE for a rule
    lines: Lines
    before: Gap

    @property
    def opens_block(self) -> bool:
        """Whether an empty line stands above it, or above a comment over it."""
        return self.before.blank_after or any(c.blank_before for c in self.before.comments)


def _gap_at(text: str, tokens: Sequence[Token], i: int) -> Gap:
    """What stands before token `i`; at `len(tokens)`, before the end."""
    start = tokens[i - 1].span.end if i else 0
    return gap_between(text, start, tokens[i].span.start if i < len(tokens) else len(text))


def _blocks(text: str, tokens: Sequence[Token], starts: Sequence[int]) -> list[list[_Statement]]:
    """Statements that are aligned with each other: of one kind, with no empty line between them."""
    gaps = [_gap_at(text, tokens, i) for i in range(len(tokens))]
    blocks: list[list[_Statement]] = []
    for start, end in pairwise([*starts, len(tokens)]):
        kind = "RULE" if tokens[start].kind in _RULE_STARTS else tokens[start].kind
        statement = _Statement(kind, Lines(tokens[start:end], gaps[start:end]), gaps[start])
        if not blocks or statement.opens_block or blocks[-1][0].kind != kind:
            blocks.append([])
        blocks[-1].append(statement)
    return blocks


def _lines(blocks: Sequence[Sequence[_Statement]], last: Gap) -> list[str]:
    """Every line of the file; `last` is what stands behind the last statement."""
    befores = [s.before for block in blocks for s in block] + [last]
    lines = list(_comment_lines(befores[0], 0))
    done = 0
    for block in blocks:
        _place(block)
        afters = befores[done + 1 : done + 1 + len(block)]
        done += len(block)
        written = [s.lines.written() for s in block]
        column = max((len(w[-1]) for w, gap in zip(written, afters, strict=True) if _trailing(gap)), default=0)
        column += COMMENT_SPACE
        for statement_lines, gap in zip(written, afters, strict=True):
            lines += statement_lines
            if _trailing(gap):
                lines[-1] = lines[-1].ljust(column) + gap.comments[0].text
            lines += _comment_lines(gap, column)
    # Empty lines at either end belong to nothing.
    kept = [i for i, line in enumerate(lines) if line]
    return lines[kept[0] : kept[-1] + 1] if kept else []


def _trailing(gap: Gap) -> bool:
    return bool(gap.comments) and gap.comments[0].trails


def _comment_lines(gap: Gap, column: int) -> Iterator[str]:
    """The lines between two statements; comments that hang below a trailing one stand in its `column`."""
    for comment in gap.comments:
        if comment.blank_before:
            yield ""
        if not comment.trails:
            yield " " * column * comment.hangs + comment.text
    if gap.blank_after:
        yield ""


def _place(block: Sequence[_Statement]) -> None:
    """Align the statements of a block, and break those that are too long."""
    statements = [s.lines for s in block]
    match block[0].kind:
        case "PARAM":
            _place_params(statements)
        case "LET":
            _place_lets(statements)
        case "RULE":
            _place_rules(statements)
        case "ASSERT":
            for lines in statements:
                _place_assert(lines)


def _place_params(block: Sequence[Lines]) -> None:
    """`param NAME: TYPE = VALUE`, with the types and the equals signs each in a column."""
    type_column = max(lines.width(0, 3) for lines in block) + 1
    equal_column = type_column + max(lines.width(3, 4) for lines in block) + 1
    for lines in block:
        lines.columns[3], lines.columns[4] = type_column, equal_column


def _place_lets(block: Sequence[Lines]) -> None:
    """`let NAME = EXPRESSION`, with the equals signs in a column."""
    equal_column = max(lines.width(0, 2) for lines in block) + 1
    for lines in block:
        lines.columns[2] = equal_column
        lines.wrap(3, len(lines.tokens), equal_column + 2)


def _place_rules(block: Sequence[Lines]) -> None:
    """Labels, decisions and conditions each in a column. A decision with `at most` is no part of the columns' width."""
    actions = [1 if lines.tokens[0].kind == "LABEL" else 0 for lines in block]
    labels = max(lines.width(0, action) for lines, action in zip(block, actions, strict=True))
    action_column = labels + LABEL_SPACE if labels else 0
    plain = [
        lines.width(action, action + 1)
        for lines, action in zip(block, actions, strict=True)
        if len(lines.tokens) > action + 1 and lines.tokens[action + 1].kind == "IF"
    ]
    if_column = action_column + (max(plain) + 1 if plain else STEP)
    for lines, action in zip(block, actions, strict=True):
        lines.columns[action] = action_column
        _place_rule(lines, action, action_column, if_column)


def _place_rule(lines: Lines, action: int, action_column: int, if_column: int) -> None:
    end = len(lines.tokens)
    lines.indents[action:end] = [action_column, *[action_column + STEP] * (end - action - 1)]
    at = next((i for i in range(action, end) if lines.tokens[i].kind == "IF"), None)
    if at is None:
        return
    lines.indents[at] = if_column
    column = if_column
    if at == action + 1:
        lines.columns[at] = if_column
    elif lines.fits(action, end, action_column):
        column = action_column + lines.width(action, at) + 1
    else:
        lines.breaks[at] = True
    lines.wrap(at + 1, end, column + len("if "))


def _place_assert(lines: Lines) -> None:
    end, column = len(lines.tokens), len("assert ")
    if lines.fits(0, end, 0):
        return
    at = next((i for i in range(end) if lines.tokens[i].kind == "IMPLIES"), None)
    lines.wrap(1, end if at is None else at, column, nested=at is not None)
    if at is not None:
        lines.breaks[at] = True
        lines.indents[at] = column
        lines.wrap(at + 1, end, column + len("implies "))
