"""The page that explains a code: what it means and why, with an example that is wrong and one that is right."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from pathlib import Path

from kvmove.kvpol.codes import CODES, Code
from kvmove.kvpol.suggest import closest


def page(code: Code) -> str:
    """The page of `code`, in Markdown."""
    return files("kvmove.error_pages").joinpath(f"{code.name}.md").read_text(encoding="utf-8")


@cache
def local_page_uri(name: str | None) -> str | None:
    """Where the page of the code `name` is on this machine, the one that `kvmove explain` prints; None: it has none."""
    found = files("kvmove.error_pages").joinpath(f"{name}.md")
    # A package that is imported out of an archive has no files to open.
    return found.resolve().as_uri() if isinstance(found, Path) and found.is_file() else None


def find_code(asked: str) -> Code | None:
    """The code that `asked` names: `KV201`, `kv201`, `201` or `error[KV201]`."""
    word = asked.strip().upper().removesuffix("]").rpartition("[")[2]
    return CODES.get(word) or CODES.get(f"KV{word.zfill(3)}")


def nearest_code(asked: str) -> Code | None:
    """The code that was perhaps meant by one that does not exist."""
    name = closest(asked, CODES)
    return CODES[name] if name else None


def index() -> str:
    """A table of every code, in Markdown, with links to the pages."""
    rows = ["| code | means | severity |", "|---|---|---|"]
    for code in CODES.values():
        severity = f"{code.severity}, with `--strict`" if code.strict else str(code.severity)
        rows.append(f"| [{code.name}]({code.name}.md) | {code.title} | {severity} |")
    return "\n".join(rows)
