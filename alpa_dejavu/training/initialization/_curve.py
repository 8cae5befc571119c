"""The result of a run: the curve of each candidate, and the state that was chosen."""

from __future__ import annotations

import dataclasses
from typing import Any, final

import numpy as np

from alpa_dejavu.training.initialization._judge import Measure, measured
from alpa_dejavu.training.initialization._layout import FloatArray


@final
@dataclasses.dataclass(eq=False)
class RacingCandidate:
    """One of the initializations that are trained side by side, in its present state, with the attributes of a
    `Curve`.

    `reached` has its measures at the rungs (steps of judging) that it has reached. What its parents had spent when it
    began is `first_spent`, in rows where candidates' batches have rows of their own, else in steps.
    """

    number: int
    first_step: int = 0
    first_spent: int = 0
    batch_rows: int | None = None
    rate: float | None = None
    method: str = ""
    parents: tuple[int, ...] = ()
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
        own = vars(self)
        values = {field.name: own[field.name] for field in dataclasses.fields(Curve) if field.name in own}
        values |= {"losses": np.array(self.losses), "relative_gradients": np.array(self.relative_gradients)}
        return Curve(**values | {"began_at": self.first_spent / unit})


def cost_of(batch_rows: int | None) -> int:
    """Returns the cost of a step, in rows where candidates' batches have rows of their own, else 1."""
    return 1 if batch_rows is None else batch_rows


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Curve:
    """The course of one candidate, a training from one initialization: its losses, and why it was dropped or chosen.

    Attributes:
        number: its number, from 0; means have numbers after those that began by themselves.
        parents: the numbers of the candidates that a mean was made of.
        batch_rows: how many rows of each batch it took; None: all.
        first_step: the step at which it began, counted from 0; a mean begins at the step of its parents.
        losses: shape (T,), the loss of each of its T steps; if it diverged, of those before that.
        relative_gradients: shape (T,), the gradient's norm over the weights'; NaN where the training step doesn't say.
        dropped_step: how many steps it had when it was dropped; None: it is the chosen one, or the run was interrupted
            before it was decided whether it is.
        why: a sentence on why it was dropped, or chosen, or neither yet.
        point: the coordinates that its first weights were made from, such as scales of tensors; (): none.
        started, ended: shape (D,), its first and its last weights, if they were to be kept.
        method: the name of the start that gave it its first weights; a mean has its first parent's.
        rate: its learning rate, if candidates carry one.
        began_at: the compute that its ancestors had spent when it began, in steps of the largest batch.
    """

    number: int
    parents: tuple[int, ...]
    batch_rows: int | None
    first_step: int
    losses: FloatArray
    relative_gradients: FloatArray
    dropped_step: int | None
    why: str
    point: tuple[float, ...] = ()
    started: FloatArray | None = None
    ended: FloatArray | None = None
    method: str = ""
    rate: float | None = None
    began_at: float = 0.0


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Initialized:
    """The result of `parallel_initialize`: the chosen state, and the curves of all candidates.

    Attributes:
        state: the chosen candidate's state after its steps, as init_fn made it, of numpy arrays.
        chosen: the number of the chosen candidate.
        steps: how many steps that state has been trained; as many as asked for, unless the run was interrupted, or more
            if it took smaller batches than others.
        curves: those of all candidates, by number.
        rungs: the steps at which candidates were judged.
        total_steps: steps of all candidates together, and of measuring means: the compute. Where candidates' batches
            have rows of their own, a step counts by its rows, next to one with the most.
        padded_steps: steps that programs took in lanes without a candidate: compute that isn't in `total_steps`.
        diverged: how many candidates were dropped since their loss or weights were no number.
        lost: how many candidates were dropped since their worker died again and again.
        restarts: how many tasks began again because a worker died; their steps count once.
        seconds: how long the whole run took, with compiling.
        seed: the seed of all random numbers.
        interrupted: whether the run was stopped before its end.
        notes: what else there is to know, in sentences.
    """

    state: Any
    chosen: int
    steps: int
    curves: tuple[Curve, ...]
    rungs: tuple[int, ...]
    total_steps: int
    padded_steps: int
    diverged: int
    lost: int
    restarts: int
    seconds: float
    seed: int
    interrupted: bool = False
    notes: tuple[str, ...] = ()

    @property
    def losses(self) -> FloatArray:
        """Returns the chosen candidate's losses, from the first step of its first ancestor on; shape (steps,)."""
        by_number = {curve.number: curve for curve in self.curves}
        curve = by_number[self.chosen]
        losses = curve.losses[: self.steps - curve.first_step]
        while curve.parents:
            first = curve.first_step
            curve = by_number[curve.parents[0]]
            losses = np.concatenate([curve.losses[: first - curve.first_step], losses])
        return losses
