"""Whole iterations and peaks of memory of plans (Sailor): on GH200 and, kept back, on nodes of mixed RTX cards."""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import numpy as np
import pandas as pd

from fitting import Deviation, fit
from trials._folder import Folder, UnreadableError, measured
from trials._sailor_columns import described, kept
from trials._sailor_memory import PeakMemory
from trials._sailor_parts import GPUS, NUM_LAYERS, SEQUENCE
from trials._step_trials import NOISE_FLOOR, RuntimeTrials
from trials._trial_set import MEASURED_BYTES, MEASURED_S, Context, Predicted, StepSet, TrialSet, from_logs, labels

_log = logging.getLogger(__name__)
_FLOP_PER_S, _MEMORY_BYTES_PER_S = 67e12, 4e12
"""Of a GH200 in single precision; a baseline on other cards has the same yardstick."""

_DEVIATIONS = (Deviation("step", {"log_micro_batch": 1.0, "log_pp": 1.0, "model": 1.0}, 0.05, 0.01),)

_OTHERS = ("amp/homogeneous_trials", "amp/het_model_trials", "vtrain-a100/single_node")

_group = labels("model", "nodes")


@final
class PipelineTrials:
    """The planner's costs under a fitted runtime profile, and `PeakMemory`."""

    def fit(self, rows: pd.DataFrame, context: Context) -> PipelineTrials:
        """Learns both, and their spread from (model, nodes) that are left out."""
        self._folder = context.folder
        self._time = RuntimeTrials(described, _group, _DEVIATIONS).fit(rows, context)
        self.model = self._time.fitted
        peaks = rows[rows[MEASURED_BYTES] > 0].reset_index(drop=True)
        known, groups = kept(peaks, context.folder), _group(peaks).tolist()
        self.memory = fit(PeakMemory(), known, peaks[MEASURED_BYTES].to_numpy(float), groups, floor=NOISE_FLOOR)
        return self

    def predict(self, rows: pd.DataFrame) -> Predicted:
        """Seconds of iterations and bytes of the fullest device."""
        peak = from_logs(*self.memory.predict(kept(rows, self._folder)))
        return dataclasses.replace(self._time.predict(rows), memory=peak)


def _features(rows: pd.DataFrame, context: Context) -> pd.DataFrame:
    """The plan, and both sides of a roofline of its fullest stage."""
    of, held = described(rows, context.folder), kept(rows, context.folder)
    filled = of["num_micro_batches"] + of["num_stages"] - 1
    micro_batch = rows["micro_batch"].to_numpy(float)
    tokens = SEQUENCE * micro_batch
    return pd.DataFrame(
        {
            "compute_s": 6 * tokens * held["parameter_bytes"].max(axis=1) / 4 * filled / _FLOP_PER_S,
            "traffic_s": 2 * held["activation_bytes"].max(axis=1) * filled / _MEMORY_BYTES_PER_S,
            "pp": of["num_stages"],
            "dp": held["dp"],
            "micro_batch": micro_batch,
            "num_micro_batches": of["num_micro_batches"],
            "most_parameters": held["parameter_bytes"].max(axis=1),
            "profiled_s": (of["device_s"] * of["counts"])[:, :, :2].sum(axis=(2, 3)).max(axis=1) * filled,
        }
    )


def _loader(name: str) -> Callable[[Folder], pd.DataFrame]:
    def load(folder: Folder) -> pd.DataFrame:
        path = f"sailor/{name}.json"
        plans = folder.document(path)
        if not isinstance(plans, list) or not plans:
            raise UnreadableError(f"{path}: is no list of plans; convert it again from its origin")
        rows = pd.DataFrame([_row(f"{path}: plan {number}", plan) for number, plan in enumerate(plans)])
        return measured(rows, [MEASURED_S], path)

    return load


def _row(where: str, plan: dict[str, Any]) -> dict[str, Any]:
    """A plan's row. Its measured reduction of gradients, `red_grads`, stays behind."""
    try:
        pipelines = plan["pipeline_list"]
        count = sum(len(layers) for layers in pipelines[0]["layers_per_stage"])
        staged = [pipeline["tmp_per_stage"] for pipeline in pipelines]
        numbers = {name: float(plan[name]) for name in ("mbs", "gbs", "real", "N")}
        most = float(plan["max_mem"]) if plan.get("max_mem") else np.nan
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise UnreadableError(f"{where}: lacks what a plan has ({error!r}); see the folder's README.md") from error
    strange = sorted({str(gpus[0][0]) for each in staged for stage in each for gpus, _ in stage} - set(GPUS))
    if strange:
        raise UnreadableError(f"{where}: GPU {strange[0]!r} isn't among those that were profiled: {', '.join(GPUS)}")
    _check_numbers(where, numbers | {"max_mem": most})
    if count not in NUM_LAYERS:
        raise UnreadableError(f"{where}: has {count} layers; known are {NUM_LAYERS}")
    return {
        "model": NUM_LAYERS[count],
        "nodes": numbers["N"],
        "micro_batch": numbers["mbs"],
        "global_batch": numbers["gbs"],
        "pipelines": json.dumps(pipelines),
        MEASURED_S: numbers["real"],
        MEASURED_BYTES: most,
    }


def _check_numbers(where: str, numbers: Mapping[str, float]) -> None:
    """Sizes must be numbers of at least 1; what was measured may be missing, but not negative or infinite."""
    for name, value in numbers.items():
        size = name in ("mbs", "gbs", "N")
        if not (1 if size else 0) <= value < np.inf and not (np.isnan(value) and not size):
            asked = "a number of at least 1" if size else "a finite number of at least 0, or not there"
            raise UnreadableError(f"{where}: {name} is {value:g}, but must be {asked}; mend or remove the plan")
    if np.isnan(numbers["real"]):
        _log.warning("%s: real, the seconds of an iteration, is NaN: it is left out; measure it again", where)


def _set(name: str, fitted_on: Sequence[str] = ()) -> TrialSet:
    return TrialSet(
        f"sailor/{name}",
        _loader(name),
        _group,
        PipelineTrials,
        _features,
        fitted_on=tuple(fitted_on),
        job=labels("model", "nodes", "global_batch"),
        steps=StepSet(described, elsewhere=() if fitted_on else _OTHERS),
    )


SETS = (_set("clariden_plans"), _set("mit_plans", ["sailor/clariden_plans"]))
