"""Several starts in one race."""

from __future__ import annotations

import dataclasses
from typing import final

from alpa_dejavu.training.initialization.starts._base import Ask, Start, Started


@final
@dataclasses.dataclass(frozen=True)
class Mixed(Start):
    """A start by which candidates begin by several starts in turn, so that these race against each other.

    Starts that learn from earlier candidates learn from their own ones alone; there are as many waves as the most
    patient of them needs.

    Attributes:
        starts: candidate n begins by `starts[n % len(starts)]`.

    Raises ValueError for no start, or for one that is made of several itself.
    """

    starts: tuple[Start, ...]
    waves: tuple[float, ...] = dataclasses.field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not self.starts or any(isinstance(each, Mixed) for each in self.starts):
            raise ValueError(f"init is {self.starts!r}, but must be one or more starts, none of them made of several")
        object.__setattr__(self, "waves", max((each.waves for each in self.starts), key=len))

    @property
    def members(self) -> tuple[Start, ...]:
        return self.starts

    def start(self, ask: Ask) -> tuple[Started, ...]:
        count = len(self.starts)
        begun: dict[int, Started] = {}
        for place, each in enumerate(self.starts):
            numbers = tuple(number for number in ask.numbers if number % count == place)
            if numbers:
                tried = tuple(one for one in ask.tried if one.number % count == place)
                asked = dataclasses.replace(ask, numbers=numbers, tried=tried)
                begun.update(zip(numbers, each.start(asked), strict=True))
        return tuple(begun[number] for number in ask.numbers)
