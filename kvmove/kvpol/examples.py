"""Examples beside a policy: what it has to decide about hits that somebody cares about.

`budgeted.kvpol` has its examples in `budgeted.tests.toml`. They are read and checked here, without the policy, so
that a wrong unit is found also where the policy does not read the value; `examples_run` runs them.
"""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

from kvmove.errors import ExamplesError
from kvmove.kvpol.examples_places import places
from kvmove.kvpol.examples_reader import Reader
from kvmove.kvpol.examples_records import Example, ExpectedHit
from kvmove.kvpol.source import printable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvmove.kvpol.examples_run import Report
    from kvmove.kvpol.policy import Policy

__all__ = [
    "SUFFIX",
    "Example",
    "ExpectedHit",
    "examples_path",
    "load_examples",
    "parse_examples",
    "policy_path",
    "run_examples",
]

SUFFIX = ".tests.toml"
MAX_BYTES = 1 << 20  # of a file of examples


def examples_path(policy: str | os.PathLike[str]) -> Path:
    """Where the examples of a policy file are: `dir/budgeted.kvpol` has them in `dir/budgeted.tests.toml`."""
    path = Path(policy)
    return path.with_name(path.name.removesuffix(".kvpol") + SUFFIX)


def load_examples(path: str | os.PathLike[str]) -> tuple[Example, ...]:
    """The examples in a file, in order.

    Raises:
        ExamplesError: the file cannot be read, is no TOML, or has a key or a value that means nothing. All such
            problems are reported at once, each with its line.
    """
    name = printable(os.fspath(path))
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as e:
        reason = (e.strerror or str(e)).lower() if isinstance(e, OSError) else "this is no path"
        raise ExamplesError(name, [(1, f"cannot be read: {reason}")]) from None
    if len(data) > MAX_BYTES:
        raise ExamplesError(name, [(1, f"larger than {MAX_BYTES >> 20} MiB; is this the right file?")])
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as e:
        line = data.count(b"\n", 0, e.start) + 1
        raise ExamplesError(name, [(line, f"not UTF-8 text (byte 0x{data[e.start]:02x})")]) from None
    return parse_examples(text, name)


def parse_examples(text: str, file: str = "<examples>") -> tuple[Example, ...]:
    """The examples that a TOML `text` holds; `file` stands in messages.

    Raises:
        ExamplesError: as `load_examples`.
    """
    text = text.removeprefix("\ufeff").replace("\r\n", "\n")
    try:
        data = tomllib.loads(text)
        reader = Reader(file, places(text))
    except tomllib.TOMLDecodeError as e:
        raise ExamplesError(file, [_toml_problem(e, text)]) from None
    except RecursionError:
        raise ExamplesError(file, [(1, "nests too deep for a file of examples")]) from None
    found = tuple(reader.examples(data))
    if reader.problems:
        raise ExamplesError(file, sorted(set(reader.problems)))
    return found


def run_examples(policy: Policy, examples: Iterable[Example]) -> Report:
    """Run `examples` under `policy`: which held, why the others did not, and what of the policy they exercised.

    An example with params of its own runs under the policy with these. Nothing here raises because of an example:
    one whose params or rule the policy does not have has failed.
    """
    from kvmove.kvpol.examples_run import run

    return run(policy, examples)


def _toml_problem(error: tomllib.TOMLDecodeError, text: str) -> tuple[int, str]:
    message = str(error)
    head, _, place = message.rpartition(" (at ")
    digits = "".join(c for c in place.partition(",")[0] if c.isdigit())
    line = int(digits) if digits else text.count("\n") + 1
    reason = head or message
    return line, f"not TOML: {printable(reason[:1].lower() + reason[1:])}"


def policy_path(examples: str | os.PathLike[str]) -> Path:
    """The policy file that a file of examples lies beside."""
    path = Path(examples)
    return path.with_name(path.name.removesuffix(SUFFIX) + ".kvpol")
