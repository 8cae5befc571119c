"""Submeshes drawn at random that together take the devices there are."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import final

Use = tuple[int, ...]
"""Devices of each kind of host."""
MOST_STEPS = 300
"""A draw is given up after so many submeshes that were tried, besides all of them once for each that is drawn."""


@final
class Fill:
    """A sampler of random submeshes that together use up a cluster's devices; it remembers which draws can't be
    completed.

    Args:
        uses: for each submesh, how many devices it takes of each kind of host.
        exactly: whether all devices have to be used.
        rng: the source of randomness.
    """

    def __init__(self, uses: Sequence[Use], exactly: bool, rng: random.Random) -> None:
        self._uses, self._exactly, self._rng = tuple(uses), exactly, rng
        sizes = [sum(use) for use in uses]
        self._smallest, self._largest = min(sizes), max(sizes)
        self._alike: dict[Use, list[int]] = {}
        for submesh, use in enumerate(uses):
            self._alike.setdefault(use, []).append(submesh)
        self._dead: set[tuple[int, Use]] = set()
        self._steps = 0

    def draw(self, count: int, available: Use) -> list[int]:
        """Returns the indices of `count` random submeshes, shuffled, that use all available devices, or at most these;
        [] if none are found. `available` has the number of devices of each kind of host.
        """
        self._steps = MOST_STEPS + count * len(self._uses)
        drawn = self._rest(count, available)
        self._rng.shuffle(drawn)
        return drawn

    def _rest(self, count: int, left: Use) -> list[int]:
        devices = sum(left)
        if devices < count * self._smallest or (self._exactly and devices > count * self._largest):
            return []
        if count == 1 and self._exactly:
            return [self._rng.choice(self._alike[left])] if left in self._alike else []
        if (count, left) in self._dead:
            return []
        for submesh in self._rng.sample(range(len(self._uses)), len(self._uses)):
            self._steps -= 1
            after = tuple(have - use for have, use in zip(left, self._uses[submesh], strict=True))
            if min(after) < 0:
                continue
            if count == 1:
                return [submesh]
            rest = self._rest(count - 1, after)
            if rest:
                return [submesh, *rest]
            if self._steps < 0:
                return []
        self._dead.add((count, left))
        return []
