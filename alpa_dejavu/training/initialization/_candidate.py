"""The record of one candidate while a run goes on: its steps, its losses and what became of it."""

from __future__ import annotations

import dataclasses
from typing import final

import numpy as np

from alpa_dejavu.training.initialization._curve import Curve
from alpa_dejavu.training.initialization._layout import FloatArray
from alpa_dejavu.training.initialization._trend import Measure, measured


@final
@dataclasses.dataclass(eq=False)
class Candidate:
    """A candidate as it is now, with the attributes of a `Curve`.

    Its measures at the rungs after the first `skipped` are in `reached`; `roots` are its forebears.
    """

    number: int
    first_step: int = 0
    batch_rows: int | None = None
    parents: tuple[int, ...] = ()
    roots: frozenset[int] = frozenset()
    skipped: int = 0
    point: tuple[float, ...] = ()
    losses: list[float] = dataclasses.field(default_factory=list)
    relative_gradients: list[float] = dataclasses.field(default_factory=list)
    reached: list[Measure] = dataclasses.field(default_factory=list)
    dropped_step: int | None = None
    why: str = ""
    started: FloatArray | None = None
    ended: FloatArray | None = None

    @property
    def is_living(self) -> bool:
        return self.dropped_step is None

    @property
    def step(self) -> int:
        return self.first_step + len(self.losses)

    def measure(self, horizon: int) -> Measure:
        return measured(np.array(self.losses), np.array(self.relative_gradients), self.first_step, horizon)

    def curve(self) -> Curve:
        return Curve(
            self.number,
            self.parents,
            self.batch_rows,
            self.first_step,
            np.array(self.losses),
            np.array(self.relative_gradients),
            self.dropped_step,
            self.why,
            self.point,
            self.started,
            self.ended,
        )
