"""The outline of a policy: its params, lets, rules and asserts, in order."""

from __future__ import annotations

from lsprotocol.types import DocumentSymbol, SymbolKind

from kvmove.editors.document import Document
from kvmove.editors.positions import Positions
from kvmove.kvpol import tree
from kvmove.kvpol.source import Span

MAX_DETAIL = 80  # characters of a statement that an outline shows beside its name


def document_symbols(document: Document, positions: Positions) -> list[DocumentSymbol]:
    """One symbol for each statement that parses."""
    symbols = []
    number = 0
    for statement in document.file.statements:
        number += isinstance(statement, tree.Rule)
        name, kind, chosen = _named(statement, number)
        text = " ".join(document.source.slice(statement.span).split())
        symbols.append(
            DocumentSymbol(
                name=name,
                kind=kind,
                range=positions.range(statement.span),
                selection_range=positions.range(chosen),
                detail=text if len(text) <= MAX_DETAIL else text[: MAX_DETAIL - 3] + "...",
            )
        )
    return symbols


def _named(statement: tree.Statement, number: int) -> tuple[str, SymbolKind, Span]:
    match statement:
        case tree.Param():
            return statement.name.text, SymbolKind.Constant, statement.name.span
        case tree.Let():
            return statement.name.text, SymbolKind.Variable, statement.name.span
        case tree.Rule(label=tree.Word() as label):
            return f"@{label.text}", SymbolKind.Event, label.span
        case tree.Rule():
            return f"rule {number}: {statement.action.value}", SymbolKind.Event, statement.action_span
    return "assert", SymbolKind.Boolean, statement.span
