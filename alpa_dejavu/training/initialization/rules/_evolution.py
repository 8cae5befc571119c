"""The best go on, and have children: mutated, or crossed."""

from __future__ import annotations

import dataclasses
from typing import final

import numpy as np

from alpa_dejavu.problem import checks
from alpa_dejavu.training.initialization.rules._base import (
    Child,
    Decision,
    Rule,
    Standing,
    at_least_two,
    explored,
)


@final
@dataclasses.dataclass(frozen=True)
class Evolution(Rule):
    """A rule by which one candidate (initialization in training) in `eta` goes on at each rung, a step of judging, and
    has a child with mutated or crossed weights, which begins at its parents' step.

    Where candidates carry a learning rate, or batches of their own size, a mutated child's are other ones, too. At the
    last rung but one there are no more children. The rule waits for all candidates at each rung.

    Attributes:
        eta: one candidate in so many goes on from a rung.
        strength: how far a mutation moves weights, in standard deviations of each tensor.
        crossing: the fraction of children that have two parents; the others are mutated.
        rate_factor: by which a mutation multiplies or divides the learning rate.

    Raises ValueError for an eta below 2, a strength or factor that isn't positive or a fraction that is none.

    References:
        Jaderberg et al., Population Based Training of Neural Networks, arXiv:1711.09846, 2017.
        Real et al., Regularized Evolution for Image Classifier Architecture Search, AAAI 2019.
    """

    eta: int = 2
    strength: float = 0.1
    crossing: float = 0.5
    rate_factor: float = 1.25

    def __post_init__(self) -> None:
        at_least_two("evolution", self.eta)
        checks.positive("evolution", "strength", self.strength)
        checks.positive("evolution", "rate_factor", self.rate_factor)
        if not 0 <= self.crossing <= 1:
            raise ValueError(f"evolution: crossing is {self.crossing!r}, but must be a fraction, from 0 to 1")

    def decide(self, standing: Standing) -> Decision:
        order, rung = standing.waiting_best_first(), standing.last_rung
        kept = order[: -(-len(order) // self.eta)]
        breeds = rung < len(standing.rungs) - 2 and len(order) > 1
        children = tuple(self._children(kept, standing.seed, rung)) if breeds else ()
        return Decision(kept, children, f"evolution keeps {len(kept)} of {len(order)}, with {len(children)} children")

    def _children(self, kept: tuple[int, ...], seed: int, rung: int) -> list[Child]:
        generator = np.random.default_rng([seed, rung])
        children = []
        for place, parent in enumerate(kept):
            others = [other for other in kept if other != parent]
            if others and generator.random() < self.crossing:
                children.append(Child((parent, others[int(generator.integers(len(others)))])))
            else:
                strength = self.strength * 2.0 ** (place % 3 - 1)
                children.append(explored((parent,), strength, self.rate_factor, generator))
        return children
