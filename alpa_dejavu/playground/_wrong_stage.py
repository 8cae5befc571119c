"""A pipeline whose one stage computes wrongly for a while, and what its monitor has done about it."""

from __future__ import annotations

import dataclasses
import math
from typing import final

import numpy as np

from alpa_dejavu.playground._fault import Changed, Fault, check_times, check_worker, for_a_while
from alpa_dejavu.playground._gradient import Vector
from alpa_dejavu.playground._worker import Program
from alpa_dejavu.problem import checks

__all__ = ["WrongStage"]


@final
@dataclasses.dataclass(frozen=True)
class WrongStage(Fault):
    """A worker, a whole pipeline, whose one stage computes some micro-batches wrongly, for gradients begun in a while.

    The stage computes with its parameters times a factor: activations after it are wrong, the signal to the stages
    before it, and its own gradients. A monitor of what crosses between stages, such as
    `alpa_dejavu.training.robust.monitor.Monitor`, finds some of that. Then the next worker computes those micro-batches
    again: the gradient is right, but comes later by that worker's seconds for them, and its next gradient does, too.
    Without another worker, the same one computes them again, rightly.

    Attributes:
        worker: its number.
        stage: the number of the stage, from 0.
        stages: how many there are: consecutive leaves of the parameters' pytree, about as many in each.
        factor: what the stage's parameters are multiplied by.
        share: the share of a gradient's micro-batches that are wrong.
        found: the share of wrong gradients that the monitor finds, drawn for each; 0: there is no monitor.
        at_s, until_s: from when until when.
    """

    worker: int
    stage: int = 0
    stages: int = 2
    factor: float = 3.0
    share: float = 1.0
    found: float = 1.0
    at_s: float = 0.0
    until_s: float = math.inf

    def __post_init__(self) -> None:
        checks.count("wrong stage", "stages", self.stages)
        if self.stage not in range(self.stages):
            raise ValueError(f"wrong stage: stage is {self.stage}, but must be one of 0..{self.stages - 1}; name one "
                             "of the stages")  # fmt: skip
        for field in ("share", "found"):
            value = getattr(self, field)
            if not 0 <= value <= 1:
                raise ValueError(f"wrong stage: {field} is {value}, but must be from 0 to 1; give a share")
        if not math.isfinite(self.factor):
            raise ValueError(f"wrong stage: factor is {self.factor}, but must be finite; give a number")
        check_times("wrong stage", self.at_s, self.until_s)

    def run(self, world: Changed) -> Program:
        """Has the worker compute a stage wrongly, and rightly again."""
        check_worker(world, self.worker)
        return for_a_while(
            lambda ends: world.compute_wrongly(self.worker, None if ends else self), self.at_s, self.until_s
        )

    def multipliers(self, leaves: tuple[int, ...]) -> Vector:
        """Returns the factor of each parameter, shape (P,).

        Args:
            leaves: the sizes of the leaves of the parameters' pytree.

        Raises:
            ValueError: there are fewer leaves than stages.
        """
        if not leaves:  # time alone
            return np.ones(0, np.float32)
        if len(leaves) < self.stages:
            raise ValueError(f"wrong stage: stages is {self.stages}, but must be at most {len(leaves)}, a leaf of the "
                             "parameters in each; give fewer")  # fmt: skip
        sizes = [int(part.sum()) for part in np.array_split(leaves, self.stages)]
        factors = np.where(np.arange(self.stages) == self.stage, self.factor, 1.0)
        return np.repeat(factors, sizes).astype(np.float32)
