"""A worker that sends wrong gradients for a while."""

from __future__ import annotations

import dataclasses
import math
from typing import final

import numpy as np

from alpa_dejavu.playground._fault import Changed, Fault, check_times, check_worker, for_a_while
from alpa_dejavu.playground._gradient import Vector
from alpa_dejavu.playground._worker import Program
from alpa_dejavu.problem import checks

__all__ = ["WrongGradient"]

_ALONE = ("sign-flip", "gaussian", "not-finite", "bit-flip", "zero")
"""The attacks that look at no other worker's gradient."""


@final
@dataclasses.dataclass(frozen=True)
class WrongGradient(Fault):
    """A worker whose gradients are wrong for a while; those that are under way already aren't changed.

    Attributes:
        worker: its number.
        attack: an attack of `alpa_dejavu.training.robust.attacks`: "sign-flip", "gaussian", "not-finite", "bit-flip" or
            "zero".
        at_s, until_s: from when until when.
    """

    worker: int
    attack: str = "sign-flip"
    at_s: float = 0.0
    until_s: float = math.inf

    def __post_init__(self) -> None:
        checks.one_of("wrong gradient", "attack", self.attack, _ALONE)
        check_times("wrong gradient", self.at_s, self.until_s)

    def run(self, world: Changed) -> Program:
        """Has the worker send wrong gradients, and right ones again."""
        check_worker(world, self.worker)
        return for_a_while(
            lambda ends: world.spoil(self.worker, None if ends else self._spoilt), self.at_s, self.until_s
        )

    def _spoilt(self, worker: int, step: int, right: Vector) -> Vector:
        if not right.size:  # time alone
            return right
        import jax

        from alpa_dejavu.training.robust.attacks import ATTACKS

        key = jax.random.fold_in(jax.random.PRNGKey(worker), step)
        sent, _ = ATTACKS[self.attack]().send(right[None], np.ones(1, bool), key)
        return np.asarray(sent[0])
