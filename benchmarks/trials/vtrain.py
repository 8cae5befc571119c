"""Whole iterations of GPTs under Megatron-LM on A100s (vTrain): on one host and, kept back, on many."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from alpa_dejavu.costs.iteration import fit
from alpa_dejavu.costs.iteration.frameworks import Machine, MegatronIteration, RingAllReduce
from trials._folder import Folder, measured
from trials._trial_set import MEASURED_S, Context, Predicted, TrialSet, from_logs, labels

_NUMBERS = ("global_batch", "micro_batch", "hidden", "heads", "layers", "seq_len", "tp", "dp", "pp")
_LOGS = ("hidden", "tp", "dp", "micro_batch")
_VOCABULARY = 51200
_FLOP_PER_S, _MEMORY_BYTES_PER_S, _MEMORY_BYTES = 312e12, 2.039e12, 80e9
"""Of an A100-SXM4-80GB, by its data sheet; the largest models of the set don't fit the one with 40 GB."""
_DEVICES_PER_HOST, _BETWEEN_HOSTS_BYTES_PER_S = 8, 800e9 / 8

_division = labels("tp", "dp", "pp")


def columns(rows: pd.DataFrame) -> dict[str, NDArray[np.float64]]:
    """Rows as `MegatronIteration` knows them."""
    known = {name: rows[name].to_numpy(float) for name in _NUMBERS}
    known["num_micro_batches"] = np.maximum(known["global_batch"] / known["micro_batch"] / known["dp"], 1.0)
    return known | {f"log_{name}": np.log(known[name]) for name in _LOGS}


@final
class MegatronTrials:
    """`MegatronIteration` on the hosts' data sheet and the all-reduces that were measured inside one."""

    def fit(self, rows: pd.DataFrame, context: Context) -> MegatronTrials:
        """Learns the parameters, and the spread from divisions that are left out."""
        machine = Machine(
            _FLOP_PER_S,
            _MEMORY_BYTES_PER_S,
            _MEMORY_BYTES,
            _DEVICES_PER_HOST,
            _BETWEEN_HOSTS_BYTES_PER_S,
            _all_reduce(context.folder),
        )
        physics = MegatronIteration(machine, _VOCABULARY)
        self.fitted = fit(physics, columns(rows), rows[MEASURED_S].to_numpy(float), _division(rows).tolist())
        return self

    def predict(self, rows: pd.DataFrame) -> Predicted:
        """Seconds of iterations."""
        return from_logs(*self.fitted.predict(columns(rows)))


@functools.cache
def _all_reduce(folder: Folder) -> RingAllReduce:
    rows = folder.table("vtrain-a100/all_reduce_a100_intra_node.csv", [], ["num_gpus", "bytes", "time_s"])
    rows = measured(rows, ["time_s"], "all-reduces on A100")
    return RingAllReduce.fit(*(rows[name].to_numpy(float) for name in ("bytes", "num_gpus", "time_s")))


def _features(rows: pd.DataFrame, context: Context) -> pd.DataFrame:
    """The plan, and both sides of a roofline of one device's work."""
    of = columns(rows)
    tokens = of["global_batch"] * of["seq_len"]
    parameters = of["layers"] * 12 * of["hidden"] ** 2 + _VOCABULARY * of["hidden"]
    attention = 12 * of["layers"] * of["hidden"] * of["seq_len"]
    devices = of["tp"] * of["dp"] * of["pp"]
    filled = of["num_micro_batches"] / (of["num_micro_batches"] + of["pp"] - 1)
    moved = 36 * of["layers"] * tokens * of["hidden"] * 2
    return pd.DataFrame(
        {
            "compute_s": tokens * (6 * parameters + attention) / devices / filled / _FLOP_PER_S,
            "traffic_s": moved / devices / filled / _MEMORY_BYTES_PER_S,
            "parameters": parameters,
            **{name: of[name] for name in (*_NUMBERS, "num_micro_batches")},
        }
    )


def _loader(name: str) -> Callable[[Folder], pd.DataFrame]:
    def load(folder: Folder) -> pd.DataFrame:
        path = f"vtrain-a100/{name}.csv"
        rows = measured(folder.table(path, [], [*_NUMBERS, "iteration_s"], counts=_NUMBERS), ["iteration_s"], path)
        return rows.rename(columns={"iteration_s": MEASURED_S})[[*_NUMBERS, MEASURED_S]]

    return load


_ONE, _BY_HIDDEN = "vtrain-a100/single_node", "vtrain-a100/single_node:by_hidden"

SETS = (
    TrialSet(_ONE, _loader("single_node"), _division, MegatronTrials, _features, same_rows_as=(_BY_HIDDEN,)),
    TrialSet(_BY_HIDDEN, _loader("single_node"), labels("hidden"), MegatronTrials, _features, same_rows_as=(_ONE,)),
    TrialSet(
        "vtrain-a100/multi_node", _loader("multi_node"), labels("hidden"), MegatronTrials, _features, fitted_on=(_ONE,)
    ),
)
