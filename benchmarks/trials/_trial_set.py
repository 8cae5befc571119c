"""What a set of measurements is: its rows, and how the planner's default models predict them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from trials._folder import Folder

MEASURED_S, MEASURED_BYTES = "measured_s", "measured_bytes"
"""Columns that hold what was measured, which no prediction sees."""


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Predicted:
    """Predicted seconds of rows and the ends of their 90 % intervals, of shape (rows,), and peak bytes where a set has
    them.
    """

    mean: NDArray[np.float64]
    lower: NDArray[np.float64]
    upper: NDArray[np.float64]
    memory: NDArray[np.float64] | None = None

    @classmethod
    def of(cls, rows: Sequence[tuple[float, float, float]], memory: NDArray[np.float64] | None = None) -> Predicted:
        """Makes it of each row's seconds and ends."""
        mean, lower, upper = np.array(rows, dtype=np.float64).reshape(-1, 3).T
        return cls(mean, lower, upper, memory)


@final
@dataclasses.dataclass(frozen=True)
class TrialSet:
    """A set of measurements.

    Attributes:
        key: its name in the result.
        load: reads the measured rows of a folder, with `measured_s` (and `measured_bytes`), without other columns that
            were measured or that others predicted. It raises AbsentError where the folder has none.
        predict: predicts rows, which lack what was measured; the folder has profiles of single layers, and links.
        job: labels each row with the job whose plans are ranked; None: the rows aren't plans.
        fitted: whether figures of the default models were fitted to the rows of ../shared/data.
    """

    key: str
    load: Callable[[Folder], pd.DataFrame]
    predict: Callable[[pd.DataFrame, Folder], Predicted]
    job: Callable[[pd.DataFrame], pd.Series] | None = None
    fitted: bool = False


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
