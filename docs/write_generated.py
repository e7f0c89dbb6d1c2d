"""Write what is generated: the reference in `docs/language.md`, and the TextMate grammar of `editors/vscode`.

    python docs/write_generated.py      (or `make docs`)

A part of the reference stands between `<!-- generated: NAME -->` and `<!-- end of NAME -->`, and comes from the
grammar, the schema and the tables that the checker uses. A test fails where a file is behind.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path

from kvmove import schema
from kvmove.editors.textmate import textmate_grammar
from kvmove.kvpol.checker import MAX_RULES
from kvmove.kvpol.grammar import grammar
from kvmove.kvpol.lexer import MAX_TOKENS
from kvmove.kvpol.limits import MAX_BYTES, MAX_CHAIN, MAX_DIGITS, MAX_NESTING
from kvmove.kvpol.whole import MAX_DEPTH
from kvmove.kvpol.words import FUNCTION_WORDS, PRECEDENCE, TYPE_WORDS, UNIT_WORDS, WORDS

ROOT = Path(__file__).resolve().parent.parent
LANGUAGE = ROOT / "docs" / "language.md"
GRAMMAR = ROOT / "grammar" / "kvpol.lark"
TEXTMATE = ROOT / "editors" / "vscode" / "syntaxes" / "kvpol.tmLanguage.json"


def syntax() -> str:
    """The grammar's rules in EBNF: words and signs in quotes, what has no literal text in capitals."""
    spelled = {t.name: f'"{t.pattern.value}"' for t in grammar().terminals if t.pattern.type == "str"}
    lines: list[str] = []
    for line in GRAMMAR.read_text(encoding="utf-8").splitlines():
        text = re.sub(r"\s*//.*", "", line)
        if re.match(r"_?[a-z_]+:", text):
            name, _, body = text.partition(":")
            lines.append(f"{name} ={_ebnf(body, spelled)}")
        elif lines and text.startswith("    |"):
            lines.append(text[:5] + _ebnf(text[5:], spelled))
        elif re.match(r"[A-Z]+: /", text) and text.split(":")[0] not in ("COMMENT", "WS"):
            name, _, pattern = text.partition(": ")
            lines.append(f"{name} = {pattern}")
    return "\n".join(["```ebnf", *lines, "```"])


def _ebnf(body: str, spelled: dict[str, str]) -> str:
    parts = re.split(r'("[^"]*")', body)  # literals stay as they are
    parts[::2] = [re.sub(r"[A-Z]+", lambda m: spelled.get(m[0], m[0]), part) for part in parts[::2]]
    return "".join(parts)


def words() -> str:
    """Every reserved word."""
    rows = ([f"`{w}`", word.role.value, f"`{word.form}`", word.doc] for w, word in WORDS.items())
    return _table(["word", "role", "written", "means"], rows)


def precedence() -> str:
    """The operators, loosest first."""
    rows = ([" ".join(f"`{o}`" for o in operators), grouping] for operators, grouping in PRECEDENCE)
    return _table(["operators, loosest first", "take"], rows)


def functions() -> str:
    """Every function."""
    return _table(["function", "gives"], ([f"`{f.form}`", f.doc] for f in FUNCTION_WORDS.values()))


def types() -> str:
    """Every type that a param can have."""
    return _table(["type", "is"], ([f"`{name}`", doc] for name, doc in TYPE_WORDS.items()))


def units() -> str:
    """Every unit."""
    return _table(["unit", "is"], ([f"`{unit}`", doc] for unit, doc in UNIT_WORDS.items()))


def variables() -> str:
    """Every variable of the schema."""
    heads = ["variable", "unit", "from", "to", "of", "may be unknown", "is"]
    return _table(heads, (_variable(v) for v in schema.VARIABLES))


def _variable(v: schema.Variable) -> list[str]:
    unknown = "yes" if v.optional else ""
    return [f"`{v.name}`", v.unit.value, str(v.low), str(v.high), v.scope.value, unknown, v.doc]


def invariants() -> str:
    """What holds for every hit and every step."""
    lines = [f"- of every hit: `{_relation(i)}`" for i in schema.HIT_INVARIANTS]
    lines += [f"- of every step: `{_relation(i)}`" for i in schema.STEP_INVARIANTS]
    return "\n".join(lines)


def _relation(invariant: schema.Invariant) -> str:
    def side(sign: int) -> str:
        terms = ((abs(n), name) for n, name in invariant.terms if n * sign > 0)
        return " + ".join(name if n == 1 else f"{n} * {name}" for n, name in terms)

    return f"{side(1)} {'==' if invariant.equal else '<='} {side(-1)}"


def limits() -> str:
    """What a policy may be at most."""
    rows = (
        (f"{MAX_BYTES >> 10} KiB", "UTF-8 text of a file; a byte order mark is dropped"),
        (f"{MAX_TOKENS:,}", "tokens"),
        (f"{MAX_RULES}", "rules"),
        (f"{MAX_DIGITS}", "digits of a number"),
        (f"{MAX_NESTING}", "parentheses, `not` and unary `-` around each other"),
        (f"{MAX_CHAIN}", "operands side by side in an expression"),
        (f"{MAX_DEPTH}", "operations around each other, those of the lets it builds on included"),
    )
    return _table(["at most", "of"], rows)


def _table(heads: list[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    bare = ["|".join(["", *(f" {cell} " if cell != "---" else cell for cell in line), ""]) for line in lines]
    return "\n".join(bare)


PARTS = {
    part.__name__: part for part in (syntax, words, precedence, functions, types, units, variables, invariants, limits)
}
_PART = re.compile(r"(<!-- generated: (\w+) -->\n).*?(\n<!-- end of \2 -->)", re.DOTALL)


def in_step(text: str) -> str:
    """`text` of `docs/language.md` with every generated part as it has to be."""
    return _PART.sub(lambda m: f"{m[1]}\n{PARTS[m[2]]()}\n{m[3]}", text)


def parts_in(text: str) -> list[str]:
    """The names of the generated parts of `text`, in order."""
    return [name for _, name, _ in _PART.findall(text)]


def textmate() -> str:
    """The file of the TextMate grammar."""
    return json.dumps(textmate_grammar(), indent=2, ensure_ascii=False) + "\n"


def main() -> None:
    """Write every generated file."""
    LANGUAGE.write_text(in_step(LANGUAGE.read_text(encoding="utf-8")), encoding="utf-8")
    TEXTMATE.write_text(textmate(), encoding="utf-8")


if __name__ == "__main__":
    main()
