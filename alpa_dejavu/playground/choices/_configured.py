"""The result of a training that was configured while it went on."""

from __future__ import annotations

import dataclasses
from typing import final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu.playground.choices._options import Option
from alpa_dejavu.playground.history import History

__all__ = ["Configured"]

Floats = NDArray[np.float64]


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Configured:
    """A training that was configured while it went on: S steps of a mix of K options, then one of them alone.

    Attributes:
        time_s: moments in virtual seconds, shape (E,): the beginning, after each step of the mix, and those of what
            followed. The mix's own seconds are in: of all options' segments, of means, and of looking ahead.
        loss: the held-out loss at each moment, shape (E,).
        options: the options.
        shares: each option's share in each step, and at last, shape (S + 1, K); 0: it is out.
        mixing_s: the virtual seconds of the mix.
        chosen: the option that was left.
        history: the training by that option alone, from second 0 on; None: no time was left.
    """

    time_s: Floats
    loss: Floats
    options: tuple[Option, ...]
    shares: Floats
    mixing_s: float
    chosen: Option
    history: History | None

    def seconds_to(self, loss: float) -> float:
        """Returns the first moment in seconds at which the held-out loss was at most so much; infinity if none was."""
        reached = np.flatnonzero(self.loss <= loss)
        return float(self.time_s[reached[0]]) if len(reached) else float("inf")
