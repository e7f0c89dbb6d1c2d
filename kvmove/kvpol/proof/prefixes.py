"""Where `at most` cuts a hit, for the solver.

A hit can be cut at some block or at none, and what its leading blocks weigh depends on its groups of layers. What
is certain of every hit: longer prefixes of whole blocks weigh no less and cover more tokens, every block has a token
at least, and the whole hit covers the most tokens (but may weigh less than a prefix, whose window lies elsewhere).
That is all that is assumed here, so that what is proved holds for every hit. For examples, `evenly_cut` adds that a
hit has so many blocks, all alike: a hit that can be written down.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations, pairwise

from kvmove.kvpol.proof.inputs import Inputs
from kvmove.kvpol.proof.session import Session, Term

MAX_ROUNDED = 16


@dataclass(frozen=True, slots=True)
class Prefix:
    """Leading blocks of a hit."""

    blocks: Term
    bytes: Term
    tokens: Term


Fits = Callable[[Prefix], Term]


@dataclass(frozen=True, slots=True)
class Cut:
    """What a rule takes, where `partial` holds: the longest prefix that can be cut off and that fits.

    Attributes:
        policy: number of the policy whose rule it is. Of one policy's rules only one decides, so that what one takes
            says nothing of what another would.
        facts: what holds of it.
    """

    prefix: Prefix
    partial: Term
    fits: Fits
    policy: int
    facts: tuple[Term, ...]


class Prefixes:
    """The prefixes of the hit of `inputs`.

    Attributes:
        cuts: what each limit that was asked about takes.
        read: numbers of the cuts that formulas speak of since this was last cleared. The others are left out of
            `facts`: there is always something that a limit takes, and thirty rules would ask the solver for all of it.
    """

    def __init__(self, inputs: Inputs, tag: str = "") -> None:
        self.inputs, self.session, self.tag = inputs, inputs.session, tag
        self.whole = Prefix(inputs.values["blocks"], inputs.values["bytes"], inputs.values["tokens"])
        self.can_cut = self.session.fact(f"can cut{tag}")
        self.first = self._fresh("first")
        self.cuts: list[Cut] = []
        self.read: set[int] = set()
        self.certain = self.session.implies(self.can_cut, self._inside(self.first))

    @property
    def any(self) -> bool:
        """Whether a limit was asked about."""
        return bool(self.cuts)

    @property
    def facts(self) -> list[Term]:
        """What holds of the cuts that were read."""
        cuts = [self.cuts[i] for i in sorted(self.read)]
        facts = [fact for cut in cuts for fact in cut.facts]
        for cut, other in combinations(cuts, 2):
            if cut.policy != other.policy:
                s, both = self.session, self.session.all_of([cut.partial, other.partial])
                pair = [self._apart(cut, other), self._apart(other, cut)]
                facts.append(s.implies(both, s.any_of([_same(cut.prefix, other.prefix, s), *pair])))
        return facts

    def longest(self, condition: Term, fits: Fits, policy: int) -> tuple[Term, int]:
        """Whether `condition` holds and a prefix fits, and the number of the cut: the longest that does, or all."""
        s = self.session
        self.inputs.read.update(("bytes", "tokens", "blocks"))
        some_fits = s.any_of([fits(self.whole), s.all_of([self.can_cut, fits(self.first)])])
        matches = s.all_of([condition, some_fits])
        partial = s.all_of([matches, s.opposite(fits(self.whole))])
        taken = self._fresh(f"cut{len(self.cuts)}")
        facts = (
            s.implies(partial, s.all_of([self._inside(taken), fits(taken)])),
            s.implies(partial, self._in_order(self.first, taken)),
            s.implies(s.opposite(partial), _same(taken, self.whole, s)),
        )
        self.cuts.append(Cut(taken, partial, fits, policy, facts))
        return matches, len(self.cuts) - 1

    def taken(self, cut: int) -> Prefix:
        """What a limit takes, which is noted as read."""
        self.read.add(cut)
        return self.cuts[cut].prefix

    def evenly_cut(self, blocks: int) -> list[Term]:
        """Facts of a hit of so many blocks, all alike, that can be cut after each: those of a `Hit` without sizes.

        A share of bytes or tokens is rounded up. Hits of more than MAX_ROUNDED blocks have no share to round, which
        keeps the formulas small.
        """
        s = self.session
        facts = [self.whole.blocks == s.number(blocks), self.can_cut == s.truth(blocks > 1)]
        if blocks <= MAX_ROUNDED:
            prefixes = [self._rounded(k, blocks, facts) for k in range(1, blocks)]
        else:
            prefixes = self._exact(blocks, facts)
        if prefixes:
            facts.append(_same(self.first, prefixes[0], s))
        for cut in (self.cuts[i] for i in sorted(self.read)):
            # The longest that fits: the next one does not. Of the last, the next is the whole hit, and that `partial`
            # rules out.
            longest = [
                s.all_of([_same(cut.prefix, prefix, s), s.opposite(cut.fits(longer))])
                for prefix, longer in pairwise(prefixes)
            ]
            longest += [_same(cut.prefix, prefix, s) for prefix in prefixes[-1:]]
            facts.append(s.implies(cut.partial, s.any_of(longest)))
        return facts

    def _exact(self, blocks: int, facts: list[Term]) -> list[Prefix]:
        """The prefixes of a hit whose blocks have the same bytes and the same tokens."""
        s = self.session
        num_bytes, tokens = (s.amount(f"{part} of each{self.tag}") for part in ("bytes", "tokens"))
        for part, whole in ((num_bytes, self.whole.bytes), (tokens, self.whole.tokens)):
            facts.append(whole == s.product(blocks, [part]))
        return [Prefix(s.number(k), s.product(k, [num_bytes]), s.product(k, [tokens])) for k in range(1, blocks)]

    def _rounded(self, k: int, blocks: int, facts: list[Term]) -> Prefix:
        """The first `k` blocks."""
        s = self.session
        result = Prefix(s.number(k), s.amount(f"bytes of {k}{self.tag}"), s.amount(f"tokens of {k}{self.tag}"))
        for part, whole in ((result.bytes, self.whole.bytes), (result.tokens, self.whole.tokens)):
            over = s.product(blocks, [part]) - s.product(k, [whole])
            facts += [over >= s.number(0), over < s.number(blocks)]
        return result

    def _fresh(self, name: str) -> Prefix:
        amount = self.session.amount
        return Prefix(*(amount(f"{name} {part}{self.tag}") for part in ("blocks", "bytes", "tokens")))

    def _inside(self, prefix: Prefix) -> Term:
        s, one = self.session, self.session.number(1)
        return s.all_of(
            [
                one <= prefix.blocks, prefix.blocks <= self.whole.blocks - one,
                one <= prefix.bytes, prefix.blocks <= prefix.tokens, prefix.tokens <= self.whole.tokens - one,
            ]
        )  # fmt: skip

    def _in_order(self, first: Prefix, later: Prefix) -> Term:
        return self.session.any_of([_same(first, later, self.session), self._longer(first, later)])

    def _longer(self, shorter: Prefix, longer: Prefix) -> Term:
        more = self.session.number(1)
        return self.session.all_of(
            [
                shorter.blocks + more <= longer.blocks,
                shorter.bytes <= longer.bytes,
                shorter.tokens + more <= longer.tokens,
            ]
        )

    def _apart(self, shorter: Cut, longer: Cut) -> Term:
        """The prefix of `longer` is longer, and does not fit the other's limit, which took the longest that does."""
        s = self.session
        return s.all_of([self._longer(shorter.prefix, longer.prefix), s.opposite(shorter.fits(longer.prefix))])


def _same(a: Prefix, b: Prefix, s: Session) -> Term:
    return s.all_of([a.blocks == b.blocks, a.bytes == b.bytes, a.tokens == b.tokens])
