"""Any of Optuna's samplers as a start: it chooses the scales of tensors."""

from __future__ import annotations

import dataclasses
from typing import Any, final

import numpy as np

from alpa_dejavu._util.quiet_optuna import quiet_optuna
from alpa_dejavu.training.initialization.starts._base import Ask, Start, Started
from alpa_dejavu.training.initialization.starts._scales import check_range, num_scales, scaled


@final
@dataclasses.dataclass(frozen=True)
class OptunaSampler(Start):
    """A start that multiplies each tensor of two axes or more of the model's own weights by a scale that a sampler of
    Optuna suggests.

    Candidates begin in four waves: the sampler is told the losses that earlier waves promise at the first rung.

    Attributes:
        sampler: such as `optuna.samplers.GPSampler(seed=1)`; None: a TPE sampler with the run's seed. One that keeps
            its own random numbers gives others when it is used again.
        lowest, highest: the range of the scales.

    Raises ValueError unless 0 < lowest < highest.

    References:
        Akiba et al., Optuna: A Next-generation Hyperparameter Optimization Framework, KDD 2019.
    """

    sampler: Any = None
    lowest: float = 0.25
    highest: float = 4.0
    waves = (0.25, 0.25, 0.25, 0.25)

    def __post_init__(self) -> None:
        check_range("optuna", self.lowest, self.highest)

    def start(self, ask: Ask) -> tuple[Started, ...]:
        names = [f"scale_{n}" for n in range(num_scales(ask.tensors))]
        with quiet_optuna() as optuna:
            sampler = self.sampler or optuna.samplers.TPESampler(seed=ask.seed + ask.numbers[0], n_startup_trials=4)
            study = optuna.create_study(sampler=sampler)
            scale = optuna.distributions.FloatDistribution(self.lowest, self.highest, log=True)
            space = dict.fromkeys(names, scale)
            for tried in ask.tried:
                point = dict(zip(names, tried.started.point, strict=True))
                study.add_trial(optuna.trial.create_trial(params=point, distributions=space, value=tried.promised))
            points = [[study.ask(space).params[name] for name in names] for _ in ask.numbers]
        return tuple(
            Started(scaled(ask.own(number), ask.tensors, np.array(point)), tuple(point))
            for number, point in zip(ask.numbers, points, strict=True)
        )
