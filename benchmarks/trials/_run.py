"""A set predicted and scored."""

from __future__ import annotations

import dataclasses
from typing import Any, final

import numpy as np
import pandas as pd

from trials._folder import AbsentError, Folder
from trials._score import figures, memory_figures, ranking_figures
from trials._trial_set import MEASURED_BYTES, MEASURED_S, Predicted, TrialSet


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Scored:
    """A set's rows in the order of `predicted`, and the figures."""

    rows: pd.DataFrame
    predicted: Predicted
    result: dict[str, Any]


def score(trial: TrialSet, train: Folder, test: Folder | None) -> Scored | None:
    """Predicts the rows of a folder and scores them; None where it has none.

    Args:
        trial: the set.
        train: the folder of profiles of layers, and links; without `test` of the rows, too.
        test: the folder of the rows, without those that are in `train`; None: it is `train`.
    """
    try:
        rows = trial.load(train) if test is None else _unseen(trial, trial.load(test), train)
    except AbsentError:
        return None
    if rows.empty:
        return None
    predicted = trial.predict(rows.drop(columns=[MEASURED_S, MEASURED_BYTES], errors="ignore"), train)
    ends = predicted.mean, predicted.lower, predicted.upper
    if not all(np.isfinite(end).all() for end in ends) or (predicted.mean <= 0).any():
        raise ValueError(f"{trial.key}: predictions aren't all finite and above zero")
    measured = rows[MEASURED_S].to_numpy(float)
    result = {"fitted_to_them": trial.fitted and test is None, **figures(measured, predicted)}
    if trial.job is not None:
        result |= ranking_figures(measured, predicted.mean, trial.job(rows))
    if predicted.memory is not None:
        result |= memory_figures(rows[MEASURED_BYTES].to_numpy(float), predicted.memory)
    return Scored(rows, predicted, result)


def _unseen(trial: TrialSet, rows: pd.DataFrame, train: Folder) -> pd.DataFrame:
    """The rows that aren't in `train`."""
    try:
        known = trial.load(train)
    except AbsentError:
        return rows
    shared = [column for column in rows if column in known]
    seen = set(map(tuple, known[shared].astype(str).to_numpy()))
    new = [tuple(row) not in seen for row in rows[shared].astype(str).to_numpy()]
    return rows[new].reset_index(drop=True)
