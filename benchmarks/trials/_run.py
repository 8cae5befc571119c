"""A set scored: every group left out in turn, or fitted on one folder and scored on another."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, final

import numpy as np
import pandas as pd
from tqdm import tqdm

from trials._baselines import BASELINES, Baseline, runs_of
from trials._folder import AbsentError, Folder
from trials._score import figures, interval_checks, mean_interval, memory_figures, ranking_figures
from trials._step_trials import elsewhere, plain
from trials._trial_set import MEASURED_BYTES, MEASURED_S, Context, Predicted, Predictor, TrialSet


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Scored:
    """A set's rows in the order of `predicted`, and the figures of our model and of the baselines."""

    rows: pd.DataFrame
    groups: pd.Series
    predicted: Predicted
    result: dict[str, Any]


@final
@dataclasses.dataclass(frozen=True, eq=False)
class _Fold:
    """Rows to fit on with their groups, rows to predict, and their places in the result."""

    train: pd.DataFrame
    train_groups: pd.Series
    test: pd.DataFrame
    places: np.ndarray[Any, np.dtype[np.int64]]


def score(trial: TrialSet, sets: Mapping[str, TrialSet], train: Folder, test: Folder | None) -> Scored | None:
    """A set's figures, or None where it has no rows to score."""
    if test is None and trial.fitted_on:
        return None
    try:
        rows = trial.load(train if test is None else test)
    except AbsentError:
        return None
    if test is not None:
        rows = _unseen(trial, rows, train)
    if rows.empty:
        return None
    context = Context(train, sets, frozenset((trial.key, *trial.same_rows_as)) if test is None else frozenset())
    folds = list(_left_out(trial, rows) if test is None else _kept_back(trial, rows, context))
    makers: dict[str, Callable[[], Predictor | Baseline]] = {"": trial.predictor}
    makers |= {name: _baseline(name) for name in BASELINES}
    results: dict[str, dict[str, Any]] = {}
    for name, make in tqdm(makers.items(), desc=trial.key, leave=False):
        predicted, spent = _predict(trial, make, folds, context, len(rows))
        results[name] = {**_figures(trial, rows, predicted), **spent}
        if not name:
            ours = predicted
    own = results.pop("")
    result = {**own, **interval_checks(own, results["linear"]), "baselines": results}
    if trial.steps is not None:
        result |= _by_parts(trial, rows, context, test is None)
    return Scored(rows, trial.group(rows), ours, result)


def _by_parts(trial: TrialSet, rows: pd.DataFrame, context: Context, left_out: bool) -> dict[str, Any]:
    """Figures of the plain sum of measured parts, and with clusters left out those of a cluster that was never seen."""
    assert trial.steps is not None, "asked of whole steps alone"
    seconds, groups = plain(rows, trial.steps.described, context.folder), trial.group(rows)
    parts = _figures(trial, rows, Predicted(seconds, seconds, seconds))
    for name in ("coverage_90", "width_90", "interval_score"):
        del parts[name]
    off = np.abs(seconds / rows[MEASURED_S].to_numpy(float) - 1)
    found: dict[str, Any] = {"plain": parts | {"mape_interval": mean_interval(off, groups)}}
    if not left_out or not trial.steps.elsewhere:
        return found
    sets = [context.sets[key] for key in trial.steps.elsewhere]
    others = [(one.load(context.folder), one.steps.described) for one in sets if one.steps is not None]
    unseen = _figures(trial, rows, elsewhere(rows, trial.steps.described, others, context.folder))
    most = found["plain"]["mape_interval"][1]
    return found | {"cluster_left_out": unseen | {"at_most_the_plain_sum": bool(unseen["mape"] <= most)}}


def _baseline(name: str) -> Callable[[], Baseline]:
    return lambda: Baseline(name)


def _left_out(trial: TrialSet, rows: pd.DataFrame) -> Iterator[_Fold]:
    groups = trial.group(rows)
    if groups.nunique() < 2:
        raise ValueError(f"{trial.key}: has one group only ({groups.iloc[0]}), so none can be left out; give more rows")
    for name in sorted(groups.unique()):
        held = (groups == name).to_numpy()
        yield _Fold(rows[~held].reset_index(drop=True), groups[~held], rows[held], np.flatnonzero(held))


def _kept_back(trial: TrialSet, rows: pd.DataFrame, context: Context) -> Iterator[_Fold]:
    sources = trial.fitted_on or (trial.key,)
    loaded = [(context.sets[key], context.rows(key)) for key in sources]
    groups = pd.concat([source.group(given) for source, given in loaded], ignore_index=True)
    train = pd.concat([given for _, given in loaded], ignore_index=True)
    yield _Fold(train, groups, rows, np.arange(len(rows)))


def _unseen(trial: TrialSet, rows: pd.DataFrame, train: Folder) -> pd.DataFrame:
    """The rows that aren't among those to fit on."""
    try:
        known = trial.load(train)
    except AbsentError:
        return rows
    shared = [column for column in rows if column in known]
    seen = set(map(tuple, known[shared].astype(str).to_numpy()))
    new = [tuple(row) not in seen for row in rows[shared].astype(str).to_numpy()]
    return rows[new].reset_index(drop=True)


def _predict(
    trial: TrialSet, make: Callable[[], Predictor | Baseline], folds: list[_Fold], context: Context, count: int
) -> tuple[Predicted, dict[str, float]]:
    """All folds' predictions in the order of the rows, and the seconds that they took."""
    parts, fit_s, predict_s = [], 0.0, 0.0
    for fold in folds:
        asked = fold.test.drop(columns=[c for c in (MEASURED_S, MEASURED_BYTES) if c in fold.test])
        asked = asked.reset_index(drop=True)
        started = time.perf_counter()
        model = make()
        if isinstance(model, Baseline):
            given = fold.train.drop(columns=[c for c in (MEASURED_S, MEASURED_BYTES) if c in fold.train])
            model.fit(trial.features(given, context), fold.train[MEASURED_S].to_numpy(float), fold.train_groups)
            fitted = time.perf_counter()
            parts.append(_ported(model, trial.features(asked, context), fold.test[MEASURED_S], trial.group(asked)))
        else:
            model = model.fit(fold.train, context)
            fitted = time.perf_counter()
            parts.append(model.predict(asked))
        fit_s += fitted - started
        predict_s += time.perf_counter() - fitted
    places = np.concatenate([fold.places for fold in folds])
    joined = _joined(trial.key, parts, places)
    return joined, {"fit_s": fit_s / len(folds), "predict_us_per_row": 1e6 * predict_s / count}


def _ported(model: Baseline, features: pd.DataFrame, measured_s: pd.Series, groups: pd.Series) -> Predicted:
    """What is predicted of each group, by its first runs where a baseline is ported by them; of those runs before."""
    found, seconds = model.predict(features), measured_s.to_numpy(float)
    for name in sorted(groups.unique()) if model.num_runs else ():
        places = np.flatnonzero((groups == name).to_numpy())
        runs = runs_of(len(places), model.num_runs)
        if len(runs):
            model.port(features.iloc[places[runs]], seconds[places[runs]])
            rest = np.delete(places, runs)
            after = model.predict(features.iloc[rest])
            for end in ("mean", "lower", "upper"):
                getattr(found, end)[rest] = getattr(after, end)
    return found


def _joined(key: str, parts: list[Predicted], places: np.ndarray[Any, np.dtype[np.int64]]) -> Predicted:
    order = np.argsort(places)
    ends = [np.concatenate([getattr(part, name) for part in parts])[order] for name in ("mean", "lower", "upper")]
    if not all(np.isfinite(end).all() for end in ends) or (ends[0] <= 0).any():
        raise ValueError(f"{key}: predictions aren't all finite and above zero")
    memories = [part.memory for part in parts if part.memory is not None]
    return Predicted(ends[0], ends[1], ends[2], memory=_joined(key, memories, places) if memories else None)


def _figures(trial: TrialSet, rows: pd.DataFrame, predicted: Predicted) -> dict[str, Any]:
    measured = rows[MEASURED_S].to_numpy(float)
    result = figures(measured, predicted, trial.group(rows))
    if trial.job is not None:
        result |= ranking_figures(measured, predicted.mean, trial.job(rows))
    if predicted.memory is not None and MEASURED_BYTES in rows:
        result |= memory_figures(rows[MEASURED_BYTES].to_numpy(float), predicted.memory)
    return result
