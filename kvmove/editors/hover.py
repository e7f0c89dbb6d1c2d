"""What stands under the cursor, in Markdown: unit, range and meaning of a variable, a definition, a word."""

from __future__ import annotations

from fractions import Fraction

from kvmove.editors.document import Defined, Document
from kvmove.kvpol import tree
from kvmove.kvpol.scope import FUNCTIONS, Amount, Meaning, type_name
from kvmove.kvpol.source import Span
from kvmove.kvpol.units import CANONICAL, NUMBER, OF_SCHEMA, Dimension, QuantityError, parse_quantity, show
from kvmove.kvpol.words import FUNCTION_WORDS, TYPE_WORDS, WORDS
from kvmove.schema import BY_NAME, Scope, Variable

_READ_FROM = {
    Scope.HIT: "of the hit",
    Scope.STEP: "of the step",
    Scope.OUTCOME: "of the decision, read in an `assert` alone",
}


def hover(document: Document, offset: int) -> tuple[str, Span] | None:
    """What there is to say about the token at `offset`, and its place; None where that is nothing."""
    index = document.index_at(offset)
    if index is None:
        return None
    said = _about(document, index)
    return None if said is None else (said, document.tokens[index].span)


def _about(document: Document, index: int) -> str | None:
    token = document.tokens[index]
    text = None
    if document.is_name(index):
        text = about_name(document, token.text)
    elif token.kind == "NAME":
        text = about_function(token.text) if token.text in FUNCTIONS else about_type(token.text)
    elif token.kind == "QUANTITY":
        text = _about_quantity(token.text)
    elif token.kind == "LABEL":
        text = _about_label(document, token.text[1:])
    elif token.text in WORDS:
        text = about_word(token.text)
    return text


def about_name(document: Document, name: str) -> str | None:
    """A variable, or else a param or a let."""
    defined = document.defined.get(name)
    parts = [_about_variable(BY_NAME[name])] if name in BY_NAME else []
    if defined is not None:
        parts.append(_about_definition(document, defined))
    return "\n\n".join(parts) or None


def about_word(word: str) -> str:
    """A keyword: how it is written and what it does."""
    return f"{_code(WORDS[word].form)}\n`{word}` {WORDS[word].role.value}: {WORDS[word].doc}"


def about_function(name: str) -> str:
    """A function: how it is called and what it gives."""
    return f"{_code(FUNCTION_WORDS[name].form)}\n{FUNCTION_WORDS[name].doc}"


def about_type(name: str) -> str | None:
    """The type of a param."""
    return f"`{name}`: {TYPE_WORDS[name]}" if name in TYPE_WORDS else None


def unit_of(meaning: Meaning) -> str:
    """The type of a definition in words; empty where it has a mistake."""
    if meaning is None:
        return ""
    kind = type_name(meaning)
    return f"in {kind}" if isinstance(meaning, Amount) and meaning.dimension != NUMBER else kind


def _about_variable(variable: Variable) -> str:
    dimension = OF_SCHEMA[variable.unit]
    low, high = (show(Fraction(bound), dimension) for bound in (variable.low, variable.high))
    lines = [
        f"`{variable.name}`: {variable.unit.value}, {_READ_FROM[variable.scope]}",
        variable.doc,
        f"from `{low}` to `{high}`",
    ]
    if variable.optional:
        lines.append("may be unknown: a comparison that reads it is false then; `known` asks")
    return "\n\n".join(lines)


def _about_definition(document: Document, defined: Defined) -> str:
    statement = defined.statement
    if statement is None:
        return f"{defined.kind} `{defined.name}`, which has a mistake"
    lines = [_code(document.source.slice(statement.span)).rstrip()]
    unit = unit_of(defined.meaning)
    if isinstance(statement, tree.Param):
        lines.append(f"{unit or 'a param'}; operators can override it")
    elif unit:
        lines.append(unit)
    if isinstance(defined.meaning, Amount) and defined.meaning.needs:
        names = ", ".join(f"`{v.name}`" for v in sorted(defined.meaning.needs, key=lambda v: v.name))
        lines.append(f"unknown when one of these is: {names}")
    lines += _comment_above(document, statement.span.start)
    return "\n\n".join(lines)


def _comment_above(document: Document, start: int) -> list[str]:
    """The comment that ends on the line above `start`, as a paragraph."""
    source, found = document.source, []
    for number in range(source.line_of(start) - 1, 0, -1):
        line = source.line(number).strip()
        if not line.startswith("#"):
            break
        found.append(line.lstrip("#").strip())
    return [" ".join(reversed(found))] if found else []


def _about_quantity(text: str) -> str | None:
    try:
        amount, dimension = parse_quantity(text)
    except QuantityError:
        return None
    return f"`{text}` is {_amount(amount, dimension)}"


def _amount(amount: Fraction, dimension: Dimension) -> str:
    if dimension == NUMBER:
        return f"the number {amount}"
    shown = f"{amount.numerator:,}" if amount.denominator == 1 else f"{amount}"
    return f"{shown}{CANONICAL[dimension]}"


def _about_label(document: Document, label: str) -> str | None:
    for number, rule in enumerate(document.file.rules, 1):
        if rule.label is not None and rule.label.text == label:
            return f"`@{label}` is rule {number}, as logs and counters call it"
    return None


def _code(text: str) -> str:
    return f"```kvpol\n{text}\n```\n"
