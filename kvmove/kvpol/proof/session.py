"""z3, imported when the first question is asked, and one context of it for one set of formulas.

A context of its own makes a proof independent of every other: an editor's server may prove in several threads.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Sequence
from functools import cache
from threading import current_thread, main_thread
from time import perf_counter
from typing import Any

from kvmove.errors import Refused

# z3 has no type information; its terms are Any here.
Term = Any


@cache
def load_z3() -> Any:
    """The module z3.

    Raises:
        Refused: it is not installed.
    """
    try:
        return importlib.import_module("z3")
    except ImportError:
        raise Refused("proofs need z3, which is not installed; install it with: pip install 'kvmove[prove]'") from None


class Session:
    """Makes terms. With `real`, variables range over all real numbers: what has no solution then has none in integers.

    Attributes:
        factors: all but one factor of each such product: with values for these, no product is left.
    """

    def __init__(self, *, real: bool = False) -> None:
        self.z3 = load_z3()
        self.context = self.z3.Context()
        self.real = real
        self.factors: list[Term] = []

    @property
    def nonlinear(self) -> bool:
        """Whether a product of two variables was made; such formulas can be beyond the solver."""
        return bool(self.factors)

    def amount(self, name: str) -> Term:
        """An unknown number."""
        return self.z3.Real(name, self.context) if self.real else self.z3.Int(name, self.context)

    def fact(self, name: str) -> Term:
        """An unknown truth value."""
        return self.z3.Bool(name, self.context)

    def number(self, value: int) -> Term:
        """A constant."""
        return self.z3.RealVal(value, self.context) if self.real else self.z3.IntVal(value, self.context)

    def truth(self, value: bool) -> Term:
        """True or false."""
        return self.z3.BoolVal(value, self.context)

    def all_of(self, items: Iterable[Term]) -> Term:
        """Every one of `items`."""
        terms = list(items)
        return self.z3.And(*terms) if len(terms) > 1 else terms[0] if terms else self.truth(True)

    def any_of(self, items: Iterable[Term]) -> Term:
        """One of `items`."""
        terms = list(items)
        return self.z3.Or(*terms) if len(terms) > 1 else terms[0] if terms else self.truth(False)

    def opposite(self, item: Term) -> Term:
        """The logical opposite."""
        return self.z3.Not(item)

    def implies(self, premise: Term, conclusion: Term) -> Term:
        """`premise` implies `conclusion`."""
        return self.z3.Implies(premise, conclusion)

    def choice(self, condition: Term, then: Term, otherwise: Term) -> Term:
        """One of two terms."""
        return self.z3.If(condition, then, otherwise)

    def product(self, constant: int, factors: Sequence[Term]) -> Term:
        """The product of `constant` and `factors`."""
        self.factors += factors[1:]
        result = self.number(constant)
        for factor in factors:
            result = result * factor
        return result


def check(solver: Term, seconds: float, *assumed: Term) -> bool | None:
    """Whether the solver's formulas can all hold; None where the time is not enough to tell.

    Raises:
        KeyboardInterrupt: as anywhere else; z3 by itself would take it for an answer that it does not know.
    """
    if seconds <= 0:
        return None
    solver.set("timeout", max(1, int(seconds * 1000)))
    # Elsewhere than in the main thread it is not z3's business: a server has its own way to stop.
    is_main = current_thread() is main_thread()
    solver.set("ctrl_c", is_main)
    start = perf_counter()
    result = str(solver.check(*assumed))
    if is_main and result == "unknown":
        # z3 says `canceled` of some interrupts, and of time that ran out: that takes all of it.
        reason, was_early = solver.reason_unknown(), perf_counter() - start < 0.8 * seconds
        if "keyboard" in reason or ("cancel" in reason and was_early):
            raise KeyboardInterrupt
    return {"sat": True, "unsat": False}.get(result)
