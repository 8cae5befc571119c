"""What a set of measurements says of itself, and what a predictor owes: the interfaces between sets and harness."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Protocol, final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from alpa_dejavu._util.normal import REACH_90
from trials._folder import Folder

MEASURED_S, MEASURED_BYTES = "measured_s", "measured_bytes"
"""Columns that hold what was measured: for `fit`, never for `predict`."""


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Predicted:
    """Means and the ends of 90 % intervals, of shape (rows,), in seconds (of `memory`: in bytes)."""

    mean: NDArray[np.float64]
    lower: NDArray[np.float64]
    upper: NDArray[np.float64]
    memory: Predicted | None = None


def from_logs(mean: NDArray[np.float64], spread: NDArray[np.float64], memory: Predicted | None = None) -> Predicted:
    """The medians as means, since errors are scored as shares, with ends as far as the spread says."""
    reach = REACH_90 * spread
    return Predicted(np.exp(mean), np.exp(mean - reach), np.exp(mean + reach), memory)


class Predictor(Protocol):
    """A model of a set's rows."""

    def fit(self, rows: pd.DataFrame, context: Context) -> Predictor:
        """Learns from rows with `measured_s` (and `measured_bytes`), and from what the context gives."""

    def predict(self, rows: pd.DataFrame) -> Predicted:
        """Seconds of rows, which don't have the columns that were measured."""


@final
class Learned:
    """A model of rows that are turned into its own columns, fitted on these rows alone.

    Args:
        model: makes one that isn't fitted, with `fit(columns, seconds, groups)` and `predict(columns)`, which gives
            seconds with their interval.
        columns: of rows.
        groups: of each row, for whose like the model must hold without having seen them.
        chosen: the rows that are fitted on; all, where it isn't given.
    """

    def __init__(
        self,
        model: Callable[[], Any],
        columns: Callable[[pd.DataFrame, Context], Any],
        groups: Callable[[pd.DataFrame], pd.Series],
        chosen: Callable[[pd.DataFrame], pd.DataFrame] = lambda rows: rows,
    ) -> None:
        self._model, self._columns, self._groups, self._chosen = model, columns, groups, chosen

    def fit(self, rows: pd.DataFrame, context: Context) -> Learned:
        """Fits on the rows."""
        rows, self._context = self._chosen(rows), context
        self.model = self._model().fit(self._columns(rows, context), rows[MEASURED_S], self._groups(rows))
        return self

    def predict(self, rows: pd.DataFrame) -> Predicted:
        """Seconds of each row."""
        seconds = self.model.predict(self._columns(rows, self._context))
        return Predicted(seconds.mean, seconds.lower, seconds.upper)


Columns = Callable[[pd.DataFrame, Folder], Mapping[str, NDArray[np.float64]]]
"""Makes the columns of a set's rows of which a model takes what it needs."""


@final
@dataclasses.dataclass(frozen=True)
class StepSet:
    """A set of whole training steps, by which clusters are left out.

    Attributes:
        described: the parts of each row's step, as `trials._steps` has them, from no step on this cluster.
        elsewhere: keys of the sets on whose rows a runtime profile for it is fitted; empty: it isn't left out.
    """

    described: Columns
    elsewhere: tuple[str, ...] = ()


@final
@dataclasses.dataclass(frozen=True)
class TrialSet:
    """A set of measurements and how it is scored.

    Attributes:
        key: of the result.
        load: the measured rows of a folder, with `measured_s` (and `measured_bytes`), without other columns that were
            measured or that others predicted. Raises AbsentError where the folder has none.
        group: of each row, the label of the group that it is left out with.
        predictor: makes our model.
        features: what the baselines get: numbers, among them `compute_s` and `traffic_s`, the two sides of a roofline.
        fitted_on: for a set that is never fitted on: the keys of sets whose rows go to `fit`, in their columns.
        same_rows_as: keys of sets with the same rows in other groups: hidden from the context while this one is scored.
        job: of each row, the label of the job whose plans are ranked; None: the rows aren't plans.
        steps: for whole training steps: how a cluster that was never seen is predicted; None: the rows aren't steps.
        report_only: a reproduction, not a measurement: doesn't count to the pooled coverage.
    """

    key: str
    load: Callable[[Folder], pd.DataFrame]
    group: Callable[[pd.DataFrame], pd.Series]
    predictor: Callable[[], Predictor]
    features: Callable[[pd.DataFrame, Context], pd.DataFrame]
    fitted_on: tuple[str, ...] = ()
    same_rows_as: tuple[str, ...] = ()
    job: Callable[[pd.DataFrame], pd.Series] | None = None
    steps: StepSet | None = None
    report_only: bool = False


@final
@dataclasses.dataclass(frozen=True)
class Context:
    """What a predictor may use besides its rows: the other sets and the data sheets of the folder to fit on.

    Attributes:
        folder: of `--train`; for data sheets, link fits and tables that aren't scored. Not for files of hidden sets.
        sets: by key.
        hidden: keys of sets whose rows are being predicted.
    """

    folder: Folder
    sets: Mapping[str, TrialSet]
    hidden: frozenset[str] = frozenset()

    def rows(self, key: str) -> pd.DataFrame:
        """The measured rows of another set.

        Raises:
            ValueError: it is the set that is being predicted.
        """
        if key in self.hidden:
            raise ValueError(f"{key} is being predicted: its rows come with fit, without the group that is left out")
        return self.sets[key].load(self.folder)


def labels(*columns: str) -> Callable[[pd.DataFrame], pd.Series]:
    """A grouping by the values of some columns: 'tp=2,dp=4'.

    >>> labels("tp", "dp")(pd.DataFrame({"tp": [1.0, 2.0], "dp": [4, 4]})).tolist()
    ['tp=1,dp=4', 'tp=2,dp=4']
    """

    def label(row: tuple[object, ...]) -> str:
        return ",".join(f"{name}={_short(value)}" for name, value in zip(columns, row, strict=True))

    def group(rows: pd.DataFrame) -> pd.Series:
        values = rows[list(columns)].itertuples(index=False, name=None)
        return pd.Series([label(row) for row in values], index=rows.index, dtype=object)

    return group


def _short(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
