"""What a machine was measured to give, as a file: for one GPU model, driver and kvmove version."""

from __future__ import annotations

import json
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from kvmove.costs.model import CostModel, Key, Terms
from kvmove.errors import RecordError, Refused
from kvmove.transfers import JobKind, Lane

FORMAT = "kvmove profile 1"


@dataclass(frozen=True, slots=True)
class Profile:
    """A cost model, and the machine it holds for.

    Attributes:
        gpu, driver, version: the GPU's name, its driver's version, and kvmove's.
        median_error: share by which predictions missed samples that they were not fitted to; None: too few samples.
        model: the predictions.
    """

    gpu: str
    driver: str
    version: str
    median_error: float | None
    model: CostModel

    def write(self, path: Path) -> None:
        """Write the profile to a file; its folder is made."""
        document = {
            "format": FORMAT,
            "gpu": self.gpu,
            "driver": self.driver,
            "version": self.version,
            "median_error": self.median_error,
            "terms": [
                {"kind": str(key.kind), "path": key.path, "lane": str(key.lane), "terms": list(astuple(terms))}
                for key, terms in self.model.terms.items()
            ],
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Profile:
        """The profile in a file.

        Raises:
            OSError: the file cannot be read.
            RecordError: it holds no profile.
        """
        try:
            document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            if document["format"] != FORMAT:
                raise RecordError(f"its format is {document['format']!r} and not {FORMAT!r}")
            terms = {
                Key(JobKind(t["kind"]), str(t["path"]), Lane(t["lane"])): Terms(*t["terms"]) for t in document["terms"]
            }
            gpu, driver, version = (document[name] for name in ("gpu", "driver", "version"))
            error = document["median_error"]
            texts = isinstance(gpu, str) and isinstance(driver, str) and isinstance(version, str)
            if not texts or not isinstance(error, float | int | None):
                raise RecordError("gpu, driver and version are text and median_error a number or null")
        except (ValueError, KeyError, TypeError, AttributeError) as e:
            reason = (str(e).splitlines() or [type(e).__name__])[0]
            raise RecordError(f"{path}: no profile ({reason}); `kvmove calibrate --output {path}` writes one") from None
        return cls(gpu, driver, version, error, CostModel(terms))

    def refuse_elsewhere(self, *, gpu: str, driver: str, version: str) -> None:
        """Refuse a machine or a version that the profile was not measured with: its times would mean nothing there.

        Raises:
            Refused: something differs; the message says what, and the remedy.
        """
        here = {"gpu": gpu, "driver": driver, "version": version}
        differs = [
            f"{name} {getattr(self, name)!r}, and here it is {now!r}"
            for name, now in here.items()
            if getattr(self, name) != now
        ]
        if differs:
            raise Refused(
                f"this profile was measured with {'; '.join(differs)}. Measure again with `kvmove calibrate`, or leave "
                "the profile out: the mover then chooses by its built-in table"
            )
