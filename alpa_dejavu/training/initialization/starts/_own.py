"""The null model of starts: each candidate's own random key."""

from __future__ import annotations

import dataclasses
from typing import final

from alpa_dejavu.training.initialization.starts._base import Ask, Start, Started


@final
@dataclasses.dataclass(frozen=True)
class Own(Start):
    """A start with the weights with which the model begins by itself."""

    def start(self, ask: Ask) -> tuple[Started, ...]:
        return tuple(Started(ask.own(number)) for number in ask.numbers)
