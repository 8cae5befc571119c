"""All workers add up their gradients each step, or their parameters after some local steps."""

from __future__ import annotations

import dataclasses
import itertools
from typing import final

from alpa_dejavu.playground._exchange import Exchange
from alpa_dejavu.playground._gradient import Vector
from alpa_dejavu.playground._worker import Program, Worker
from alpa_dejavu.playground.exchanges._collectives import Trained, all_reduce, check_algorithm, check_hosts
from alpa_dejavu.problem import checks

__all__ = ["AllReduce", "LocalSteps"]


@final
@dataclasses.dataclass(frozen=True)
class AllReduce(Exchange):
    """Each step all workers update by the mean of their gradients.

    Attributes:
        algorithm: "ring", "tree", or "hierarchical": within hosts, between them, and within again.
    """

    algorithm: str = "ring"

    def __post_init__(self) -> None:
        check_algorithm("all-reduce", self.algorithm)

    def run(self, worker: Worker) -> Program:
        """Computes a gradient, adds it up with the others', updates."""
        check_hosts(worker.world, self.algorithm)
        for step in itertools.count():
            gradient = yield worker.compute()
            total = yield from all_reduce(worker, ("gradients", step), gradient, self.algorithm)
            worker.update(total, gradient)


@final
@dataclasses.dataclass(frozen=True)
class LocalSteps(Exchange):
    """Each worker takes some steps of its own, then all go on from the mean of their parameters (local SGD), over
    the samples that each computed gradients of; of a parameter, over those of workers that hadn't left it out.

    Attributes:
        steps: the steps between two means; 1 is synchronous, for plain gradient descent.
        algorithm: of the all-reduce.

    References:
        Stich, Local SGD Converges Fast and Communicates Little, ICLR 2019.
    """

    steps: int = 8
    algorithm: str = "ring"

    def __post_init__(self) -> None:
        checks.count("local steps", "steps", self.steps)
        check_algorithm("local steps", self.algorithm)

    def run(self, worker: Worker) -> Program:
        """Takes local steps, and then the mean of all parameters."""
        check_hosts(worker.world, self.algorithm)
        for number in itertools.count():
            samples: float | Vector = 0
            for _ in range(self.steps):
                gradient = yield worker.compute()
                worker.update(gradient.values, gradient)
                samples = samples + gradient.samples
            came_to = Trained(worker.params, samples)
            total = yield from all_reduce(worker, ("parameters", number), came_to, self.algorithm)
            worker.adopt(total, worker.version)
