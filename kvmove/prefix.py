"""What the leading blocks of a hit weigh, exactly: what `at most` needs to know where to cut."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvmove.errors import RecordError


@dataclass(frozen=True, slots=True)
class GroupBytes:
    """What one group of layers adds to a hit, in bytes on one GPU.

    A group with full attention adds `block_bytes` for every block. One with a sliding window adds them for the
    last blocks before the cut only, at most `window_bytes` together, wherever the cut is; a state of fixed size
    (Mamba) is a window of one block.
    """

    block_bytes: int
    window_bytes: int | None = None

    def __post_init__(self) -> None:
        for name, value in (("block_bytes", self.block_bytes), ("window_bytes", self.window_bytes)):
            if (type(value) is not int or value < 1) and not (name == "window_bytes" and value is None):
                raise RecordError(f"group: {name} is {value!r}; an int of at least 1 is needed")

    def of_blocks(self, blocks: int) -> int:
        """Bytes of this many leading whole blocks."""
        num_bytes = blocks * self.block_bytes
        return num_bytes if self.window_bytes is None else min(num_bytes, self.window_bytes)


@dataclass(frozen=True, slots=True)
class BlockSizes:
    """What whole blocks weigh: the same for every hit of an engine, so make one and give it to each hit.

    Attributes:
        block_tokens: tokens of a whole block.
        groups: a `GroupBytes` for each group of layers.

    Raises:
        RecordError: a value is out of range, or there is no group.
    """

    block_tokens: int
    groups: tuple[GroupBytes, ...]
    # What every hit needs, from `groups`: what a block adds in those without a window, and those with one.
    _full_bytes: int = field(init=False, repr=False, compare=False)
    _windows: tuple[GroupBytes, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if type(self.block_tokens) is not int or self.block_tokens < 1:
            raise RecordError(f"block sizes: block_tokens is {self.block_tokens!r}; an int of at least 1 is needed")
        if not self.groups or not all(isinstance(g, GroupBytes) for g in self.groups):
            raise RecordError(f"block sizes: groups is {self.groups!r}; a tuple with a GroupBytes a group is needed")
        windows = tuple(g for g in self.groups if g.window_bytes is not None)
        object.__setattr__(self, "_windows", windows)
        object.__setattr__(self, "_full_bytes", sum(g.block_bytes for g in self.groups if g.window_bytes is None))

    @property
    def has_windows(self) -> bool:
        """Whether a group does not grow with every block."""
        return bool(self._windows)

    def bytes_of(self, blocks: int) -> int:
        """Bytes of this many leading whole blocks. It never falls as the blocks grow."""
        num_bytes = blocks * self._full_bytes
        return num_bytes + sum(g.of_blocks(blocks) for g in self._windows) if self._windows else num_bytes

    def blocks_within(self, limit_bytes: int, most: int) -> int:
        """The most leading whole blocks, up to `most`, that weigh no more than the limit; 0 where not one does."""
        if not self._windows:
            return min(most, limit_bytes // self._full_bytes)
        low, high = 0, most
        while low < high:
            middle = (low + high + 1) // 2
            if self.bytes_of(middle) <= limit_bytes:
                low = middle
            else:
                high = middle - 1
        return low

    def why_not(self, num_bytes: int, tokens: int, blocks: int) -> str | None:
        """Why a hit of this size is not made of such blocks, the last of which may be partial; None where it can be."""
        if not (blocks - 1) * self.block_tokens < tokens <= blocks * self.block_tokens:
            return (
                f"{tokens} tokens are not {blocks} blocks of {self.block_tokens} tokens, the last one partial or whole"
            )
        most = self.bytes_of(blocks)
        # A cut inside a window's block can move the window by one block, so with windows only the upper bound is sure.
        least = 0 if self._windows else most - self._full_bytes + 1
        if tokens == blocks * self.block_tokens and not self._windows:
            least = most
        if not least <= num_bytes <= most:
            return f"{blocks} blocks of these sizes are {most} bytes, not {num_bytes}"
        return None
