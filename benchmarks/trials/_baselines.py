"""The named baselines with intervals of their own: conformal, from the errors on groups that were left out."""

from __future__ import annotations

from typing import final

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.model_selection import GroupKFold

from alpa_dejavu.costs.latency.baselines import BASELINES, baseline
from trials._trial_set import Predicted

__all__ = ["BASELINES", "Baseline"]

_FOLDS = 5


@final
class Baseline:
    """A baseline of a name on a set's features. Its 90 % interval is a factor each way, from errors on unseen groups.

    References:
        Barber, Candès, Ramdas and Tibshirani, Predictive Inference with the Jackknife+, Ann. Stat. 49(1), 2021.
    """

    def __init__(self, name: str) -> None:
        self._model = baseline(name)
        self._factors = (1.0, 1.0)

    def fit(self, features: pd.DataFrame, seconds: NDArray[np.float64], groups: pd.Series) -> Baseline:
        """Fits on all rows, after learning its errors on groups that a fit hadn't seen."""
        folds = min(_FOLDS, groups.nunique())
        errors = []
        if folds > 1:
            for fitted, held in GroupKFold(folds).split(features, groups=groups.to_numpy()):
                model = clone(self._model).fit(features.iloc[fitted], seconds[fitted])
                errors.append(np.log(seconds[held] / model.predict(features.iloc[held])))
        self._model.fit(features, seconds)
        if not errors:
            errors = [np.log(seconds / self._model.predict(features))]
        share = min(1.0, 0.9 * (1 + 1 / len(seconds)))
        low, high = np.quantile(np.concatenate(errors), [(1 - share) / 2, (1 + share) / 2])
        self._factors = (float(np.exp(min(low, 0.0))), float(np.exp(max(high, 0.0))))
        return self

    def predict(self, features: pd.DataFrame) -> Predicted:
        """Seconds of rows of features."""
        mean = self._model.predict(features)
        return Predicted(mean, mean * self._factors[0], mean * self._factors[1])
