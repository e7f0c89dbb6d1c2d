"""Which vLLM this version of kvmove works with. Its internal interfaces change with every minor version."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, version

from kvmove.errors import Refused

SUPPORTED_VERSIONS = "0.33.x"
# A release, perhaps rebuilt (0.33.0.post1) or built locally (0.33.0+cpu). A pre-release's internals may differ.
_SUPPORTED = re.compile(r"0\.33\.\d+(\.post\d+)?(\+[a-z0-9.]+)?", re.IGNORECASE)


def require_supported_version(installed: str | None) -> None:
    """Refuse every vLLM but those whose internals this version of kvmove was written for.

    Args:
        installed: the version of the installed vLLM, such as `0.33.0+cpu`; None where there is none.

    Raises:
        Refused: it is another version, or there is none.
    """
    if installed is None:
        raise Refused(
            f"vLLM is not installed; this version of kvmove works with vLLM {SUPPORTED_VERSIONS}: "
            "pip install vllm==0.33.0"
        )
    if not _SUPPORTED.fullmatch(installed):
        raise Refused(
            f"vLLM {installed} is installed; this version of kvmove works with vLLM {SUPPORTED_VERSIONS} alone, "
            "because it builds on vLLM's internals: pip install vllm==0.33.0, or take another version of kvmove, "
            "or vLLM's own OffloadingConnector"
        )


def installed_version() -> str | None:
    """The version of the installed vLLM, or None."""
    try:
        return version("vllm")
    except PackageNotFoundError:
        return None
