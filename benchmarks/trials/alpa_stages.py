"""Stages of GPT-1.3B as Alpa's HLO cost model prices them: a model is reproduced, nothing was measured; report only."""

from __future__ import annotations

from typing import final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fitting import fit
from trials._alpa_stage import AlpaStage, AlpaStagePeak
from trials._folder import Folder, measured
from trials._trial_set import MEASURED_BYTES, MEASURED_S, Context, Predicted, TrialSet, from_logs, labels

_PATH = "alpa-gpt-1.3b-stages/stages.csv"
_PLACES = ("num_layers", "num_micro_batches", "first_layer", "last_layer", "submesh_id", "autosharding_config_id")
_TIMES, _PEAKS = ("forward_s", "backward_s"), ("forward_peak_bytes", "backward_peak_bytes")
_BLOCKS, _HIDDEN, _TOKENS, _VOCABULARY, _SAMPLES = 24, 2048, 1024, 51200, 1024
_TENSOR_PARALLEL = {(0, 0): 1, (0, 1): 1, (1, 0): 1, (1, 1): 2, (1, 2): 1, (2, 0): 1, (2, 1): 2, (2, 2): 4, (2, 3): 1}
"""Of Alpa's (submesh, logical mesh); the last of each submesh leaves the division to the solver, which divides data."""
_FLOP_PER_S, _MEMORY_BYTES_PER_S = 125e12, 900e9
"""Of a V100, by its data sheet."""
_NOISE_FLOOR = 0.02

_group = labels("run")


def columns(rows: pd.DataFrame) -> dict[str, NDArray[np.float64]]:
    """Rows as `AlpaStage` and `AlpaStagePeak` know them."""
    of = {name: rows[name].to_numpy(float) for name in _PLACES}
    layers = of["last_layer"] - of["first_layer"] + 1
    blocks = layers * _BLOCKS / of["num_layers"]
    ends = (of["first_layer"] == 0).astype(float), (of["last_layer"] == of["num_layers"] - 1).astype(float)
    tp = np.array(
        [
            _TENSOR_PARALLEL.get((int(s), int(c)), 1)
            for s, c in zip(of["submesh_id"], of["autosharding_config_id"], strict=True)
        ],
        dtype=np.float64,
    )
    known = {
        "samples": _SAMPLES / of["num_micro_batches"],
        "tokens": np.full(len(rows), float(_TOKENS)),
        "hidden": np.full(len(rows), float(_HIDDEN)),
        "vocabulary": np.full(len(rows), float(_VOCABULARY)),
        "blocks": blocks,
        "blocks_per_layer": _BLOCKS / of["num_layers"],
        "layers": layers,
        "heads": ends[1],
        "parameters": blocks * 12 * _HIDDEN**2 + np.maximum(*ends) * _VOCABULARY * _HIDDEN,
        "tp": tp,
        "dp": 2 ** of["submesh_id"] / tp,
    }
    return known | {f"log_{name}": np.log(known[name]) for name in ("samples", "tp", "dp")}


@final
class StageTrials:
    """`AlpaStage` and `AlpaStagePeak`, their spread from submeshes and divisions that are left out."""

    def fit(self, rows: pd.DataFrame, context: Context) -> StageTrials:
        """Learns the parameters of both."""
        known = columns(rows)
        groups = labels("submesh_id", "autosharding_config_id", "num_micro_batches")(rows).tolist()
        self.time = fit(AlpaStage(), known, rows[MEASURED_S].to_numpy(float), groups, floor=_NOISE_FLOOR)
        self.memory = fit(AlpaStagePeak(), known, rows[MEASURED_BYTES].to_numpy(float), groups, floor=_NOISE_FLOOR)
        return self

    def predict(self, rows: pd.DataFrame) -> Predicted:
        """Seconds of a micro-batch and peak bytes of a device."""
        known = columns(rows)
        return from_logs(*self.time.predict(known), from_logs(*self.memory.predict(known)))


def _features(rows: pd.DataFrame, context: Context) -> pd.DataFrame:
    """The stage, and both sides of a roofline of its work."""
    of = columns(rows)
    devices = of["tp"] * of["dp"]
    tokens = of["samples"] * _TOKENS
    flop = 8 * tokens * (of["blocks"] * 12 * _HIDDEN**2 + of["heads"] * _VOCABULARY * _HIDDEN)
    return pd.DataFrame(
        {
            "compute_s": flop / devices / _FLOP_PER_S,
            "traffic_s": 36 * 2 * tokens * _HIDDEN * of["blocks"] / devices / _MEMORY_BYTES_PER_S,
            **{name: of[name] for name in ("samples", "blocks", "blocks_per_layer", "heads", "tp", "dp", "parameters")},
        }
    )


def _load(folder: Folder) -> pd.DataFrame:
    rows = folder.table(_PATH, ["run"], [*_PLACES, *_TIMES, *_PEAKS])
    rows = measured(rows, [*_TIMES, *_PEAKS], _PATH)
    rows[MEASURED_S] = rows[list(_TIMES)].sum(axis=1)
    rows[MEASURED_BYTES] = rows[list(_PEAKS)].max(axis=1)
    return rows[["run", *_PLACES, MEASURED_S, MEASURED_BYTES]]


SETS = (TrialSet("alpa-gpt-1.3b-stages/stages", _load, _group, StageTrials, _features, report_only=True),)
