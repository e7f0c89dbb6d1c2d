"""How much was compared with vLLM's own connector in this run, for the line at its end."""

from __future__ import annotations

from collections import Counter

COUNTS: Counter[str] = Counter()


def lines() -> list[str]:
    """What to print at the end of a run; nothing where nothing was compared."""
    if not COUNTS["steps"]:
        return []
    answers = ", ".join(f"{COUNTS[kind]:,} {kind}" for kind in ("sync", "async", "ask again", "no hit"))
    return [
        f"compared with vLLM's OffloadingConnector: {COUNTS['steps']:,} steps, {COUNTS['decisions']:,} decisions "
        f"({answers}), {COUNTS['unexplained']} unexplained differences, {COUNTS['exact_bytes']} explained "
        "(exact bytes where vLLM's estimate is too high)"
    ]
