"""`kvmove lsp` as an editor uses it: pygls' client drives a server in a process of its own.

Starting one takes a second, so most tests share a server, as an editor's windows do; each has its own policy there.
Timeouts only end a test that hangs; nothing waits for a time to pass.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import pytest

pytest.importorskip("pygls", reason="needs the extra lsp")

from lsprotocol import types
from pygls.exceptions import JsonRpcException
from pygls.lsp.client import LanguageClient

ROOT = Path(__file__).parents[2]
PATIENCE_S = 60
T = TypeVar("T")

BROKEN = """policy "edited"
# \U0001f680 an astral character, before what is wrong
param small: tokens = 4096   # \U0001f680
let cost = load_time + async_delay
@tiny sync if tokens <= small and cost > 3ms
"""


class Editor:
    """A client with one open policy at a time, whose diagnostics it collects by version."""

    def __init__(self) -> None:
        self.client = LanguageClient("test", "1")
        self._numbers = count(1)
        self.begin()

        @self.client.feature(types.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS)
        def published(params: types.PublishDiagnosticsParams) -> None:
            if params.uri == self.uri:
                self.arrived.put_nowait(params)

    def begin(self) -> None:
        """Turn to a new policy; what still comes about the one before is nobody's."""
        self.uri = f"file:///policies/edited{next(self._numbers)}.kvpol"
        self.document = types.TextDocumentIdentifier(self.uri)
        self.arrived: asyncio.Queue[types.PublishDiagnosticsParams] = asyncio.Queue()
        self.version = 0

    async def open(self, text: str) -> list[types.Diagnostic]:
        self.version += 1
        item = types.TextDocumentItem(self.uri, "kvpol", self.version, text)
        self.client.text_document_did_open(types.DidOpenTextDocumentParams(item))
        return await self.diagnostics()

    async def change(self, text: str) -> list[types.Diagnostic]:
        self.change_only(text)
        return await self.diagnostics()

    def change_only(self, text: str) -> None:
        self.version += 1
        identifier = types.VersionedTextDocumentIdentifier(self.version, self.uri)
        changes: list[types.TextDocumentContentChangeEvent] = [types.TextDocumentContentChangeWholeDocument(text)]
        self.client.text_document_did_change(types.DidChangeTextDocumentParams(identifier, changes))

    async def diagnostics(self) -> list[types.Diagnostic]:
        """Those of the newest version; earlier ones are skipped."""
        while True:
            published = await self.arrived.get()
            if published.version in (None, self.version):
                return list(published.diagnostics)

    async def hover(self, line: int, character: int) -> str:
        where = types.HoverParams(self.document, types.Position(line, character))
        found = await self.client.text_document_hover_async(where)
        if found is None:
            return ""
        assert isinstance(found.contents, types.MarkupContent)
        return found.contents.value

    async def complete(self, text: str) -> dict[str, types.CompletionItem]:
        """What is offered at the end of `text`."""
        self.change_only(text)
        last = text.rpartition("\n")[2]
        position = types.Position(text.count("\n"), len(last))
        found = await self.client.text_document_completion_async(types.CompletionParams(self.document, position))
        assert isinstance(found, list)
        return {item.label: item for item in found}

    async def format(self) -> list[types.TextEdit]:
        options = types.FormattingOptions(tab_size=4, insert_spaces=True)
        found = await self.client.text_document_formatting_async(types.DocumentFormattingParams(self.document, options))
        return list(found or [])

    async def rename(self, line: int, character: int, new: str) -> list[types.TextEdit]:
        where = types.RenameParams(self.document, types.Position(line, character), new)
        edit = await self.client.text_document_rename_async(where)
        assert edit is not None
        assert edit.changes is not None
        return list(edit.changes[self.uri])


@asynccontextmanager
async def editor(*options: str, capabilities: types.ClientCapabilities | None = None) -> AsyncIterator[Editor]:
    """An editor whose server is initialized; on leaving, the server is shut down and has to end well."""
    e = Editor()
    await e.client.start_io(sys.executable, "-m", "kvmove", "lsp", *options, cwd=ROOT)
    await start(e, capabilities)
    yield e
    await end(e)


async def start(e: Editor, capabilities: types.ClientCapabilities | None = None) -> types.InitializeResult:
    asked = types.InitializeParams(capabilities or types.ClientCapabilities())
    result = await e.client.initialize_async(asked)
    e.client.initialized(types.InitializedParams())
    return result


async def end(e: Editor) -> None:
    await e.client.shutdown_async(None)
    e.client.exit(None)
    await e.client.stop()
    server: Any = e.client._server
    assert server is None or server.returncode == 0


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.Runner]:
    """The event loop in which the clients of this module live."""
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def shared(loop: asyncio.Runner) -> Iterator[Editor]:
    """An editor without options whose server is started once; shut down at the end, the server has to end well."""
    opened = editor()
    e = loop.run(guarded(opened.__aenter__()))
    yield e
    loop.run(guarded(opened.__aexit__(None, None, None)))


Session = Callable[[Callable[[Editor], Awaitable[None]]], None]


@pytest.fixture
def session(loop: asyncio.Runner, shared: Editor) -> Session:
    """Runs a test's session in the shared editor, with a policy of its own."""

    def run(test: Callable[[Editor], Awaitable[None]]) -> None:
        shared.begin()
        loop.run(guarded(test(shared)))

    return run


async def guarded(work: Awaitable[T]) -> T:
    async with asyncio.timeout(PATIENCE_S):
        return await work


def apply(text: str, edits: list[types.TextEdit]) -> str:
    """`text` after `edits`, with columns in UTF-16 code units as the protocol has them."""
    lines = text.split("\n")
    starts = [sum(len(line) + 1 for line in lines[:i]) for i in range(len(lines) + 1)]

    def offset(p: types.Position) -> int:
        if p.line >= len(lines):
            return len(text)
        units = lines[p.line].encode("utf-16-le")[: 2 * p.character]
        return starts[p.line] + len(units.decode("utf-16-le"))

    for edit in sorted(edits, key=lambda e: offset(e.range.start), reverse=True):
        text = text[: offset(edit.range.start)] + edit.new_text + text[offset(edit.range.end) :]
    return text


def place(text: str, word: str, nth: int = 0) -> tuple[int, int]:
    """The line and UTF-16 column of `word` in `text`."""
    at = -1
    for _ in range(nth + 1):
        at = text.index(word, at + 1)
    before = text[:at].rpartition("\n")[2]
    return text.count("\n", 0, at), len(before.encode("utf-16-le")) // 2


def test_a_session_from_a_mistake_to_a_formatted_policy(session: Session) -> None:
    """A policy is opened with a mistake, repaired by its quick fix, read, completed, formatted and closed."""

    async def run(e: Editor) -> None:
        (mistake,) = await e.open(BROKEN)
        line, column = place(BROKEN, "4096")
        assert mistake.range == types.Range(types.Position(line, column), types.Position(line, column + 4))
        assert mistake.severity is types.DiagnosticSeverity.Error
        assert mistake.source == "kvmove"
        assert mistake.code == "KV202"
        assert mistake.code_description is not None
        assert mistake.code_description.href == (ROOT / "docs" / "errors" / "KV202.md").as_uri()
        assert mistake.message.startswith("`small` is in tokens, but `4096` is a number without a unit")
        assert "help: give it its unit, such as `4096tok`" in mistake.message

        context = types.CodeActionContext([mistake])
        actions = await e.client.text_document_code_action_async(
            types.CodeActionParams(e.document, mistake.range, context)
        )
        assert actions is not None
        (action,) = actions
        assert isinstance(action, types.CodeAction)
        assert action.title == "Replace `4096` by `4096tok`"
        assert action.kind == types.CodeActionKind.QuickFix
        assert action.edit is not None
        assert action.edit.changes is not None
        fixed = apply(BROKEN, list(action.edit.changes[e.uri]))
        assert fixed == BROKEN.replace("4096 ", "4096tok ")
        assert await e.change(fixed) == []

        said = await e.hover(*place(fixed, "load_time"))
        assert "`load_time`: time, of the hit" in said
        assert "estimated time of the copy" in said
        assert "from `0ns` to" in said
        assert "may be unknown" in said

        offered = await e.complete(fixed + "recompute if ")
        assert {"cost", "small", "waiting", "known", "not"} <= offered.keys()
        assert not {"load_bytes", "sync", "let", "and"} & offered.keys()

        await e.change(fixed)
        edits = await e.format()
        formatted = apply(fixed, edits)
        assert formatted != fixed
        assert await e.change(formatted) == []
        assert await e.format() == []

        e.client.text_document_did_close(types.DidCloseTextDocumentParams(e.document))
        assert await e.diagnostics() == []

    session(run)


def test_each_mistake_has_its_related_places_and_warnings_are_warnings(session: Session) -> None:
    """A note with a place is related information; a warning is shown as one."""
    text = "let a = bytes\nlet b = tokens\nsync if bytes <= 3B\nlet a = 3B\n"

    async def run(e: Editor) -> None:
        (twice,) = await e.open(text)
        (related,) = twice.related_information or []
        assert related.location.uri == e.uri
        assert related.location.range.start == types.Position(0, 4)
        assert "first" in related.message
        unused = await e.change("let b = tokens\nsync if bytes <= 3B\n")
        assert [d.severity for d in unused] == [types.DiagnosticSeverity.Warning]

    session(run)


def test_saving_checks_at_once_and_typing_is_checked_once_it_pauses(session: Session) -> None:
    """Every change of a burst is answered by one message, about the last of them."""

    async def run(e: Editor) -> None:
        assert await e.open("async\n") == []
        for text in ("sync i\n", "sync if b\n", "sync if byts > 3B\n"):
            e.change_only(text)
        published = await e.arrived.get()
        assert published.version == e.version
        assert [d.message.split("\n")[0] for d in published.diagnostics] == ["unknown name `byts`"]
        e.change_only("async\n")
        e.client.text_document_did_save(types.DidSaveTextDocumentParams(e.document))
        assert await e.diagnostics() == []

    session(run)


def test_names_lead_to_their_definitions_and_can_be_changed(session: Session) -> None:
    """A param is found from its use, has references, and is renamed everywhere, though not to a word that is taken."""
    text = "# \U0001f680\nparam small: tokens = 1tok # \U0001f680 small\nlet s2 = small + 1tok\n"
    text += "@fits sync if tokens <= s2 - small\n"

    async def run(e: Editor) -> None:
        assert await e.open(text) == []
        use = types.Position(*place(text, "small", 3))
        found = await e.client.text_document_definition_async(types.DefinitionParams(e.document, use))
        assert isinstance(found, types.Location)
        assert found.range.start == types.Position(1, 6)
        references = await e.client.text_document_references_async(
            types.ReferenceParams(types.ReferenceContext(include_declaration=False), e.document, use)
        )
        assert [r.range.start.line for r in references or []] == [2, 3]
        marks = await e.client.text_document_document_highlight_async(types.DocumentHighlightParams(e.document, use))
        assert len(marks or []) == 3
        renamed = apply(text, await e.rename(use.line, use.character, "tiny"))
        assert renamed == text.replace("small", "tiny").replace("tiny\nlet", "small\nlet")
        labelled = apply(text, await e.rename(*place(text, "fits"), "small_ones"))
        assert labelled == text.replace("@fits", "@small_ones")
        refused = {
            "s2": "in this policy already", "bytes": "word of the language", "if": "word of the language",
            "1x": "no name",
        }  # fmt: skip
        for new, why in refused.items():
            with pytest.raises(JsonRpcException, match=why):
                await e.rename(use.line, use.character, new)
        for word in ("tokens", "sync", "1tok"):
            with pytest.raises(JsonRpcException, match=r"variable of the language|names to change"):
                await e.client.text_document_prepare_rename_async(
                    types.PrepareRenameParams(e.document, types.Position(*place(text, word + " ")))
                )

    session(run)


def test_the_outline_has_every_statement(session: Session) -> None:
    """Params, lets, rules with labels and without, and asserts are symbols, in order."""
    text = "param n: number = 3\nlet x = running + n\n@few sync if x < 9\nasync\n"
    text += "assert sync implies load_bytes <= budget\n"

    async def run(e: Editor) -> None:
        await e.open(text)
        found = await e.client.text_document_document_symbol_async(types.DocumentSymbolParams(e.document))
        assert [s.name for s in found or []] == ["n", "x", "@few", "rule 2: async", "assert"]
        assert [s.selection_range.start for s in found or [] if isinstance(s, types.DocumentSymbol)] == [
            types.Position(0, 6), types.Position(1, 4), types.Position(2, 0), types.Position(3, 0),
            types.Position(4, 0),
        ]  # fmt: skip

    session(run)


def test_a_text_that_does_not_parse_is_not_formatted(session: Session) -> None:
    """Formatting a broken, a huge or a binary text changes nothing and is no error; each has a diagnostic."""

    async def run(e: Editor) -> None:
        await e.open("async\n")
        for text in ("sync   if (bytes\n", "# " + "x" * (70 << 10), "sync\0if"):
            assert len(await e.change(text)) == 1
            assert await e.format() == []
            assert await e.hover(0, 0) is not None

    session(run)


@pytest.mark.parametrize(
    ("encoding", "column", "options"), [("utf-8", 8, ["--stdio", "--strict"]), ("utf-32", 5, ["--stdio"])]
)
def test_columns_and_strictness_are_as_agreed_on(
    loop: asyncio.Runner, encoding: str, column: int, options: list[str]
) -> None:
    """Behind an emoji, a column depends on the encoding, and the one that the client prefers is used.

    With --strict, the estimate that nobody asked about is a warning.
    """
    text = 'policy "\U0001f680" sync if byts > 3B\n'
    general = types.GeneralClientCapabilities(position_encodings=[types.PositionEncodingKind(encoding)])

    async def run() -> None:
        async with editor(*options, capabilities=types.ClientCapabilities(general=general)) as e:
            (mistake,) = await e.open(text)
            assert mistake.range.start.character == len('policy "" sync if ') + column - 4
            assert "unknown" not in await e.hover(0, mistake.range.start.character)
            said = [d.message for d in await e.change("sync if load_time < 3ms\nasync\n")]
            assert ["may be unknown" in m for m in said] == [True] * ("--strict" in options)

    loop.run(guarded(run()))


def test_a_client_that_leaves_ends_the_server(loop: asyncio.Runner) -> None:
    """When its input ends, the server ends too, with a status that says that nobody asked it to."""

    async def run() -> None:
        server = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "kvmove", "lsp", cwd=ROOT,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        output, errors = await server.communicate(b"")
        assert (server.returncode, output) == (1, b"")
        assert b"Traceback" not in errors, errors.decode()

    loop.run(guarded(run()))
