"""Whole iterations of pipelines under DeepSpeed (AMP): a cluster of T4s, one of V100s and, kept back, one of both."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any, final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from alpa_dejavu.costs.iteration import fit
from alpa_dejavu.costs.iteration.frameworks import (
    DeepSpeedIteration,
    HostKind,
    PipelinePlan,
    ProfiledModel,
    deepspeed_columns,
)
from trials._folder import AbsentError, Folder, UnreadableError, measured
from trials._trial_set import MEASURED_S, Context, Predicted, TrialSet, from_logs, labels

_NUMBERS = ("global_batch", "micro_batch", "tp", "dp", "pp")
_G4DN = HostKind("g4dn", "t4", 50e9 / 8, 50e9 / 8)
_P3 = HostKind("p3", "v100", 170e9 / 8, 10e9 / 8)
_CLUSTERS = {"homogeneous": (_G4DN,) * 4, "het_model": (_P3,) * 4, "het_cluster": (_P3,) * 3 + (_G4DN,)}
_DEVICES, _HOSTS = ("t4", "v100"), ("g4dn", "p3")
_DEVICES_PER_HOST = 4
_HIDDEN, _TOKENS, _VOCABULARY = 1024, 1024, 52256
_BLOCK_PARAMETERS = 12.6e6
_PEAK_FLOP_PER_S = {"t4": 8.1e12, "v100": 15.7e12}
_MEMORY_BYTES_PER_S = {"t4": 320e9, "v100": 900e9}
_NOISE_FLOOR = 0.02
"""Seconds were written down with two decimals, of which the smallest is 1.09."""

_division = labels("tp", "dp")


def columns(rows: pd.DataFrame, folder: Folder) -> dict[str, NDArray[np.float64]]:
    """Rows as `DeepSpeedIteration` knows them, with the cluster as their source."""
    plans = [
        PipelinePlan(
            int(row["tp"]), int(row["dp"]), int(row["micro_batch"]), int(row["global_batch"]), row["boundaries"]
        )
        for row in rows.to_dict("records")
    ]
    models = [_model(folder, "transgan" if cluster == "het_model" else "gpt2") for cluster in rows["cluster"]]
    clusters = [_CLUSTERS[cluster] for cluster in rows["cluster"]]
    source = np.array([list(_CLUSTERS).index(cluster) for cluster in rows["cluster"]], dtype=np.float64)
    return deepspeed_columns(plans, models, clusters, _DEVICES, _HOSTS) | {"source": source}


@final
class DeepSpeedTrials:
    """`DeepSpeedIteration` on the layers' forward times, fitted on the trials of all clusters that aren't left out."""

    def fit(self, rows: pd.DataFrame, context: Context) -> DeepSpeedTrials:
        """Learns the parameters, and the spread from divisions that are left out."""
        self._folder = context.folder
        given = set(rows["cluster"])
        others = [key for key in _FITTED if key not in context.hidden and key.split("/")[1][:-7] not in given]
        rows = pd.concat([rows, *(context.rows(key) for key in others)], ignore_index=True)
        groups = rows["cluster"] + "," + _division(rows)
        seconds = rows[MEASURED_S].to_numpy(float)
        physics = DeepSpeedIteration(_DEVICES, _HOSTS)
        self.fitted = fit(physics, columns(rows, self._folder), seconds, groups.tolist(), floor=_NOISE_FLOOR)
        return self

    def predict(self, rows: pd.DataFrame) -> Predicted:
        """Seconds of iterations."""
        return from_logs(*self.fitted.predict(columns(rows, self._folder)))


@functools.cache
def _model(folder: Folder, name: str) -> ProfiledModel:
    """A model by what was profiled, and what its description says."""
    times: dict[tuple[str, int], NDArray[np.float64]] = {}
    for device in _DEVICES:
        for tp in (1, 2, 4):
            path = f"amp/layer_forward_{name}_{device}_tp{tp}.csv"
            try:
                rows = folder.table(path, [], ["layer", "forward_s_per_sample"])
            except AbsentError:
                continue
            times[device, tp] = _profile(f"{folder.path}: {path}", rows)
    if ("v100", 1) not in times:
        raise UnreadableError(f"{folder.path}/amp: lacks layer_forward_{name}_v100_tp1.csv; convert it again")
    lengths = {f"{device}, tp{tp}": len(of) for (device, tp), of in times.items()}
    if len(set(lengths.values())) > 1:
        unlike = f"have unlike numbers of layers: {lengths}"
        raise UnreadableError(f"{folder.path}/amp: layer_forward_{name}_*: {unlike}; convert them again")
    layer = np.arange(len(times["v100", 1]))
    if name == "gpt2":
        block = (layer >= 2) & (layer < 26)
        parameters = np.where(block, _BLOCK_PARAMETERS, 0.0)
        parameters[0], parameters[28] = (_VOCABULARY + _TOKENS) * _HIDDEN, _VOCABULARY * _HIDDEN
        alike = np.full(len(layer), float(_TOKENS * _HIDDEN))
        return ProfiledModel(times, block, parameters, np.zeros(len(layer)), (28,), alike)
    first, second = (layer >= 3) & (layer < 15), (layer >= 41) & (layer < 53)
    parameters, unknown = np.where(second, _BLOCK_PARAMETERS, 0.0), np.where(first, _BLOCK_PARAMETERS, 0.0)
    elements: NDArray[np.float64] = np.where(layer < 19, 0.5, 1.0) * float(_TOKENS * _HIDDEN)
    return ProfiledModel(times, first | second, parameters, unknown, (), elements)


def _profile(where: str, rows: pd.DataFrame) -> NDArray[np.float64]:
    """Forward seconds of a sample of layers 0, 1 ..., none of them missing."""
    ordered = rows.sort_values("layer")
    layers, seconds = ordered["layer"].to_numpy(float), ordered["forward_s_per_sample"].to_numpy(float)
    off = np.flatnonzero(layers != np.arange(len(layers)))
    if len(off):
        raise UnreadableError(f"{where}: layer {off[0]} is missing, or there twice; mend it")
    wrong = np.flatnonzero(~(seconds >= 0))
    if len(wrong):
        n = int(wrong[0])
        raise UnreadableError(
            f"{where}: layer {n}: forward_s_per_sample is {seconds[n]:g}, but must be a number of at least 0; mend it"
        )
    return seconds


def _features(rows: pd.DataFrame, context: Context) -> pd.DataFrame:
    """The plan, and both sides of a roofline of its slowest device's work."""
    of = columns(rows, context.folder)
    blocks = of["blocks"]
    share = np.stack([of["present"][:, :, kind] / _PEAK_FLOP_PER_S[name] for kind, name in enumerate(_DEVICES)])
    slow = share.max(axis=0)
    memory = np.stack([of["present"][:, :, kind] / _MEMORY_BYTES_PER_S[name] for kind, name in enumerate(_DEVICES)])
    flop = 72 * _TOKENS * _HIDDEN**2 * blocks * (of["micro_batch"] / of["tp"])[:, None]
    moved = 36 * _TOKENS * _HIDDEN * 4 * blocks * (of["micro_batch"] / of["tp"])[:, None]
    micro_batches = of["num_micro_batches"]
    return pd.DataFrame(
        {
            "compute_s": _pipelined(flop * slow, micro_batches),
            "traffic_s": _pipelined(moved * memory.max(axis=0), micro_batches),
            "num_micro_batches": micro_batches,
            "most_blocks": blocks.max(axis=1),
            "profiled_s": _pipelined(of["forward_s"].max(axis=2), micro_batches) * of["micro_batch"] / of["tp"],
            **{name: rows[name].to_numpy(float) for name in _NUMBERS},
        }
    )


def _pipelined(stage_s: NDArray[np.float64], micro_batches: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(stage_s.sum(axis=1) + (micro_batches - 1) * stage_s.max(axis=1))


def _loader(cluster: str) -> Callable[[Folder], pd.DataFrame]:
    def load(folder: Folder) -> pd.DataFrame:
        path = f"amp/{cluster}_trials.csv"
        table = folder.table(path, ["layer_boundaries"], [*_NUMBERS, "measured_s"], counts=_NUMBERS)
        rows = measured(table, ["measured_s"], path)
        rows["boundaries"] = [_boundaries(path, row, len(_CLUSTERS[cluster])) for row in rows.to_dict("records")]
        return rows.assign(cluster=cluster)[["cluster", *_NUMBERS, "boundaries", MEASURED_S]]

    return load


def _boundaries(path: str, row: dict[str, Any], hosts: int) -> tuple[int, ...]:
    named = f"{path}: the plan {', '.join(f'{name}={row[name]:g}' for name in _NUMBERS)}"
    needed = row["tp"] * row["dp"] * row["pp"]
    if needed > hosts * _DEVICES_PER_HOST:
        there = f"the cluster has {hosts * _DEVICES_PER_HOST}"
        raise UnreadableError(f"{named}: needs {needed:g} devices, but {there}; mend or remove it")
    try:
        cuts = tuple(int(cut) for cut in json.loads(row["layer_boundaries"]))
    except (ValueError, TypeError) as error:
        raise UnreadableError(
            f"{named}: layer_boundaries is {row['layer_boundaries']!r}, but must be a list of layers; mend it"
        ) from error
    if len(cuts) != row["pp"] + 1 or list(cuts) != sorted(set(cuts)):
        raise UnreadableError(
            f"{named}: layer_boundaries is {cuts}, but must rise and have pp + 1 = {row['pp'] + 1:g}; mend it"
        )
    return cuts


def _set(cluster: str, fitted_on: tuple[str, ...] = ()) -> TrialSet:
    key = f"amp/{cluster}_trials"
    return TrialSet(
        key,
        _loader(cluster),
        _division,
        DeepSpeedTrials,
        _features,
        fitted_on=fitted_on,
        job=labels("cluster", "global_batch"),
    )


_FITTED = ("amp/homogeneous_trials", "amp/het_model_trials")

SETS = (_set("homogeneous"), _set("het_model"), _set("het_cluster", _FITTED))
