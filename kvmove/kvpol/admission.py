"""What a version of a policy's file has to be before it takes the place of a policy that works."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from kvmove.errors import PolicyError, Refused
from kvmove.kvpol.following import Version, has_open_end
from kvmove.kvpol.policy import Policy
from kvmove.kvpol.source import printable

if TYPE_CHECKING:
    from kvmove.kvpol.params import Override


@dataclass(frozen=True, slots=True)
class Demands:
    """What is asked of every version.

    Attributes:
        params: an operator's values.
        strict: no finding at all, not only no error.
        prove: every rule can decide and every `assert` holds, proved within `timeout_s` seconds a question.

    Raises:
        Refused: `prove` without z3.
    """

    params: Mapping[str, Override]
    strict: bool
    prove: bool
    timeout_s: float

    def __post_init__(self) -> None:
        if self.prove and find_spec("z3") is None:
            raise Refused("prove=True needs z3: pip install 'kvmove[prove]'; or leave it out")
        if not 0 < self.timeout_s <= 3600:
            raise Refused(f"prove_timeout_s is {self.timeout_s!r}; seconds in (0, 3600] are needed")

    def policy_of(self, path: Path, version: Version, before: bytes | None) -> Policy:
        """The policy of a version that may be used after `before`; None: it is the first.

        Raises:
            PolicyError: it may not; the message says why and what to do.
        """
        from kvmove.kvpol.analyse import analyse
        from kvmove.kvpol.limits import decode
        from kvmove.kvpol.render import render_all

        where = printable(str(path))
        if version.data is None:
            raise PolicyError(f"{where}: {version.problem or 'changed while it was read'}")
        source = decode(version.data, str(path))
        policy = Policy(analyse(source, self.params), self.params, path.stem or "policy")
        if not policy.program.rules:
            # Such a text is a policy elsewhere. Here it is more likely a file that was emptied and not yet written.
            raise PolicyError(
                f"{where}: there is no rule in it, as in a file that was emptied; "
                "to load every hit in the background, write `async`"
            )
        if before is not None and has_open_end(version.data, before):
            raise PolicyError(
                f"{where}: its last line has no end, as in a file that was cut while it was written; "
                "end it with a line feed (`kvmove fmt` does)"
            )
        if self.strict:
            findings = analyse(source, self.params, strict=True).findings
            if findings:
                raise PolicyError(render_all(findings, source), findings)
        if self.prove:
            self._require_proof(policy)
        return policy

    def _require_proof(self, policy: Policy) -> None:
        from kvmove.kvpol.proof import Status, prove
        from kvmove.kvpol.render import render_all

        report = prove(policy, timeout_s=self.timeout_s)
        if report.status is Status.PROVED:
            return
        # Notes on a policy that is proved are no reason to refuse it, and would hide the reason here.
        from kvmove.kvpol import codes

        kept = [f for f in report.findings if f.is_error or f.code == codes.UNDECIDED.name]
        raise PolicyError(render_all(kept, policy.analysis.source), kept)
