"""A candidate in its present state: what it carries, what it has spent, and the curve that is made of it."""

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
    """One of the initializations that are trained side by side, in its present state, with the attributes of a
    `Curve`.

    `reached` has its measures at the rungs (steps of judging) that it has reached, all but the first `skipped`; `roots`
    are its ancestors that began by themselves. What it and its ancestors had spent when it began is `first_spent`, in
    rows where candidates' batches have rows of their own, else in steps.
    """

    number: int
    first_step: int = 0
    first_spent: int = 0
    batch_rows: int | None = None
    rate: float | None = None
    method: str = ""
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

    @property
    def step_cost(self) -> int:
        return cost_of(self.batch_rows)

    @property
    def spent(self) -> int:
        return self.first_spent + len(self.losses) * self.step_cost

    def steps_left(self, limit: int) -> int:
        """Returns how many more steps it can take until it has spent a limit, which is in rows where batches have rows
        of their own; 0 if not even one.
        """
        return max(0, (limit - self.spent) // self.step_cost)

    def measure(self, limit: int) -> Measure:
        """Returns the measure of its curve, whose trend is followed to where a limit is spent."""
        horizon = self.step + self.steps_left(limit)
        return measured(np.array(self.losses), np.array(self.relative_gradients), self.first_step, horizon)

    def curve(self, unit: int) -> Curve:
        """Returns its curve; compute is counted in steps that cost a unit each."""
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
            self.method,
            self.rate,
            self.first_spent / unit,
        )


def cost_of(batch_rows: int | None) -> int:
    """Returns the cost of a step, in rows where candidates' batches have rows of their own, else 1."""
    return 1 if batch_rows is None else batch_rows
