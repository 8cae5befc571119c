"""The axis of a picture: where a value is, and which values are written at it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from typing import final


@final
@dataclasses.dataclass(frozen=True)
class Axis:
    """An axis from the lowest to the highest value, at places `start` to `end` of the picture; logarithmic or not."""

    lowest: float
    highest: float
    start: float
    end: float
    log: bool

    @classmethod
    def over(cls, values: Iterable[float], start: float, end: float, log: bool) -> Axis:
        """Returns an axis with a little room beside the values, which must be above 0 on a logarithmic one."""
        known = list(values)
        lowest, highest = min(known), max(known)
        if log:
            return cls(lowest / 1.25, highest * 1.25, start, end, log)
        room = 0.05 * (highest - lowest) or 0.5 * abs(highest) or 1.0
        return cls(lowest - room, highest + room, start, end, log)

    def place(self, value: float) -> float:
        """Returns the place of a value in the picture."""
        values = self.lowest, self.highest, value
        lowest, highest, here = map(math.log, values) if self.log else values
        return self.start + (self.end - self.start) * (here - lowest) / (highest - lowest)

    def ticks(self) -> list[float]:
        """Returns the round values to write at the axis, not more than about eight.

        >>> Axis(0.8, 130.0, 0, 1, log=True).ticks()
        [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0]
        >>> Axis(0.0, 1.1, 0, 1, log=False).ticks()
        [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
        """
        if not self.log:
            rough = (self.highest - self.lowest) / 6
            power = 10.0 ** math.floor(math.log10(rough))
            step = next(power * n for n in (1, 2, 5, 10) if power * n >= rough)
            first, last = math.ceil(self.lowest / step), math.floor(self.highest / step)
            return [round(n * step, 12) for n in range(first, last + 1)]
        powers = range(math.floor(math.log10(self.lowest)), math.ceil(math.log10(self.highest)) + 1)
        marks = (1,) if self.highest / self.lowest > 1000 else (1, 2, 5)
        every = max(1, len(powers) // 8)
        values = [float(f"{m}e{power}") for power in powers if power % every == 0 for m in marks]
        return [value for value in values if self.lowest <= value <= self.highest]
