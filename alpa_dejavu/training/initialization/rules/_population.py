"""All go on; the worst are replaced by children of the best."""

from __future__ import annotations

import dataclasses
import math
from typing import final

import numpy as np

from alpa_dejavu.problem import checks
from alpa_dejavu.training.initialization.rules._base import Decision, Rule, Standing, at_least_two, explored


@final
@dataclasses.dataclass(frozen=True)
class Population(Rule):
    """A rule of population-based training: at each rung, a step of judging, the worst candidates (initializations in
    training) are replaced by children of the best.

    A child has its parent's weights as they are, another learning rate and another size of batches: so the rule is for
    candidates that carry these. There are as many candidates until the last rung, which is dearer than halving. The
    rule waits for all candidates at each rung.

    Experimental: no better than one start in docs/results/parallel-initialization.md.

    Attributes:
        share: the fraction of candidates that are replaced.
        rate_factor: by which a child's learning rate is multiplied or divided.
        eta: each rung is at so many times the step of the one before.

    Raises ValueError for a share that isn't above 0 and at most a half, a factor that isn't positive or an eta below 2.

    References:
        Jaderberg et al., Population Based Training of Neural Networks, arXiv:1711.09846, 2017.
    """

    share: float = 0.25
    rate_factor: float = 1.25
    eta: int = 2

    def __post_init__(self) -> None:
        at_least_two("population", self.eta)
        checks.positive("population", "rate_factor", self.rate_factor)
        if not 0 < self.share <= 0.5:
            raise ValueError(f"population: share is {self.share!r}, but must be above 0 and at most 0.5")

    def decide(self, standing: Standing) -> Decision:
        order = standing.waiting_best_first()
        replaced = min(math.ceil(self.share * len(order)), len(order) // 2)
        kept = order[: len(order) - replaced]
        generator = np.random.default_rng([standing.seed, standing.last_rung])
        children = tuple(explored((parent,), 0.0, self.rate_factor, generator) for parent in kept[:replaced])
        return Decision(kept, children, f"a population replaces {len(children)} of {len(order)}")
