"""Successive halving that waits for nobody."""

from __future__ import annotations

import dataclasses
from typing import final

from alpa_dejavu.training.initialization.rules._base import Decision, Rule, Standing, at_least_two


@final
@dataclasses.dataclass(frozen=True)
class Halving(Rule):
    """A rule of successive halving: it waits until all candidates (initializations in training) have reached a rung, a
    step of judging, and lets the best one in `eta` go on from it.

    Results are the same however many workers there are.

    Attributes:
        eta: one candidate in so many goes on from a rung.

    Raises ValueError for an eta below 2.

    References:
        Jamieson and Talwalkar, Non-stochastic Best Arm Identification and Hyperparameter Optimization, AISTATS 2016.
    """

    eta: int = 2

    def __post_init__(self) -> None:
        at_least_two("halving", self.eta)

    def decide(self, standing: Standing) -> Decision:
        order = standing.waiting_best_first()
        count = -(-len(order) // self.eta)
        return Decision(order[:count], why=f"halving keeps {count} of {len(order)}")


@final
@dataclasses.dataclass(frozen=True)
class Asha(Rule):
    """A rule of asynchronous successive halving: a candidate (an initialization in training) goes on once it is among
    the best one in `eta` of those that have arrived at its rung, a step of judging, so far.

    No worker is ever idle, but who goes on depends on who arrived first: with several workers a run can't be repeated
    exactly, and its result isn't that of another number of workers.

    Attributes:
        eta: one candidate in so many goes on from a rung.

    Raises ValueError for an eta below 2.

    References:
        Li et al., A System for Massively Parallel Hyperparameter Tuning, MLSys 2020.
    """

    eta: int = 2
    waits = False

    def __post_init__(self) -> None:
        at_least_two("asha", self.eta)

    def decide(self, standing: Standing) -> Decision:
        for rung in range(len(standing.rungs) - 2, -1, -1):
            arrived = standing.at(rung)
            best = standing.best_first(rung, arrived)[: len(arrived) // self.eta]
            kept = tuple(number for number in best if number in standing.waiting and standing.rung(number) == rung)
            if kept:
                return Decision(kept, why=f"asha promotes from step {standing.rungs[rung]}")
        return Decision((), why="asha hasn't promoted it")
