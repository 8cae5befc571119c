"""The ways to spend devices that are compared."""

from __future__ import annotations

import dataclasses
from typing import final

__all__ = ["KINDS", "Way", "ways"]

KINDS = ("plain", "batch", "starts", "optex")
HISTORY = 20
"""Points that OptEx keeps."""
MOST = 8
"""Batches are so many times as large at most, and so many starts or points are side by side."""


@final
@dataclasses.dataclass(frozen=True)
class Way:
    """A way to spend a cluster's devices.

    Attributes:
        kind: "plain": all devices make each step faster; "batch": they take a larger batch; "starts": parts of the
            cluster race as many starts, and all of it trains the best one on; "optex": parts of the cluster compute
            gradients at as many points of a walk.
        times: how many times as large the batch is, or how many starts or points there are.
    """

    kind: str
    times: int = 1

    def __str__(self) -> str:
        return {
            "plain": "as it is",
            "batch": f"a batch {self.times} times as large",
            "starts": f"{self.times} starts",
            "optex": f"OptEx, {self.times} points",
        }[self.kind]


def ways(num_devices: int) -> tuple[Way, ...]:
    """Returns the ways to spend so many devices, in powers of two; starts and points each have an equal part of them.

    >>> [str(way) for way in ways(2)]
    ['as it is', 'a batch 2 times as large', '2 starts', 'OptEx, 2 points']
    """
    most = min(MOST, num_devices)
    powers = [times for times in (2, 4, 8) if times <= most and num_devices % times == 0]
    return (Way("plain"), *(Way(kind, times) for kind in KINDS[1:] for times in powers))
