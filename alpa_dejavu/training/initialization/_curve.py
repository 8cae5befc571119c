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
    `Curve`; `reached` has its measures at the rungs (steps of judging) that it has reached.
    """

    number: int
    method: str = ""
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
        return len(self.losses)

    def measure(self, horizon: int) -> Measure:
        """Returns the measure of its curve, whose trend is followed to a step."""
        return measured(np.array(self.losses), np.array(self.relative_gradients), 0, horizon)

    def curve(self) -> Curve:
        values = {field.name: vars(self)[field.name] for field in dataclasses.fields(Curve)}
        return Curve(**values | {name: np.array(values[name]) for name in ("losses", "relative_gradients")})


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Curve:
    """The course of one candidate, a training from one initialization: its losses, and why it was dropped or chosen.

    Attributes:
        number: its number, from 0.
        losses: shape (T,), the loss of each of its T steps; if it diverged, of those before that.
        relative_gradients: shape (T,), the gradient's norm over the weights'; NaN where the training step doesn't say.
        dropped_step: how many steps it had when it was dropped; None: it is the chosen one, or the run was interrupted
            before it was decided whether it is.
        why: a sentence on why it was dropped, or chosen, or neither yet.
        point: the coordinates that its first weights were made from, such as scales of tensors; (): none.
        started, ended: shape (D,), its first and its last weights, if they were to be kept.
        method: the name of the start that gave it its first weights.
    """

    number: int
    losses: FloatArray
    relative_gradients: FloatArray
    dropped_step: int | None
    why: str
    point: tuple[float, ...] = ()
    started: FloatArray | None = None
    ended: FloatArray | None = None
    method: str = ""


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Initialized:
    """The result of `parallel_initialize`: the chosen state, and the curves of all candidates.

    Attributes:
        state: the chosen candidate's state after its steps, as init_fn made it, of numpy arrays.
        chosen: the number of the chosen candidate.
        steps: how many steps that state has been trained; as many as asked for, unless the run was interrupted.
        curves: those of all candidates, by number.
        rungs: the steps at which candidates were judged.
        total_steps: steps of all candidates together: the compute.
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
        """Returns the chosen candidate's losses, shape (steps,)."""
        return next(curve for curve in self.curves if curve.number == self.chosen).losses[: self.steps]
