"""What can be written where the cursor is, with what it means."""

from __future__ import annotations

from collections.abc import Iterator

from lsprotocol import types
from lsprotocol.types import CompletionItem, CompletionItemKind

from kvmove.editors.context import Context, context_at
from kvmove.editors.document import Document
from kvmove.editors.hover import about_function, about_name, about_type, about_word, unit_of
from kvmove.editors.positions import Positions
from kvmove.kvpol.scope import FUNCTIONS
from kvmove.kvpol.units import TYPES, UNITS
from kvmove.kvpol.words import UNIT_WORDS, WORDS
from kvmove.schema import VARIABLES, Scope


def completions(document: Document, positions: Positions, offset: int) -> list[CompletionItem]:
    """Everything that can stand at `offset`; the editor narrows it down to what is typed."""
    context = context_at(document, offset)
    if context is None:
        return []
    place = positions.range(context.typed)
    items = list(_units() if context.is_unit else _items(document, context, offset))
    for item in items:
        item.text_edit = types.TextEdit(place, item.label)
    return items


def _items(document: Document, context: Context, offset: int) -> Iterator[CompletionItem]:
    if context.before == "COLON":
        yield from _types()
        return
    accepted = context.accepted
    if context.before not in ("LET", "PARAM") and (accepted is None or "NAME" in accepted):
        yield from _definitions(document, offset)
        yield from _variables(document, in_assert=context.in_assert)
        yield from _functions()
    for word in WORDS:
        if accepted is None or word.upper() in accepted:
            yield _item(word, CompletionItemKind.Keyword, "3", WORDS[word].form, about_word(word))


def _definitions(document: Document, offset: int) -> Iterator[CompletionItem]:
    """The params and lets that are defined above."""
    variables = {v.name for v in VARIABLES}
    for d in document.defined.values():
        end = d.statement.span.end if d.statement else d.span.end
        if end < offset and d.name not in variables:
            kind = CompletionItemKind.Constant if d.kind == "param" else CompletionItemKind.Variable
            detail = f"{d.kind}, {unit_of(d.meaning)}" if d.meaning else d.kind
            yield _item(d.name, kind, "0", detail, about_name(document, d.name))


def _variables(document: Document, *, in_assert: bool) -> Iterator[CompletionItem]:
    for v in VARIABLES:
        if in_assert or v.scope is not Scope.OUTCOME:
            detail = f"{v.unit.value}, may be unknown" if v.optional else v.unit.value
            yield _item(v.name, CompletionItemKind.Field, "1", detail, about_name(document, v.name))


def _functions() -> Iterator[CompletionItem]:
    for name in FUNCTIONS:
        yield _item(name, CompletionItemKind.Function, "2", "function", about_function(name))


def _types() -> Iterator[CompletionItem]:
    for name in TYPES:
        yield _item(name, CompletionItemKind.TypeParameter, "0", "type", about_type(name))


def _units() -> Iterator[CompletionItem]:
    for unit in filter(None, UNITS):
        yield _item(unit, CompletionItemKind.Unit, "0", UNIT_WORDS[unit], None)


def _item(label: str, kind: CompletionItemKind, order: str, detail: str, about: str | None) -> CompletionItem:
    documentation = types.MarkupContent(types.MarkupKind.Markdown, about) if about else None
    # `order` keeps what the file defines above the variables, those above functions, and keywords last.
    return CompletionItem(label, kind=kind, detail=detail, documentation=documentation, sort_text=order + label)
