"""Factors for predicted steps, learned from past runs and shrunk to 1 where few were measured.

One factor for a model on a cluster would make every plan longer or shorter alike, and so change no choice. What differs
between plans is where their time goes: if part i takes the share p_i of a predicted step and really takes f_i times as
long, log(measured / predicted) is about the sum of p_i log f_i. So the parts of a step have a factor each, which all
clusters of a kind of device share: computing, collectives, what only several stages have (transfers and waiting), and
what comes once a step. On top are what a cluster, a model on it and a single plan have of their own, and noise. Where
a run's stages were measured, their computing is an observation too, of the first two parts alone.

Everything is normal in logarithms with mean 0, so the estimate is a ridge regression in closed form; how far each level
varies is estimated along with it, from a prior that counts as much as a few observations.

References:
    Gelman and Hill, Data Analysis Using Regression and Multilevel/Hierarchical Models, 2007, chapters 12 and 18.
    Dempster, Rubin and Tsutakawa, Estimation in Covariance Components Models, JASA 76(374), 1981 (the EM steps).
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu.calibration.history._store import Store
from alpa_dejavu.calibration.history.past_run import GIVEN, UNKNOWN, Origin, PastRun, plan_key
from alpa_dejavu.problem import Plan, StepCorrection
from alpa_dejavu.simulation.breakdown import breakdown

CORRECTED_PARTS = ("computing", "collectives", "several stages", "once a step")
VARIANCES = {"part": 0.3**2, "cluster": 0.2**2, "model": 0.1**2, "plan": 0.07**2, "noise": 0.03**2}
"""How far logarithms vary at each level before anything is measured."""
_STRENGTH = 4.0
"""The number of observations that those variances count as."""
_STEPS = 30
_MOST_RUNS = 500
"""So many runs of each kind are learned from, the latest ones."""


def part_shares(plan: Plan) -> Array:
    """Returns the shares of a plan's predicted step that computing, collectives, what only several stages have
    (transfers and waiting), and what comes once a step take, shape (4,), adding up to 1.
    """
    parts = breakdown(plan)
    waiting = parts["transfers"] + max(parts["idle"], 0.0)
    once = parts["once a step"] + parts.get("offload", 0.0)
    seconds = np.array([parts["computing"], parts["collectives"], waiting, once])
    total = float(seconds.sum())
    return seconds / total if total > 0 else np.array([1.0, 0.0, 0.0, 0.0])


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Correction:
    """A model of how far the predicted seconds of training steps are off, fitted to past runs: one fit for each
    combination of kinds of devices, cost models and calibration.
    """

    _levels: Mapping[tuple[str, str, str], _Levels]

    @classmethod
    def fit(cls, runs: Sequence[PastRun], variances: Mapping[str, float] | None = None) -> Correction:
        """Returns the correction of predicted steps that is learned from past runs.

        Args:
            runs: the past runs in the order in which they ran. Those of plans that were read from files, and of unknown
                calibrations, are left out: what predicted them isn't known.
            variances: the variance of the logarithm at each level ("part", "cluster", "model", "plan", "noise"), taken
                as it is; None: they are estimated.
        """
        kinds: dict[tuple[str, str, str], list[PastRun]] = {}
        for run in runs:
            if run.origin.predictor != GIVEN and run.origin.calibration != UNKNOWN:
                kinds.setdefault(run.origin.kind, []).append(run)
        return cls({kind: _Levels.fit(of_kind[-_MOST_RUNS:], variances) for kind, of_kind in kinds.items()})

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Correction:
        """Returns the correction of predicted steps that is learned from the runs in a history file.

        Raises:
            ValueError: the file isn't a history that can be read.
        """
        return cls.fit(Store(path).runs())

    def of(self, origin: Origin, plan: Plan) -> StepCorrection:
        """Returns the factor by which a plan's predicted step is corrected, and how sure it is, for predictions of an
        origin (model, cluster and cost models); the plan may have run before or not.
        """
        return self._of(origin, part_shares(plan), plan_key(plan))

    def typical(self, origin: Origin, plans: Sequence[Plan]) -> StepCorrection:
        """Returns the correction of the predicted step of a plan that hasn't run, if computing, collectives, transfers
        and what comes once a step have the average shares of these plans' in it.
        """
        return self._of(origin, np.mean([part_shares(plan) for plan in plans], axis=0), "")

    def _of(self, origin: Origin, shares: Array, key: str) -> StepCorrection:
        levels = self._levels.get(origin.kind)
        if levels is None:
            return StepCorrection(1.0, _spread_of_nothing(shares), 0, 0)
        mean, variance = levels.predicted(origin, shares, key)
        own = levels.own_runs.get((origin.cluster, origin.model), 0)
        return StepCorrection(math.exp(mean), math.sqrt(variance), levels.runs, own)


def _spread_of_nothing(shares: Array) -> float:
    others = sum(VARIANCES[level] for level in ("cluster", "model", "plan", "noise"))
    return math.sqrt(VARIANCES["part"] * float((shares**2).sum()) + others)


@final
@dataclasses.dataclass(frozen=True, eq=False)
class _Levels:
    """The estimate of one kind: the mean and covariance of all effects."""

    columns: Mapping[tuple[str, ...], int]
    mean: Array
    covariance: Array
    variances: Mapping[str, float]
    runs: int
    own_runs: Mapping[tuple[str, str], int]

    @classmethod
    def fit(cls, runs: Sequence[PastRun], given: Mapping[str, float] | None) -> _Levels:
        seen = observations(runs, part_shares)
        columns: dict[tuple[str, ...], int] = {("part", part): n for n, part in enumerate(CORRECTED_PARTS)}
        names = [_effects(*each) for each in seen.places]
        for name in sorted({name for of_row in names for name in of_row}):
            columns[name] = len(columns)
        design = np.zeros((len(names), len(columns)))
        design[:, : len(CORRECTED_PARTS)] = seen.shares
        for row, of_row in enumerate(names):
            design[row, [columns[name] for name in of_row]] = 1.0
        level = np.array([name[0] for name in columns], dtype=np.str_)
        variances = dict(VARIANCES if given is None else given)
        mean, covariance = _posterior(design, seen, level, variances)
        for _ in range(_STEPS if given is None else 0):
            variances = _re_estimated(design, seen, level, mean, covariance)
            mean, covariance = _posterior(design, seen, level, variances)
        own: dict[tuple[str, str], int] = {}
        for run in runs:
            where = run.origin.cluster, run.origin.model
            own[where] = own.get(where, 0) + 1
        return cls(columns, mean, covariance, variances, len(runs), own)

    def predicted(self, origin: Origin, shares: Array, key: str) -> tuple[float, float]:
        """Returns the mean and variance of log(measured / predicted) of a plan's step in a run to come.

        Args:
            origin: the model, cluster and cost models of the prediction.
            shares: the shares of the step's parts (`CORRECTED_PARTS`), shape (4,).
            key: the plan's key, by which it is recognised if it ran before.
        """
        row, unknown = np.zeros(len(self.columns)), self.variances["noise"]
        row[: len(CORRECTED_PARTS)] = shares
        for name in _effects(origin.cluster, origin.model, key):
            if name in self.columns:
                row[self.columns[name]] = 1.0
            else:
                unknown += self.variances[name[0]]
        return float(row @ self.mean), max(float(row @ self.covariance @ row), 0.0) + unknown


def _effects(cluster: str, model: str, key: str) -> tuple[tuple[str, ...], ...]:
    return ("cluster", cluster), ("model", cluster, model), ("plan", cluster, model, key)


def _posterior(
    design: Array, seen: Observations, level: NDArray[np.str_], variances: Mapping[str, float]
) -> tuple[Array, Array]:
    """Mean and covariance of the effects."""
    weights = seen.counts / variances["noise"]
    prior = np.diag([1 / variances[name] for name in level.tolist()])
    covariance = np.linalg.inv(design.T @ (weights[:, None] * design) + prior)
    return np.asarray(covariance @ (design.T @ (weights * seen.log_ratio))), covariance


def _re_estimated(
    design: Array, seen: Observations, level: NDArray[np.str_], mean: Array, covariance: Array
) -> dict[str, float]:
    """The variances by one step of EM."""
    squares = mean**2 + np.diag(covariance)
    found = {}
    for name in ("part", "cluster", "model", "plan"):
        of_level = squares[level == name]
        found[name] = (_STRENGTH * VARIANCES[name] + float(of_level.sum())) / (_STRENGTH + len(of_level))
    missed = (seen.log_ratio - design @ mean) ** 2 + ((design @ covariance) * design).sum(axis=1)
    within = float(seen.counts @ missed) + seen.squares_within
    found["noise"] = (_STRENGTH * VARIANCES["noise"] + within) / (_STRENGTH + float(seen.counts.sum()))
    return found


Array = NDArray[np.float64]


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Observations:
    """The N observations of past runs that a correction is fitted to: logarithms of measured over predicted seconds.

    Attributes:
        log_ratio: these logarithms, shape (N,), each the mean over the runs of a plan.
        counts: how many runs each is the mean of, shape (N,).
        shares: the shares of the parts of a step (computing, collectives, what only several stages have, what comes
            once a step) in the predicted seconds, shape (N, 4).
        places: the keys of the cluster, the model and the plan of each observation.
        squares_within: the sum over runs of squared differences to their plan's mean.
    """

    log_ratio: Array
    counts: Array
    shares: Array
    places: tuple[tuple[str, str, str], ...]
    squares_within: float


def observations(runs: Sequence[PastRun], shares_of: Callable[[Plan], Array]) -> Observations:
    """Returns the logarithms of measured over predicted seconds of past runs, averaged by plan: of whole steps, and of
    the computing of stages where that was measured; `shares_of` gives the shares of the parts of a plan's step.
    """
    found: dict[tuple[str, str, str, bool], list[float]] = {}
    shares: dict[tuple[str, str, str, bool], Array] = {}
    for run in runs:
        place = run.origin.cluster, run.origin.model, plan_key(run.plan)
        found.setdefault((*place, False), []).append(float(np.log(run.ratio)))
        shares.setdefault((*place, False), shares_of(run.plan))
        computing = sum(stage.computing_s for stage in run.stages)
        predicted = sum(stage.predicted_computing_s for stage in run.stages)
        if computing > 0 and predicted > 0:
            found.setdefault((*place, True), []).append(float(np.log(computing / predicted)))
            shares.setdefault((*place, True), _of_computing(run.plan))
    ratios = [np.array(each) for each in found.values()]
    return Observations(
        log_ratio=np.array([each.mean() for each in ratios]),
        counts=np.array([float(len(each)) for each in ratios]),
        shares=np.array([shares[key] for key in found]),
        places=tuple(key[:3] for key in found),
        squares_within=float(sum(((each - each.mean()) ** 2).sum() for each in ratios)),
    )


def _of_computing(plan: Plan) -> Array:
    """Returns which shares of the stages' computing are operators and collectives, shape (4,): by parts of a step."""
    operators = sum(stage.compute_s for stage in plan.stages)
    collectives = sum(stage.collective_s for stage in plan.stages)
    total = operators + collectives
    return np.array([operators, collectives, 0.0, 0.0]) / total if total > 0 else np.array([1.0, 0.0, 0.0, 0.0])
