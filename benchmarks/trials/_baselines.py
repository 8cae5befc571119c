"""Baselines for a learned model, by name, with intervals of their own: conformal, from the errors on groups left out.

The estimators are scikit-learn's: they predict seconds from a table of features, which has the columns `compute_s` and
`traffic_s`, the two sides of a roofline in seconds, and any number of others. They serve operators, collectives and
whole iterations alike.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, RegressorMixin, clone
from sklearn.compose import TransformedTargetRegressor
from sklearn.ensemble import RandomForestRegressor
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import GroupKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.svm import SVR
from sklearn.utils.validation import check_is_fitted

from trials._trial_set import Predicted

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


_LEAST_S = 1e-9
_SVM_ROWS = 1500
_FOREST_ROWS = 5000


@final
class Roofline(RegressorMixin, BaseEstimator):
    """The longer of the two sides; nothing is fitted."""

    def fit(self, X: pd.DataFrame, y: ArrayLike) -> Roofline:
        """Remembers the columns."""
        self.n_features_in_ = X.shape[1]
        return self

    def predict(self, X: pd.DataFrame) -> NDArray[np.float64]:
        """Seconds of each row."""
        check_is_fitted(self)
        return np.maximum(np.maximum(X["compute_s"], X["traffic_s"]).to_numpy(float), _LEAST_S)


@final
class BSP(RegressorMixin, BaseEstimator):
    """Bulk synchronous: computation, then g times communication or memory traffic, with the one parameter g fitted.

    References:
        Valiant, A Bridging Model for Parallel Computation, CACM 33(8), 1990.
    """

    def fit(self, X: pd.DataFrame, y: ArrayLike) -> BSP:
        """The g of the least mean error of logarithms, on a grid of factors of 1.05."""
        self.n_features_in_ = X.shape[1]
        compute, traffic = X["compute_s"].to_numpy(float), X["traffic_s"].to_numpy(float)
        target = np.log(np.asarray(y, float))
        grid = np.exp(np.arange(np.log(1e-2), np.log(1e4), np.log(1.05)))
        errors = [np.abs(np.log(np.maximum(compute + g * traffic, _LEAST_S)) - target).mean() for g in grid]
        self.g_ = float(grid[int(np.argmin(errors))])
        return self

    def predict(self, X: pd.DataFrame) -> NDArray[np.float64]:
        """Seconds of each row."""
        check_is_fitted(self)
        total = X["compute_s"].to_numpy(float) + self.g_ * X["traffic_s"].to_numpy(float)
        return np.maximum(total, _LEAST_S)


@final
class Linear(RegressorMixin, BaseEstimator):
    """Linear regression on the features as they are, as the idea's first sketch did; rows weigh by relative error.

    What it predicts below the least time that it was fitted on is raised to that.
    """

    def fit(self, X: pd.DataFrame, y: ArrayLike) -> Linear:
        """Least squares of relative errors."""
        seconds = np.asarray(y, float)
        self.n_features_in_ = X.shape[1]
        self.model_ = make_pipeline(StandardScaler(), LinearRegression())
        self.model_.fit(X.to_numpy(float), seconds, linearregression__sample_weight=seconds**-2)
        self.least_ = float(seconds.min())
        return self

    def predict(self, X: pd.DataFrame) -> NDArray[np.float64]:
        """Seconds of each row."""
        check_is_fitted(self)
        return np.maximum(self.model_.predict(X.to_numpy(float)), self.least_)


@final
class Subsampled(RegressorMixin, BaseEstimator):
    """An estimator fitted on at most so many rows, drawn at random: for those whose cost grows with the square."""

    def __init__(self, estimator: Any, rows: int = _SVM_ROWS, seed: int = 0) -> None:
        self.estimator = estimator
        self.rows = rows
        self.seed = seed

    def fit(self, X: Any, y: ArrayLike) -> Subsampled:
        """Fits on the rows that were drawn."""
        chosen = np.random.default_rng(self.seed).permutation(len(X))[: self.rows]
        self.n_features_in_ = X.shape[1]
        self.estimator_ = self.estimator.fit(np.asarray(X, float)[chosen], np.asarray(y, float)[chosen])
        return self

    def predict(self, X: Any) -> NDArray[np.float64]:
        """Seconds of each row."""
        check_is_fitted(self)
        return np.asarray(self.estimator_.predict(np.asarray(X, float)))


def baseline(name: str) -> Any:
    """Returns an unfitted baseline: fit(features, seconds), predict(features).

    Raises:
        ValueError: there is none of this name.
    """
    if name not in BASELINES:
        raise ValueError(f"there is no baseline {name!r}; choose one of {', '.join(BASELINES)}")
    return BASELINES[name]()


def _in_logs(regressor: Any) -> Any:
    """Returns a regressor of positive features and seconds that works on their logarithms."""
    pipeline = make_pipeline(FunctionTransformer(_log), StandardScaler(), regressor)
    return TransformedTargetRegressor(pipeline, func=np.log, inverse_func=np.exp, check_inverse=False)


def _log(values: Any) -> NDArray[np.float64]:
    """Returns logarithms that let zeros and negative numbers through: signed, from a picosecond or a millionth up."""
    array = np.asarray(values, float)
    return np.sign(array) * np.log1p(np.abs(array) / 1e-9)


BASELINES: dict[str, Callable[[], Any]] = {
    "roofline": Roofline,
    "linear": Linear,
    "svm": lambda: Subsampled(_in_logs(SVR(C=10.0, epsilon=0.02))),
    "random_forest": lambda: Subsampled(
        _in_logs(RandomForestRegressor(30, min_samples_leaf=2, random_state=0)), _FOREST_ROWS
    ),
    "bsp": BSP,
}
