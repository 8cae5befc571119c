"""Bandwidths between devices as quadratic fits over the logarithm of the message, as Sailor publishes them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, final

import numpy as np

__all__ = ["BandwidthFit"]

_LEAST_SHARE = 0.02
"""The share of the largest rate below which a parabola isn't believed."""


@final
@dataclasses.dataclass(frozen=True)
class BandwidthFit:
    """A quadratic fit of a link's bandwidth by message size: a + b x + c x², in 1e9 bytes/s, x the binary logarithm of
    the message's MiB.

    For messages larger than at the parabola's vertex the bandwidth is that of the vertex.

    >>> fit = BandwidthFit.of([[-0.1, 1.0, 2.0], 4e9])
    >>> fit.bytes_per_s(2**20), fit.bytes_per_s(2**40)
    (2000000000.0, 4000000000.0)
    """

    coefficients: tuple[float, float, float]
    largest_bytes_per_s: float

    @classmethod
    def of(cls, published: Sequence[Any]) -> BandwidthFit:
        """Returns the bandwidth fit a + b x + c x² that is published as [[c, b, a], largest bytes/s].

        Raises:
            ValueError: it is something else.
        """
        try:
            (square, slope, start), largest = published
            return cls((float(start), float(slope), float(square)), float(largest))
        except (TypeError, ValueError) as error:
            raise ValueError(f"bandwidth fit: is {published}, but must be [[c, b, a], largest bytes/s]") from error

    def bytes_per_s(self, num_bytes: float) -> float:
        """Returns the bandwidth, in bytes per second, of one message of a number of bytes."""
        start, slope, square = self.coefficients
        place = float(np.log2(max(num_bytes, 1.0) / 2**20))
        if square < 0:
            place = min(place, -slope / 2 / square)
        rate = (start + slope * place + square * place**2) * 1e9
        return float(np.clip(rate, _LEAST_SHARE * self.largest_bytes_per_s, self.largest_bytes_per_s))
