"""What the sections of one run share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from kvmove.bench.ceiling import Ceiling
from kvmove.bench.checking import WrongBytes, check_path
from kvmove.bench.device import Device
from kvmove.bench.plan import Plan
from kvmove.bench.workbench import Workbench
from kvmove.errors import MoveFailed, Refused


@dataclass
class Session:
    """A device, what to measure on it, and what went wrong.

    Attributes:
        failures: a sentence for everything that could not be measured.
        tell: receives what is being measured, for a progress line.
    """

    device: Device
    plan: Plan
    failures: list[str] = field(default_factory=list)
    tell: Callable[[str], None] = lambda what: None
    _ceiling: Ceiling | None = None

    def ceiling(self, most_bytes: int) -> Ceiling:
        """The contiguous DMA to compare with, for copies of up to `most_bytes`. Pinning takes a while, so it stays."""
        if self._ceiling is None or self._ceiling.most_bytes < most_bytes:
            self._ceiling = None  # lets go of the smaller buffers first
            self._ceiling = Ceiling(self.device, most_bytes)
        return self._ceiling

    def right_paths(self, bench: Workbench, paths: Iterable[str], count: int, where: str) -> list[str]:
        """Those of the paths that copy `count` blocks right, byte by byte. What is said of the others is a failure."""
        right = []
        for path in paths:
            try:
                check_path(bench, path, count)
            except (WrongBytes, MoveFailed, Refused) as e:
                self.failures.append(f"{where}: the {path} path is not measured: {e}")
            else:
                right.append(path)
        return right
