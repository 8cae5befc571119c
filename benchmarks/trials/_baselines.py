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
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.optimize import nnls
from scipy.spatial.distance import squareform
from scipy.stats import rankdata
from sklearn.base import BaseEstimator, RegressorMixin, clone
from sklearn.compose import TransformedTargetRegressor
from sklearn.ensemble import RandomForestRegressor
from sklearn.feature_selection import SelectorMixin
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
                runs = runs_of(len(held), self.num_runs)
                if len(runs):
                    model.port(features.iloc[held[runs]], seconds[held[runs]])
                left = np.delete(held, runs)
                errors.append(np.log(seconds[left] / model.predict(features.iloc[left])))
        self._model.fit(features, seconds)
        if not errors:
            errors = [np.log(seconds / self._model.predict(features))]
        share = min(1.0, 0.9 * (1 + 1 / len(seconds)))
        low, high = np.quantile(np.concatenate(errors), [(1 - share) / 2, (1 + share) / 2])
        self._factors = (float(np.exp(min(low, 0.0))), float(np.exp(max(high, 0.0))))
        return self

    @property
    def num_runs(self) -> int:
        """How many runs of a group that it hasn't seen it is ported by; 0: none."""
        return _RUNS if hasattr(self._model, "port") else 0

    def port(self, features: pd.DataFrame, seconds: NDArray[np.float64]) -> None:
        """Ports it to a group that it hasn't seen by a few runs of it."""
        self._model.port(features, seconds)

    def predict(self, features: pd.DataFrame) -> Predicted:
        """Seconds of rows of features."""
        mean = self._model.predict(features)
        return Predicted(mean, mean * self._factors[0], mean * self._factors[1])


def runs_of(count: int, num_runs: int) -> NDArray[np.int64]:
    """The places of the runs, among so many rows, that a baseline is ported by: none of few rows."""
    return np.random.default_rng(0).permutation(count)[: num_runs if count >= 2 * num_runs else 0]


_RUNS = 10
_LEAST_S = 1e-9
_SVM_ROWS = 1500
_FOREST_ROWS = 5000
_SAME = 0.95
"""Features of at least this correlation of ranks are the same."""


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
class WholeBSP(RegressorMixin, BaseEstimator):
    """Bulk synchronous: lambda times the sum of computation and communication or memory traffic, lambda fitted.

    References:
        Valiant, A Bridging Model for Parallel Computation, CACM 33(8), 1990.
    """

    def fit(self, X: pd.DataFrame, y: ArrayLike) -> WholeBSP:
        """The lambda of the least mean error of logarithms, which is a median."""
        self.n_features_in_ = X.shape[1]
        self.lambda_ = float(np.exp(np.median(np.log(np.asarray(y, float) / self._sum(X)))))
        return self

    def predict(self, X: pd.DataFrame) -> NDArray[np.float64]:
        """Seconds of each row."""
        check_is_fitted(self)
        return np.maximum(self.lambda_ * self._sum(X), _LEAST_S)

    @staticmethod
    def _sum(X: pd.DataFrame) -> NDArray[np.float64]:
        return np.maximum((X["compute_s"] + X["traffic_s"]).to_numpy(float), _LEAST_S)


@final
class ChosenFeatures(SelectorMixin, BaseEstimator):
    """A few of the features: of those that are nearly the same one is kept, the rest are clustered by their
    correlation, and of each cluster the feature is taken that goes with the target most.
    """

    def __init__(self, count: int = 10) -> None:
        self.count = count

    def fit(self, X: ArrayLike, y: ArrayLike) -> ChosenFeatures:
        """Chooses them by ranks, so that logarithms or none are the same."""
        features = np.asarray(X, float)
        self.n_features_in_ = features.shape[1]
        with np.errstate(invalid="ignore", divide="ignore"):
            ranks = rankdata(np.column_stack([features, np.asarray(y, float)]), axis=0)
            found = np.abs(np.nan_to_num(np.corrcoef(ranks, rowvar=False)))
        alike, of_target = found[:-1, :-1], found[:-1, -1]
        kept: list[int] = []
        for n in np.argsort(-of_target, kind="stable").tolist():
            if all(alike[n, other] < _SAME for other in kept):
                kept.append(n)
        distances = squareform(1 - alike[np.ix_(kept, kept)], checks=False)
        some = len(kept) > self.count
        clusters = fcluster(linkage(distances, "average"), self.count, "maxclust") if some else np.arange(len(kept))
        self.support_ = np.zeros(self.n_features_in_, dtype=bool)
        # They are in the order of their worth: the first of a cluster is its best.
        self.support_[[kept[int(np.argmax(clusters == one))] for one in np.unique(clusters)]] = True
        return self

    def _get_support_mask(self) -> NDArray[np.bool_]:
        check_is_fitted(self)
        return self.support_


@final
class TwoStage(RegressorMixin, BaseEstimator):
    """Reached rates first, then seconds: a forest predicts the share of the roofline that is reached, and seconds are a
    start and a factor times the work at that rate. A few runs of a new group give it a start and a factor of its own.
    """

    def fit(self, X: pd.DataFrame, y: ArrayLike) -> TwoStage:
        """The forest on the shares, then the start and the factor."""
        self.n_features_in_ = X.shape[1]
        seconds = np.asarray(y, float)
        self.rates_ = Subsampled(_forest(), _FOREST_ROWS).fit(_log(X), np.log(seconds / _roofline_s(X)))
        return self.port(X, seconds)

    def port(self, X: pd.DataFrame, y: ArrayLike) -> TwoStage:
        """The start and the factor again, by relative errors."""
        seconds = np.asarray(y, float)
        sides = np.column_stack([np.ones(len(seconds)), self._at_rate_s(X)]) / seconds[:, None]
        found, _ = nnls(sides, np.ones(len(seconds)))
        self.start_s_, self.factor_ = found.tolist()
        return self

    def predict(self, X: pd.DataFrame) -> NDArray[np.float64]:
        """Seconds of each row."""
        check_is_fitted(self)
        return np.maximum(self.start_s_ + self.factor_ * self._at_rate_s(X), _LEAST_S)

    def _at_rate_s(self, X: pd.DataFrame) -> NDArray[np.float64]:
        return _roofline_s(X) * np.exp(self.rates_.predict(_log(X)))


def _roofline_s(X: pd.DataFrame) -> NDArray[np.float64]:
    return Roofline().fit(X, []).predict(X)


def _forest() -> RandomForestRegressor:
    return RandomForestRegressor(30, min_samples_leaf=2, random_state=0)


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


def _in_logs(*steps: Any) -> Any:
    """Returns a regressor of positive features and seconds whose steps work on their logarithms."""
    pipeline = make_pipeline(FunctionTransformer(_log), StandardScaler(), *steps)
    return TransformedTargetRegressor(pipeline, func=np.log, inverse_func=np.exp, check_inverse=False)


def _log(values: Any) -> NDArray[np.float64]:
    """Returns logarithms that let zeros and negative numbers through: signed, from a picosecond or a millionth up."""
    array = np.asarray(values, float)
    return np.sign(array) * np.log1p(np.abs(array) / 1e-9)


BASELINES: dict[str, Callable[[], Any]] = {
    "roofline": Roofline,
    "linear": Linear,
    "svm": lambda: Subsampled(_in_logs(SVR(C=10.0, epsilon=0.02))),
    "random_forest": lambda: Subsampled(_in_logs(_forest()), _FOREST_ROWS),
    "forest_of_5": lambda: Subsampled(_in_logs(ChosenFeatures(5), _forest()), _FOREST_ROWS),
    "forest_of_10": lambda: Subsampled(_in_logs(ChosenFeatures(10), _forest()), _FOREST_ROWS),
    "two_stage": TwoStage,
    "bsp": BSP,
    "bsp_whole": WholeBSP,
}
