"""Successive halving: at each rung the best half goes on, with twice the steps."""

from __future__ import annotations

import dataclasses
from typing import final

from alpa_dejavu.training.initialization.rules._base import Decision, Rule, Standing
from alpa_dejavu.training.initialization.rules._checks import at_least_two


@final
@dataclasses.dataclass(frozen=True)
class Halving(Rule):
    """Waits for all at each rung; results are the same however many workers there are.

    Attributes:
        eta: one in so many goes on.

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
