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
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu.calibration.history._store import Store
from alpa_dejavu.calibration.history.past_run import GIVEN, UNKNOWN, Origin, PastRun, plan_key
from alpa_dejavu.problem import Plan, StagePlan, StepCorrection
from alpa_dejavu.simulation.breakdown import breakdown
from alpa_dejavu.simulation.step import Timeline

Array: TypeAlias = NDArray[np.float64]

CORRECTED_PARTS = ("computing", "collectives", "several stages", "once a step")
VARIANCES = {"part": 0.3**2, "cluster": 0.2**2, "model": 0.1**2, "plan": 0.07**2, "noise": 0.03**2}
"""How far logarithms vary at each level before anything is measured."""
_STRENGTH = 4.0
"""The number of observations that those variances count as."""
_STEPS = 30
_MOST_RUNS = 500
"""So many runs of each kind are learned from, the latest ones."""


def part_shares(plan: Plan) -> Array:
    """Returns the shares of a plan's predicted step that its `CORRECTED_PARTS` take, shape (4,), adding up to 1."""
    parts = breakdown(plan)
    waiting = parts["transfers"] + max(parts["idle"], 0.0)
    once = parts["once a step"] + parts.get("offload", 0.0)
    return _as_shares(parts["computing"], parts["collectives"], waiting, once)


def _as_shares(*seconds: float) -> Array:
    values = np.array(seconds)
    total = float(values.sum())
    return values / total if total > 0 else np.array([1.0, 0.0, 0.0, 0.0])


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Correction:
    """How far predicted steps are off, by past runs: a fit for each combination of devices, models and calibration."""

    _levels: Mapping[tuple[str, str, str], _Levels]

    @classmethod
    def fit(cls, runs: Sequence[PastRun], variances: Mapping[str, float] | None = None) -> Correction:
        """Returns the correction learned from past runs in their order, but for plans of files, or unknown
        calibrations. `variances` are those of the logarithm at each level; None: they are estimated.
        """
        kinds: dict[tuple[str, str, str], list[PastRun]] = {}
        for run in runs:
            if run.origin.predictor != GIVEN and run.origin.calibration != UNKNOWN:
                kinds.setdefault(run.origin.kind, []).append(run)
        return cls({kind: _Levels.fit(of_kind[-_MOST_RUNS:], variances) for kind, of_kind in kinds.items()})

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Correction:
        """Returns the correction that is learned from a history file; ValueError if it can't be read."""
        return cls.fit(Store(path).runs())

    def of(self, origin: Origin, plan: Plan) -> StepCorrection:
        """Returns the factor for a plan's step by predictions of an origin, and how sure it is."""
        return self._of(origin, part_shares(plan), plan_key(plan))

    def typical(self, origin: Origin, plans: Sequence[Plan]) -> StepCorrection:
        """Returns the correction of a plan that hasn't run, whose parts have the average shares of these plans'."""
        return self._of(origin, np.mean([part_shares(plan) for plan in plans], axis=0), "")

    def _of(self, origin: Origin, shares: Array, key: str) -> StepCorrection:
        levels = self._levels.get(origin.kind) or _Levels.fit((), VARIANCES)
        mean, variance = levels.predicted(origin, shares, key)
        own = levels.own_runs[origin.cluster, origin.model]
        return StepCorrection(math.exp(mean), math.sqrt(variance), levels.own_runs.total(), own)


@final
@dataclasses.dataclass(frozen=True, eq=False)
class _Levels:
    """The estimate of one kind: the mean and covariance of all effects, one for each of `columns`."""

    columns: Mapping[tuple[str, ...], int]
    mean: Array
    covariance: Array
    variances: Mapping[str, float]
    own_runs: Counter[tuple[str, str]]

    @classmethod
    def fit(cls, runs: Sequence[PastRun], fixed: Mapping[str, float] | None) -> _Levels:
        keys, logs, shares = _observed(runs)
        effects = [_effects(*key[:3]) for key in keys]
        columns: dict[tuple[str, ...], int] = {("part", part): n for n, part in enumerate(CORRECTED_PARTS)}
        for name in sorted({name for of_row in effects for name in of_row}):
            columns[name] = len(columns)
        design = np.zeros((len(keys), len(columns)))
        design[:, : len(CORRECTED_PARTS)] = shares
        for row, of_row in enumerate(effects):
            design[row, [columns[name] for name in of_row]] = 1.0
        level = np.array([name[0] for name in columns], dtype=np.str_)
        means, counts = np.array([values.mean() for values in logs]), np.array([float(len(values)) for values in logs])
        within = float(sum(((values - values.mean()) ** 2).sum() for values in logs))

        def posterior(variances: Mapping[str, float]) -> tuple[Array, Array]:
            """Returns the mean and the covariance of the effects."""
            weights = counts / variances["noise"]
            prior = np.diag([1 / variances[name] for name in level.tolist()])
            covariance = np.linalg.inv(design.T @ (weights[:, None] * design) + prior)
            return np.asarray(covariance @ (design.T @ (weights * means))), covariance

        variances = dict(VARIANCES if fixed is None else fixed)
        mean, covariance = posterior(variances)
        for _ in range(_STEPS if fixed is None else 0):
            squares = mean**2 + np.diag(covariance)
            for of_what in ("part", "cluster", "model", "plan"):
                of_level = squares[level == of_what]
                total = _STRENGTH * VARIANCES[of_what] + float(of_level.sum())
                variances[of_what] = total / (_STRENGTH + len(of_level))
            missed = (means - design @ mean) ** 2 + ((design @ covariance) * design).sum(axis=1)
            total = _STRENGTH * VARIANCES["noise"] + (float(counts @ missed) + within)
            variances["noise"] = total / (_STRENGTH + float(counts.sum()))
            mean, covariance = posterior(variances)
        own_runs = Counter((run.origin.cluster, run.origin.model) for run in runs)
        return cls(columns, mean, covariance, variances, own_runs)

    def predicted(self, origin: Origin, shares: Array, key: str) -> tuple[float, float]:
        """Returns the mean and variance of log(measured / predicted) of a step; a plan that ran is known by its key."""
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


def _observed(runs: Sequence[PastRun]) -> tuple[list[tuple[str, str, str, bool]], list[Array], Array]:
    """Returns N observations of past runs, of steps and of measured computing: keys (cluster, model, plan, whether of
    computing), logarithms of measured over predicted seconds, and the shares of a step's parts, shape (N, 4).
    """
    logs: dict[tuple[str, str, str, bool], list[float]] = {}
    shares: dict[tuple[str, str, str, bool], Array] = {}
    for run in runs:
        place = run.origin.cluster, run.origin.model, plan_key(run.plan)
        logs.setdefault((*place, False), []).append(float(np.log(run.ratio)))
        shares.setdefault((*place, False), part_shares(run.plan))
        computing = sum(stage.computing_s for stage in run.stages)
        predicted = sum(stage.predicted_computing_s for stage in run.stages)
        if computing > 0 and predicted > 0:
            logs.setdefault((*place, True), []).append(float(np.log(computing / predicted)))
            operators = sum(stage.compute_s for stage in run.plan.stages)
            collectives = sum(stage.collective_s for stage in run.plan.stages)
            shares.setdefault((*place, True), _as_shares(operators, collectives, 0.0, 0.0))
    return list(logs), [np.array(values) for values in logs.values()], np.array(list(shares.values())).reshape(-1, 4)


def corrected(plan: Plan, correction: StepCorrection) -> Plan:
    """Returns the plan with its uncorrected seconds times a correction's factor; by no past run, uncorrected."""
    before = 1.0 if plan.correction is None else plan.correction.factor
    used = correction if correction.runs else None
    factor = (1.0 if used is None else used.factor) / before
    return dataclasses.replace(
        plan,
        stages=_of_stages(plan.stages, factor),
        step_s=plan.step_s * factor,
        lower_bound_s=plan.lower_bound_s * factor,
        confidence=None if plan.confidence is None else plan.confidence.times(factor),
        contingencies={
            # What moves takes as long as it did.
            host: dataclasses.replace(other, stages=_of_stages(other.stages, factor), step_s=other.step_s * factor)
            for host, other in plan.contingencies.items()
        },
        correction=used,
    )


def _of_stages(stages: tuple[StagePlan, ...], factor: float) -> tuple[StagePlan, ...]:
    return tuple(
        dataclasses.replace(stage, drawn=stage.drawn and stage.drawn.times(factor), **_multiplied(stage, factor))
        for stage in stages
    )


def corrected_timeline(timeline: Timeline, factor: float) -> Timeline:
    """Returns the timeline of a training step with all its seconds multiplied by a factor."""
    stages = tuple(dataclasses.replace(stage, **_multiplied(stage, factor)) for stage in timeline.stages)
    return dataclasses.replace(timeline, stages=stages, **_multiplied(timeline, factor))


def _multiplied(of: Any, factor: float) -> dict[str, Any]:
    """Returns the fields of seconds of a dataclass by name, each multiplied."""
    names = [field.name for field in dataclasses.fields(of) if field.name.endswith("_s")]
    return {name: getattr(of, name) * factor for name in names}
