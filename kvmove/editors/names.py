"""Where the names of a policy are defined and read, and renaming them: params, lets and labels."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from kvmove.editors.document import Document
from kvmove.kvpol.scope import FUNCTIONS
from kvmove.kvpol.source import Span, quoted
from kvmove.kvpol.words import WORDS
from kvmove.schema import BY_NAME

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class CannotRename(Exception):
    """The name stays as it is; the text says why, to the person who asked."""


@dataclass(frozen=True, slots=True)
class Occurrences:
    """A name of the file, where it is defined, and every place where it stands, in order."""

    name: str
    is_label: bool
    definition: Span | None
    places: Sequence[Span]


def occurrences_at(document: Document, offset: int) -> Occurrences | None:
    """The param, let, variable or label under the cursor."""
    index = document.index_at(offset)
    if index is None:
        return None
    token = document.tokens[index]
    if token.kind == "LABEL":
        same = [t.span for t in document.tokens if t.kind == "LABEL" and t.text == token.text]
        places = [Span(span.start + 1, span.end) for span in same]  # without the `@`
        return Occurrences(token.text[1:], True, places[0], places)
    if not document.is_name(index):
        return None
    defined = document.defined.get(token.text)
    places = [t.span for i, t in enumerate(document.tokens) if t.text == token.text and document.is_name(i)]
    return Occurrences(token.text, False, defined.span if defined else None, places)


def renamable_at(document: Document, offset: int) -> Occurrences:
    """The name under the cursor.

    Raises:
        CannotRename: it is no name of the file.
    """
    found = occurrences_at(document, offset)
    if found is None:
        raise CannotRename("only params, lets and labels have names to change")
    if not found.is_label and found.name in BY_NAME:
        raise CannotRename(f"{quoted(found.name)} is a variable of the language")
    if found.definition is None:
        raise CannotRename(f"{quoted(found.name)} is not defined in this policy")
    return found


def check_new_name(document: Document, found: Occurrences, new: str) -> None:
    """Refuse a name that would change what the policy means.

    Raises:
        CannotRename: `new` is no name, or taken.
    """
    if _NAME.fullmatch(new) is None:
        raise CannotRename(f"{quoted(new)} is no name: letters, digits and `_`, and no digit first")
    if found.is_label:
        taken = any(t.kind == "LABEL" and t.text == f"@{new}" for t in document.tokens)
        if taken and new != found.name:
            raise CannotRename(f"another rule has the label `@{new}`")
        return
    if new in WORDS or new in FUNCTIONS or new in BY_NAME:
        raise CannotRename(f"{quoted(new)} is a word of the language")
    # Also a name that is read and not defined: a mistake of the file would turn into another meaning.
    if new != found.name and any(t.kind == "NAME" and t.text == new for t in document.tokens):
        raise CannotRename(f"{quoted(new)} is in this policy already")
