"""Fitted parts of calibrations, and how far off each was on what a fit had left out."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, final

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from tqdm import tqdm

from alpa_dejavu.calibration import Fit
from alpa_dejavu.costs.communication.learned import Collectives, FittedCollectives
from bundles._peaks import Peaks
from trials._folder import Folder, measured
from trials._sets import SETS
from trials._trial_set import MEASURED_BYTES, MEASURED_S, Context, Learned, Predicted, TrialSet, labels

_KERNELS, _LAYERS = "neusight-kernels/kernels", "sailor/layer_profiles"
_A100_LANES_BYTES_PER_S = 300e9
"""NVLink of A100, one direction, through a switch: NVIDIA's data sheet."""


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Part:
    """A model fitted on all rows of a set, and what fits that had left their group out said of them.

    Attributes:
        name: as `Fit.part`.
        origin: the measurements.
        left_out: what was left out in turn.
        device: of each row.
        measured_s: of each row.
        predicted: of each row.
        model: fitted on all rows.
        peaks: of memory, where they were measured and predicted too.
    """

    name: str
    origin: str
    left_out: str
    device: NDArray[np.str_]
    measured_s: NDArray[np.float64]
    predicted: Predicted
    model: Any
    peaks: Peaks | None = None

    def fit_of(self, devices: Sequence[str]) -> Fit:
        """Rows and errors of some devices; of none that was measured, the errors of all."""
        chosen = np.isin(self.device, list(devices))
        rows = int(chosen.sum())
        errors = self._errors(chosen if rows else np.ones_like(chosen))
        return Fit(self.name, self.origin, rows, self.left_out, errors)

    def _errors(self, chosen: NDArray[np.bool_]) -> dict[str, float]:
        true, of = self.measured_s[chosen], self.predicted
        off = np.abs(of.mean[chosen] / true - 1)
        inside = (of.lower[chosen] <= true) & (true <= of.upper[chosen])
        return {
            "mape": float(off.mean()),
            "median_ape": float(np.median(off)),
            "coverage_90": float(inside.mean()),
        }


def parts(folder: Folder) -> dict[str, Part]:
    """All of them by a name of their own, fitted on a folder of measurements."""
    context = Context(folder, SETS)

    def of_set(
        key: str,
        name: str,
        origin: str,
        left_out: str,
        device: Callable[[pd.DataFrame], pd.Series],
        framework: str = "",
    ) -> Part:
        hidden = dataclasses.replace(context, hidden=frozenset((key, *SETS[key].same_rows_as)))
        return _part(SETS[key], hidden, name, origin, left_out, device, framework)

    def always(device: str) -> Callable[[pd.DataFrame], pd.Series]:
        return lambda rows: pd.Series(device, index=rows.index)

    profile = "Alpa's mesh profiler on AWS p3.16xlarge, OSDI 2022 (explcre/pipeDejavu, MIT)"
    return {
        "kernels": of_set(
            _KERNELS,
            "kernels",
            "NeuSight, ASPLOS 2025 (sitar-lab/NeuSight, MIT): FP32 kernels of 9 kinds on P4, P100-PCIe, T4, V100-PCIe "
            "and A100-PCIe; one model of all five",
            "GPU",
            lambda rows: rows["gpu"],
        ),
        "layers": of_set(
            _LAYERS,
            "layers",
            "Sailor, SOSP 2025 (eth-easl/sailor, MIT): forward and backward of layers of OPT, GPT-Neo and Llama",
            "(model, GPU)",
            lambda rows: rows["gpu"],
        ),
        "p3 within": of_set(
            "alpa-p3.16xlarge/collectives:intra_host", "collectives within hosts", profile, "mesh", always("v100")
        ),
        "p3 across": of_set(
            "alpa-p3.16xlarge/collectives:cross_host",
            "collectives across hosts",
            profile,
            "size of groups",
            always("v100"),
        ),
        "a100 within": _part(
            _ALL_REDUCE,
            context,
            "collectives within hosts",
            "vTrain, MICRO 2024 (VIA-Research/vTrain): all-reduces among the A100s of a host",
            "size of groups",
            always("a100"),
        ),
        "pipelines gh200": of_set(
            "sailor/clariden_plans",
            "iterations of Sailor's pipelines",
            "Sailor, SOSP 2025 (eth-easl/sailor, MIT): OPT and GPT-Neo on GH200 nodes of 4",
            "(model, nodes)",
            always("gh200"),
            "Sailor's pipelines",
        ),
    }


def _part(
    trial: TrialSet,
    context: Context,
    name: str,
    origin: str,
    left_out: str,
    device: Callable[[pd.DataFrame], pd.Series],
    framework: str = "",
) -> Part:
    """The part of a set; with the name of a framework, its peaks of memory too."""
    rows = trial.load(context.folder)
    groups = trial.group(rows).to_numpy()
    measurements = [column for column in (MEASURED_S, MEASURED_BYTES) if column in rows]
    ends, peaks = ({end: np.zeros(len(rows)) for end in ("mean", "lower", "upper")} for _ in range(2))
    for group in tqdm(sorted(set(groups)), desc=origin[:40], leave=False):
        held = groups == group
        asked = rows[held].drop(columns=measurements).reset_index(drop=True)
        model: Any = trial.predictor().fit(rows[~held].reset_index(drop=True), context)
        found = model.predict(asked)
        for end, values in ends.items():
            values[held] = getattr(found, end)
            if framework:
                peaks[end][held] = getattr(found.memory, end)
    whole: Any = trial.predictor().fit(rows, context)
    names = device(rows).to_numpy(dtype=np.str_)
    predicted, fullest = (Predicted(each["mean"], each["lower"], each["upper"]) for each in (ends, peaks))
    of_memory = None
    if framework:
        of_memory = Peaks.of(rows[MEASURED_BYTES].to_numpy(float), fullest, groups, framework, whole.memory)
    return Part(name, origin, left_out, names, rows[MEASURED_S].to_numpy(float), predicted, whole.model, of_memory)


def _columns(rows: pd.DataFrame, context: Context) -> Collectives:
    same = np.ones(len(rows))
    sizes = rows["num_gpus"].to_numpy(float)
    names, lanes = np.full(len(rows), "all_reduce"), _A100_LANES_BYTES_PER_S * same
    return Collectives(names, rows["bytes"].to_numpy(float), sizes, same, same, lanes)


def _all_reduces(folder: Folder) -> pd.DataFrame:
    path = "vtrain-a100/all_reduce_a100_intra_node.csv"
    rows = measured(folder.table(path, [], ["num_gpus", "bytes", "time_s"]), ["time_s"], path)
    return rows.rename(columns={"time_s": MEASURED_S})


_ALL_REDUCE = TrialSet(
    "vtrain-a100/all_reduce",
    _all_reduces,
    labels("num_gpus"),
    lambda: Learned(FittedCollectives, _columns, lambda rows: rows["num_gpus"].astype(str)),
    lambda rows, context: rows,
)
