"""Whole iterations and peaks of memory of plans (Sailor): on GH200 and, kept back, on nodes of mixed RTX cards."""

from __future__ import annotations

import functools
import json
import logging
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from trials._folder import Folder, UnreadableError, measured
from trials._planned_steps import Ends, simulated
from trials._sailor_parts import GPUS, NUM_LAYERS, parts
from trials._sailor_tasks import peak_bytes, trial, trials
from trials._trial_set import MEASURED_BYTES, MEASURED_S, Predicted, TrialSet, labels

_log = logging.getLogger(__name__)


def predict(rows: pd.DataFrame, folder: Folder) -> Predicted:
    """The steps of plans, of several unlike pipelines the slowest one's, and their peaks of memory."""
    plans = rows.to_dict("records")
    steps = [max(_step(folder, *one) for one in trials(plan)) for plan in plans]
    return Predicted.of(steps, np.array([peak_bytes(plan, parts(folder)) for plan in plans]))


@functools.cache
def _step(folder: Folder, *plan: Any) -> Ends:
    return simulated(*trial(folder, *plan))


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


SETS = tuple(
    TrialSet(f"sailor/{name}", _loader(name), predict, labels("model", "nodes", "global_batch"))
    for name in ("clariden_plans", "mit_plans")
)
