"""One open policy: its text, what the checker says of it, and the names that it defines.

Everything comes from the passes that `kvmove check` runs. Names are found in the tokens, so that they are known in a
file that does not parse, which a file is most of the time while somebody writes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from kvmove.errors import PolicyError
from kvmove.kvpol import tree
from kvmove.kvpol.analyse import analyse
from kvmove.kvpol.definitions import Definitions
from kvmove.kvpol.expressions import ExpressionChecker
from kvmove.kvpol.findings import Finding, Findings, Severity
from kvmove.kvpol.lexer import Token, tokenize
from kvmove.kvpol.scope import FUNCTIONS, Meaning, Scope
from kvmove.kvpol.source import Source, Span


@dataclass(frozen=True, slots=True)
class Defined:
    """A param or a let. `statement` and `meaning` are None where it has a mistake."""

    kind: str  # `param` or `let`
    name: str
    span: Span  # of the name
    statement: tree.Param | tree.Let | None
    meaning: Meaning


class Document:
    """What there is to say about one version of a policy's text. Every part is found when it is first asked for."""

    def __init__(self, source: Source, *, strict: bool = False) -> None:
        # A byte order mark that the editor left in is white space, as it is to `kvmove check`; places stay.
        text = source.text
        self.source = Source(source.name, " " + text[1:]) if text.startswith("\ufeff") else source
        self._strict = strict

    @property
    def findings(self) -> Sequence[Finding]:
        """What is wrong with the text, in source order."""
        return self._analysed[0]

    @property
    def file(self) -> tree.File:
        """The tree, without the statements that do not parse."""
        return self._analysed[1] or tree.File(None, ())

    @cached_property
    def _analysed(self) -> tuple[Sequence[Finding], tree.File | None]:
        try:
            analysis = analyse(self.source, strict=self._strict)
        except PolicyError as e:  # no text, or too large: there is a message, and perhaps no finding
            unreadable = Finding(Severity.ERROR, str(e).removeprefix(f"{self.source.name}: "), Span(0, 1))
            return e.findings or (unreadable,), None
        return analysis.findings, analysis.file

    @cached_property
    def tokens(self) -> Sequence[Token]:
        """The tokens, or none when the text is too large or no text."""
        return () if self._analysed[1] is None else tokenize(self.source, Findings())

    def index_at(self, offset: int) -> int | None:
        """Which token the cursor touches: the one that it stands in or before, else the one that ends at it."""
        touching = [i for i, t in enumerate(self.tokens) if t.span.start <= offset <= t.span.end]
        return touching[-1] if touching else None

    def is_name(self, index: int) -> bool:
        """Whether token `index` is the name of a variable, a param or a let: no type and no function."""
        token = self.tokens[index]
        if token.kind != "NAME" or (index and self.tokens[index - 1].kind == "COLON"):
            return False
        called = index + 1 < len(self.tokens) and self.tokens[index + 1].kind == "LPAR"
        return not (called and token.text in FUNCTIONS)

    @cached_property
    def defined(self) -> dict[str, Defined]:
        """The params and lets by name, in order; where two share a name, the first."""
        meanings = self._meanings()
        statements = {s.name.span.start: s for s in self.file.statements if isinstance(s, tree.Param | tree.Let)}
        found: dict[str, Defined] = {}
        for before, token in zip(self.tokens, self.tokens[1:], strict=False):
            if before.kind in ("PARAM", "LET") and token.kind == "NAME":
                statement = statements.get(token.span.start)
                meaning = meanings.get(token.text) if statement else None
                defined = Defined(before.kind.lower(), token.text, token.span, statement, meaning)
                found.setdefault(token.text, defined)
        return found

    def _meanings(self) -> dict[str, Meaning]:
        """What the checker makes of each param and let."""
        scope = Scope(self.file.damaged, {})
        definitions = Definitions(ExpressionChecker(self.source, scope, Findings()), {})
        for statement in self.file.statements:
            if isinstance(statement, tree.Param):
                definitions.param(statement)
            elif isinstance(statement, tree.Let):
                definitions.let(statement)
        return {name: definition.meaning for name, definition in scope.defined.items()}
