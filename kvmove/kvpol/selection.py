"""Which kinds of finding are asked for: `--select KV2 --ignore KV205`, with prefixes of codes."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from kvmove.kvpol.codes import CODES
from kvmove.kvpol.findings import Finding
from kvmove.kvpol.source import quoted
from kvmove.kvpol.suggest import closest

ALL = "ALL"  # stands for every code
_PREFIX = re.compile(r"KV[0-9]{0,3}")


class UnknownCode(ValueError):
    """A prefix that no code begins with. The text says which, and what was probably meant."""


@dataclass(frozen=True, slots=True)
class Selection:
    """The findings to report: those that `select` names, all where it is empty, without those that `ignore` names.

    Where both name a code, the longer prefix wins, and `ignore` where they are as long.
    """

    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()

    @classmethod
    def of(cls, select: Iterable[str] = (), ignore: Iterable[str] = ()) -> Selection:
        """The selection that options give; each text is one code or prefix, or several with commas between them.

        Raises:
            UnknownCode: a prefix is of no code.
        """
        return cls(_prefixes(select), _prefixes(ignore))

    def has(self, code: str) -> bool:
        """Whether findings with `code` are to be reported."""
        selected, ignored = _longest(self.select, code), _longest(self.ignore, code)
        if self.select and selected is None:
            return False
        return ignored is None or len(selected or "") > len(ignored)

    @property
    def wants_strict(self) -> bool:
        """Whether `select` names a kind of finding that is given on request only."""
        return bool(self.select) and any(code.strict and self.has(code.name) for code in CODES.values())

    def split(self, findings: Iterable[Finding], *, strict: bool) -> tuple[list[Finding], list[Finding]]:
        """The findings that are to be reported, and those that are left out though the policy has them.

        Without `strict`, what is given on request only counts where `select` names it, and is nowhere otherwise.
        """
        reported: list[Finding] = []
        left_out: list[Finding] = []
        for finding in findings:
            code = finding.code
            if code is None or (self.has(code) and (strict or self.select or not CODES[code].strict)):
                reported.append(finding)
            elif strict or not CODES[code].strict:
                left_out.append(finding)
        return reported, left_out


def _longest(prefixes: tuple[str, ...], code: str) -> str | None:
    """The longest of `prefixes` that `code` begins with, None where there is none; `ALL` is the empty prefix."""
    return max((p for p in prefixes if code.startswith(p)), key=len, default=None)


def _prefixes(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(_prefix(part) for text in texts for part in text.split(",")))


def _prefix(written: str) -> str:
    prefix = written.strip().upper()
    if prefix == ALL:
        return ""
    if _PREFIX.fullmatch(prefix) and any(name.startswith(prefix) for name in CODES):
        return prefix
    near = closest(prefix, CODES)
    help = f"did you mean {near}?" if near else "a code is like KV201, a prefix like KV2; `kvmove explain` lists them"
    raise UnknownCode(f"{quoted(written.strip())} begins no code; {help}")
