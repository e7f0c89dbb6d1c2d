"""Arrays of block and slot indices: copied, checked, and searched for an index that repeats.

numpy is imported only where an array is made, so that who makes none need not wait for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kvmove.errors import RecordError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    IndexArray = NDArray[np.int64]
    IndexLike = Sequence[int] | NDArray[Any]


def index_array(values: IndexLike, name: str) -> IndexArray:
    """An int64 copy, so that a caller who reuses its buffer cannot change a job in flight.

    Raises:
        RecordError: `name` is no flat array of ints, or holds more than 63 bits. Negative ones pass: the caller
            looks at the smallest one.
    """
    import numpy as np

    given = np.asarray(values)
    if given.ndim != 1 or (given.size and given.dtype.kind not in "iu"):
        raise RecordError(f"{name} has shape {given.shape} and dtype {given.dtype}; a flat array of ints is needed")
    if given.dtype == np.uint64 and given.size and int(given.max()) >= 1 << 63:
        raise RecordError(f"{name} holds {given.max()}; an index fits 63 bits")
    return given.astype(np.int64, copy=True)


def ends(array: IndexArray) -> tuple[int, int]:
    """The smallest and the largest index; there has to be one."""
    return int(array.min()), int(array.max())


def check_distinct(array: IndexArray, beginning: str) -> IndexArray:
    """The indices in order, which the check needs anyway, where none repeats.

    Raises:
        RecordError: one repeats; the text starts with `beginning`, which says where.
    """
    in_order = array.copy()
    in_order.sort()
    repeated = in_order[1:][in_order[1:] == in_order[:-1]]
    if len(repeated):
        raise RecordError(f"{beginning} {repeated[0]} twice; which copy would win is undefined, so name it once")
    return in_order
