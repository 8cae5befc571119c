"""Where layers may be cut into stages."""

from __future__ import annotations

import dataclasses
from typing import final

import numpy as np
from numpy.typing import NDArray


@final
@dataclasses.dataclass(frozen=True)
class Cuts:
    """A rule for where layers may be cut into stages.

    Attributes:
        ends: so many layers at the beginning, and at the end, aren't blocks, as embeddings and heads aren't.
        even: whether each stage must have equally many blocks.
        lone_ends: whether a stage may have layers that aren't blocks and nothing else.
    """

    ends: int = 0
    even: bool = False
    lone_ends: bool = True

    def allowed(self, num_layers: int, num_stages: int) -> NDArray[np.bool_]:
        """Returns which ranges of layers i..j may be one of so many stages, shape (L, L).

        >>> Cuts(ends=1, even=True).allowed(6, 2).nonzero()[0], Cuts(ends=1, even=True).allowed(6, 2).nonzero()[1]
        (array([0, 3]), array([2, 5]))
        """
        first, last = np.indices((num_layers, num_layers))
        blocks = num_layers - 2 * self.ends
        begin, end = ((place - self.ends).clip(0, blocks) for place in (first, last + 1))
        found = first <= last
        if self.even:
            each, rest = divmod(blocks, num_stages)
            # Embeddings and heads stay with the blocks beside them.
            whole = (first == 0) | (first > self.ends)
            whole &= (last == num_layers - 1) | (last < num_layers - 1 - self.ends)
            found &= whole & (end - begin == each) & (begin % max(each, 1) == 0) & (rest == 0) & (each > 0)
        if not self.lone_ends:
            found &= end > begin
        return found


ANY_CUTS = Cuts()
"""Every range of layers may be a stage."""
