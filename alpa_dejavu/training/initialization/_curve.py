"""The result of a run: the curve of each candidate, and the state that was chosen."""

from __future__ import annotations

import dataclasses
from typing import Any, final

import numpy as np

from alpa_dejavu.training.initialization._layout import FloatArray


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Curve:
    """The course of one candidate, a training from one initialization: its losses, and why it was dropped or chosen.

    Attributes:
        number: its number, from 0; children and means have numbers after those that began by themselves.
        parents: the numbers of the candidates that a child or a mean was made of.
        batch_rows: how many rows of each batch it took; None: all.
        first_step: the step at which it began, counted from 0; a child begins at the step of its parents.
        losses: shape (T,), the loss of each of its T steps; if it diverged, of those before that.
        relative_gradients: shape (T,), the gradient's norm over the weights'; NaN where the training step doesn't say.
        dropped_step: how many steps it had when it was dropped; None: it is the chosen one, or the run was interrupted
            before it was decided whether it is.
        why: a sentence on why it was dropped, or chosen, or neither yet.
        point: the coordinates that its first weights were made from, such as scales of tensors; (): none.
        started, ended: shape (D,), its first and its last weights, if they were to be kept.
        method: the name of the start that gave it its first weights; a child or a mean has its first parent's.
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
