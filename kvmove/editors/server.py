"""The language server: open policies, when their diagnostics are sent, and which module answers what.

Stages of a document: opened (checked at once), changed (checked when typing pauses), saved (checked at once), closed
(its diagnostics are withdrawn). Requests always see the newest text, checked or not.
"""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio import TimerHandle
from typing import Any

from lsprotocol import types
from pygls.exceptions import JsonRpcException
from pygls.lsp.server import LanguageServer

from kvmove import __version__
from kvmove.editors import names
from kvmove.editors.completion import completions
from kvmove.editors.diagnostics import diagnostics, quick_fixes
from kvmove.editors.document import Document
from kvmove.editors.formatting import formatting_edits
from kvmove.editors.hover import hover
from kvmove.editors.positions import Positions
from kvmove.editors.symbols import document_symbols
from kvmove.kvpol.source import Source, Span

PAUSE_S = 0.2  # without a key pressed, before a changed text is checked
UTF16 = types.PositionEncodingKind.Utf16
REQUEST_FAILED = -32803  # the protocol's code for a refusal whose message is for the person who asked


class PolicyServer(LanguageServer):
    """The open policies of one client. `strict` shows what `kvmove check --strict` does."""

    def __init__(self, *, strict: bool = False) -> None:
        # Whole texts: a policy has at most 64 KiB, and nothing can then be applied at a wrong place.
        super().__init__("kvmove", __version__, text_document_sync_kind=types.TextDocumentSyncKind.Full)
        self.strict = strict
        self.was_shut_down = False
        self._documents: dict[str, Document] = {}
        self._waiting: dict[str, TimerHandle] = {}

    def document(self, uri: str) -> Document:
        """The newest version of the policy at `uri`."""
        text = self.workspace.get_text_document(uri).source
        document = self._documents.get(uri)
        if document is None or document.source.text != text:
            document = self._documents[uri] = Document(Source(uri, text), strict=self.strict)
        return document

    def positions(self, uri: str) -> Positions:
        """Places in the policy at `uri`, in the encoding that was agreed on."""
        return Positions(self.document(uri).source.text, self.workspace.position_encoding or UTF16)

    def offset(self, uri: str, position: types.Position) -> int:
        """The character at `position` of the policy at `uri`."""
        return self.positions(uri).offset(position)

    def publish(self, uri: str) -> None:
        """Send the diagnostics of the policy at `uri` now."""
        self._forget_timer(uri)
        found = diagnostics(self.document(uri), self.positions(uri), uri)
        version = self.workspace.get_text_document(uri).version
        self.text_document_publish_diagnostics(types.PublishDiagnosticsParams(uri, found, version))

    def publish_soon(self, uri: str) -> None:
        """Send the diagnostics of the policy at `uri` when it has not changed for a while."""
        self._forget_timer(uri)
        self._waiting[uri] = asyncio.get_running_loop().call_later(PAUSE_S, self.publish, uri)

    def withdraw(self, uri: str) -> None:
        """Forget the policy at `uri`, which was closed."""
        self._forget_timer(uri)
        self._documents.pop(uri, None)
        self.text_document_publish_diagnostics(types.PublishDiagnosticsParams(uri, []))

    def _forget_timer(self, uri: str) -> None:
        timer = self._waiting.pop(uri, None)
        if timer is not None:
            timer.cancel()


def make_server(*, strict: bool = False) -> PolicyServer:
    """A server with every feature, not yet connected to anything."""
    server = PolicyServer(strict=strict)
    _register_documents(server)
    _register_answers(server)
    _register_names(server)
    return server


def serve(*, strict: bool = False) -> int:
    """Serve one client over standard input and output; returns the exit status.

    The status is 0 after a shutdown that the client asked for, 1 when it left without.
    """
    server = make_server(strict=strict)
    # The protocol gets the real output; whatever prints must not end up between two messages.
    with os.fdopen(os.dup(sys.stdout.fileno()), "wb") as output:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        server.start_io(stdout=output)
    return 0 if server.was_shut_down else 1


def _register_documents(server: PolicyServer) -> None:
    @server.feature(types.TEXT_DOCUMENT_DID_OPEN)
    def opened(params: types.DidOpenTextDocumentParams) -> None:
        server.publish(params.text_document.uri)

    @server.feature(types.TEXT_DOCUMENT_DID_CHANGE)
    def changed(params: types.DidChangeTextDocumentParams) -> None:
        server.publish_soon(params.text_document.uri)

    @server.feature(types.TEXT_DOCUMENT_DID_SAVE)
    def saved(params: types.DidSaveTextDocumentParams) -> None:
        server.publish(params.text_document.uri)

    @server.feature(types.TEXT_DOCUMENT_DID_CLOSE)
    def closed(params: types.DidCloseTextDocumentParams) -> None:
        server.withdraw(params.text_document.uri)

    @server.feature(types.SHUTDOWN)
    def shut_down(*_: Any) -> None:
        server.was_shut_down = True


def _register_answers(server: PolicyServer) -> None:
    @server.feature(types.TEXT_DOCUMENT_HOVER)
    def hovered(params: types.HoverParams) -> types.Hover | None:
        uri = params.text_document.uri
        said = hover(server.document(uri), server.offset(uri, params.position))
        if said is None:
            return None
        text, place = said
        return types.Hover(types.MarkupContent(types.MarkupKind.Markdown, text), server.positions(uri).range(place))

    @server.feature(types.TEXT_DOCUMENT_COMPLETION, types.CompletionOptions())
    def completed(params: types.CompletionParams) -> list[types.CompletionItem]:
        uri = params.text_document.uri
        return completions(server.document(uri), server.positions(uri), server.offset(uri, params.position))

    @server.feature(
        types.TEXT_DOCUMENT_CODE_ACTION, types.CodeActionOptions(code_action_kinds=[types.CodeActionKind.QuickFix])
    )
    def fixed(params: types.CodeActionParams) -> list[types.CodeAction]:
        uri = params.text_document.uri
        wanted = params.context.only
        if wanted and not any(str(kind) in ("", types.CodeActionKind.QuickFix) for kind in wanted):
            return []
        return quick_fixes(server.document(uri), server.positions(uri), uri, params.range)

    @server.feature(types.TEXT_DOCUMENT_FORMATTING)
    def formatted(params: types.DocumentFormattingParams) -> list[types.TextEdit]:
        uri = params.text_document.uri
        return formatting_edits(server.document(uri).source.text, server.positions(uri))

    @server.feature(types.TEXT_DOCUMENT_DOCUMENT_SYMBOL)
    def outlined(params: types.DocumentSymbolParams) -> list[types.DocumentSymbol]:
        uri = params.text_document.uri
        return document_symbols(server.document(uri), server.positions(uri))


def _register_names(server: PolicyServer) -> None:
    def found(uri: str, position: types.Position) -> names.Occurrences | None:
        return names.occurrences_at(server.document(uri), server.offset(uri, position))

    def location(uri: str, place: Span) -> types.Location:
        return types.Location(uri, server.positions(uri).range(place))

    @server.feature(types.TEXT_DOCUMENT_DEFINITION)
    def defined(params: types.DefinitionParams) -> types.Location | None:
        name = found(params.text_document.uri, params.position)
        return location(params.text_document.uri, name.definition) if name and name.definition else None

    @server.feature(types.TEXT_DOCUMENT_REFERENCES)
    def referred(params: types.ReferenceParams) -> list[types.Location]:
        name = found(params.text_document.uri, params.position)
        places = name.places if name else []
        if name and not params.context.include_declaration:
            places = [p for p in places if p != name.definition]
        return [location(params.text_document.uri, p) for p in places]

    @server.feature(types.TEXT_DOCUMENT_DOCUMENT_HIGHLIGHT)
    def highlighted(params: types.DocumentHighlightParams) -> list[types.DocumentHighlight]:
        name = found(params.text_document.uri, params.position)
        positions = server.positions(params.text_document.uri)
        return [types.DocumentHighlight(positions.range(p)) for p in name.places] if name else []

    @server.feature(types.TEXT_DOCUMENT_PREPARE_RENAME)
    def renamable(params: types.PrepareRenameParams) -> types.Range | None:
        uri = params.text_document.uri
        offset = server.offset(uri, params.position)
        try:
            name = names.renamable_at(server.document(uri), offset)
        except names.CannotRename as e:
            raise JsonRpcException(str(e), REQUEST_FAILED) from None
        under = next((p for p in name.places if p.start <= offset <= p.end), name.places[0])
        return server.positions(uri).range(under)

    @server.feature(types.TEXT_DOCUMENT_RENAME, types.RenameOptions(prepare_provider=True))
    def renamed(params: types.RenameParams) -> types.WorkspaceEdit:
        uri = params.text_document.uri
        document, positions = server.document(uri), server.positions(uri)
        try:
            name = names.renamable_at(document, server.offset(uri, params.position))
            names.check_new_name(document, name, params.new_name)
        except names.CannotRename as e:
            raise JsonRpcException(str(e), REQUEST_FAILED) from None
        edits = [types.TextEdit(positions.range(p), params.new_name) for p in name.places]
        return types.WorkspaceEdit(changes={uri: edits})
