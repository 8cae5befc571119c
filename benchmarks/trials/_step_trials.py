"""Predictors of whole training steps: a runtime profile fitted to measured steps, from here or from other clusters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from alpa_dejavu.costs.runtime import RuntimeProfile
from fitting import Array, Deviation, fit
from trials._folder import Folder
from trials._steps import Steps, steps_s
from trials._trial_set import MEASURED_S, Columns, Context, Predicted, from_logs

NOISE_FLOOR = 0.02
"""The least noise that is believed: seconds of some sets were written down with two decimals."""


@final
class RuntimeTrials:
    """The planner's own costs and simulation under a runtime profile, which is fitted to measured steps.

    Args:
        described: of a set's rows.
        groups: of each row, for whose like the interval must hold.
        deviations: what steps alike are off a profile by.
        together: keys of sets of the same framework, on whose rows it is fitted, too, unless they are given anyway.
    """

    def __init__(
        self,
        described: Columns,
        groups: Callable[[pd.DataFrame], pd.Series],
        deviations: tuple[Deviation, ...],
        together: Sequence[str] = (),
    ) -> None:
        self._described, self._groups, self._together = described, groups, together
        self._steps = Steps(deviations)

    def fit(self, rows: pd.DataFrame, context: Context) -> RuntimeTrials:
        """Learns the profile and what micro-batches alike are off it by, and the spread from groups left out."""
        self._folder = context.folder
        given = set(rows["cluster"]) if self._together else set()
        others = [context.rows(key) for key in self._together if key not in context.hidden]
        rows = pd.concat([rows, *(one for one in others if one["cluster"][0] not in given)], ignore_index=True)
        known, groups = self._described(rows, context.folder), self._groups(rows).tolist()
        self.fitted = fit(self._steps, known, rows[MEASURED_S].to_numpy(float), groups, floor=NOISE_FLOOR)
        return self

    def predict(self, rows: pd.DataFrame) -> Predicted:
        """Seconds of steps."""
        return from_logs(*self.fitted.predict(self._described(rows, self._folder)))


def elsewhere(
    rows: pd.DataFrame, described: Columns, others: Sequence[tuple[pd.DataFrame, Columns]], folder: Folder
) -> Predicted:
    """Seconds of steps on a cluster that was never seen, under a runtime profile fitted to steps on others alone.

    How far layers' seconds are off goes with where they are from: a kind of profile that no other set has is taken as
    it is. Of a large set some rows count, so that none outweighs the others.
    """
    given = [(some.iloc[:: max(1, len(some) // _MOST)].reset_index(drop=True), columns) for some, columns in others]
    merged = _merged([*(columns(some, folder) for some, columns in given), described(rows, folder)])
    counts = [len(some) for some, _ in given] + [len(rows)]
    source = np.repeat(np.arange(len(counts), dtype=np.float64), counts)
    merged["source"] = source
    seen, seconds = source < len(given), np.concatenate([some[MEASURED_S].to_numpy(float) for some, _ in given])
    fitted = fit(Steps(_UNSEEN), taken(merged, seen), seconds, source[seen].tolist(), floor=NOISE_FLOOR)
    return from_logs(*fitted.predict(taken(merged, ~seen)))


_MOST = 150
_UNSEEN = (
    Deviation("step", {"source": 1e-3, "log_tp": 1.0, "log_micro_batch": 1.0}, 0.15, 0.02),
    Deviation("layers", {"layers_from": 1e-3}, 0.0, 0.3),
)
_SHARED = (
    "device_s", "launches", "counts", "dispatch_s", "collectives_s", "num_collectives", "sends_s", "synchronisation_s",
    "once_s", "num_stages", "num_micro_batches", "log_tp", "log_micro_batch", "layers_from",
)  # fmt: skip


def _merged(several: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
    """Columns of several sets one after the other; axes of stages and kinds of layers are as long as the longest."""
    found = {}
    for name in _SHARED:
        parts = [one[name] for one in several]
        shape = np.max([part.shape[1:] for part in parts], axis=0).astype(int).tolist()
        wide = [
            [(0, 0), *((0, most - size) for most, size in zip(shape, part.shape[1:], strict=True))] for part in parts
        ]
        found[name] = np.concatenate([np.pad(part, more) for part, more in zip(parts, wide, strict=True)])
    return found


def taken(rows: Mapping[str, Array], chosen: NDArray[np.bool_]) -> dict[str, Array]:
    """The columns with some of their rows."""
    return {name: column[chosen] for name, column in rows.items()}


def plain(rows: pd.DataFrame, described: Columns, folder: Folder) -> Array:
    """The plain sum of measured parts: seconds of steps by the planner's costs and simulation, with nothing fitted."""
    return steps_s(RuntimeProfile("none"), described(rows, folder))


def log_columns(rows: pd.DataFrame, *names: str) -> dict[str, Array]:
    """Logarithms of some columns, each under its name after "log_"."""
    return {f"log_{name}": np.log(rows[name].to_numpy(float)) for name in names}
